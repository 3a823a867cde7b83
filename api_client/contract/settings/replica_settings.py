"""The settings of a store with replicas."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, declare_constant, declare_setting
from api_client.contract.settings.setting_values import choice_parser


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings(SettingsGroup):
    """Settings of a store with replicas: how safely a turn is stored before it is acknowledged."""

    durability: str = declare_setting(
        "everysec",
        choice_parser("everysec", "power", "replicated"),
        "What a submit and a shown end wait for: power: the disk; replicated: a replica, as for Sentinel.",
    )
    replicas: int = declare_constant(
        1, "With replicated: how many replicas have a turn before it is acknowledged, its end before it is shown."
    )
