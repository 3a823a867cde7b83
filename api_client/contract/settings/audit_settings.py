"""The constants of the audit log."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_constant
from api_client.contract.settings.setting_values import number_parser


@dataclass(frozen=True, kw_only=True)
class AuditSettings(SettingsGroup):
    """The retention of the audit log."""

    audit_seconds: float = declare_constant(
        400 * 86_400.0, number_parser(3600, 10**9), "How long lines of the audit log are kept."
    )
