"""The settings of a store with replicas."""

from __future__ import annotations

from dataclasses import dataclass

from api_client.contract.settings.declaration import SettingsGroup, constant, setting
from api_client.contract.settings.setting_values import choice, integer


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings(SettingsGroup):
    """How safe a turn is before it is acknowledged."""

    durability: str = setting(
        "everysec",
        choice("everysec", "power", "replicated"),
        "What a submit and a shown end wait for: power: the disk; replicated: a replica, as for Sentinel.",
    )
    replicas: int = constant(
        1,
        integer(1, 100),
        "With replicated: how many replicas have a turn before it is acknowledged, its end before it is shown.",
    )
