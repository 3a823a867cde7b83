"""The constants of the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_constant


@dataclass(frozen=True, kw_only=True)
class AuditSettings(SettingsGroup):
    """Constants of the audit log: how long its entries are kept."""

    audit_seconds: float = declare_constant(400 * 86_400.0, "How long lines of the audit log are kept.")
