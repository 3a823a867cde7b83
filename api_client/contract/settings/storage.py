"""The place of turns, and their lifetime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from api_client.contract.settings.declaring import setting
from api_client.contract.settings.setting_values import (
    choice,
    directory,
    file_path,
    integer,
    key_prefix,
    number,
    store_address,
)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The place of turns, and their lifetime."""

    root: Path = setting(Path.cwd, directory, "The project the agents work in; paths in answers resolve against it.")
    config: str = setting(
        "", file_path, "The settings file (TOML), below; none: HELIX_ROOT/.helix/helix.toml, where there is one."
    )
    broker_url: str = setting(
        "", store_address, "Celery's broker. REDIS_URL sets broker and store at once.", secret=True
    )
    store_url: str = setting("", store_address, "Where turns, events and metrics live.", secret=True)
    open_broker: str = setting(
        "refused",
        choice("refused", "allowed"),
        "What to do with a broker or store beyond this machine whose address has no password.",
    )
    namespace: str = setting(
        "helix", key_prefix, "Prefix of every key, so that several installations can share a store."
    )
    shards: int = setting(1, integer(1, 1024), "Hash-tag shards sessions are spread over.")
    durability: str = setting(
        "everysec",
        choice("everysec", "power", "replicated"),
        "What a submit and a shown end wait for: power: the disk; replicated: a replica, as for Sentinel.",
    )
    replicas: int = setting(
        1,
        integer(1, 100),
        "With replicated: how many replicas have a turn before it is acknowledged, its end before it is shown.",
    )
    retention_seconds: float = setting(7 * 86_400.0, number(60, 10**9), "How long a finished turn stays readable.")
    event_retention_seconds: float = setting(
        0.0, number(0, 10**9), "The same for its events, where shorter; `turns gc` enforces it. 0: as the turn."
    )
    attempt_retention_seconds: float = setting(
        0.0, number(0, 10**9), "The same for its attempts and their folders (`turns gc`). 0: as the turn."
    )
    session_retention_seconds: float = setting(
        0.0, number(0, 10**9), "Session folders not written to for this long are removed by `turns gc`. 0: never."
    )
