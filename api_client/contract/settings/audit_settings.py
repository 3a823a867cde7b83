"""The constants of the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_constant


@dataclass(frozen=True, kw_only=True)
class AuditSettings(SettingsGroup):
    """The retention of the audit log."""

    audit_seconds: float = declare_constant(400 * 86_400.0, "How long lines of the audit log are kept.")
