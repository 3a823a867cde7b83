"""Parsers for the settings file: blocks of owners and flow versions, and keys written otherwise in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from api_client.contract.policy import Action
from api_client.contract.session_paths import NONE, SHIPPED
from api_client.contract.settings.tool_settings import server_kinds
from api_client.contract.value_kinds import Kind

#: Kinds of blocks besides those of models; ``flow`` of ``[flow.v2]`` sets ``Settings.flow_settings``.
BLOCKS = ("owner", "flow", "tools")


def block_kinds(folder: Path) -> Mapping[str, Mapping[str, Kind]]:
    """Return the parsers for the keys in each kind of block. Paths in blocks are relative to ``folder``."""
    owner: dict[str, Kind] = {"policy": partial(_read_policy_path, folder=folder)}
    template = {"prompt_template": partial(_read_template, folder=folder)}
    flow = owner | template | {"max_failure_rate": _read_failure_rate}
    return {"owner": owner, "flow": flow, "tools": server_kinds()}


def key_kinds(folder: Path) -> dict[str, Kind]:
    """Return parsers for the settings ``policy`` and ``prompt_template``. Paths in their values start at ``folder``.

    The values of these settings are written differently in the settings file and in the environment.
    """
    return {"policy": partial(_read_policy, folder=folder), "prompt_template": partial(_read_template, folder=folder)}


def _read_policy_path(value: Any, folder: Path) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return str((folder / Path(value).expanduser()).resolve())


def _read_policy(value: Any, folder: Path) -> str | dict[str, tuple[str, ...]]:
    if isinstance(value, str):
        return _read_policy_path(value, folder)
    wrong = f"must name a policy file, or map validators to lists of {', '.join(Action)}"
    if not isinstance(value, dict):
        raise ValueError(wrong)
    for order in value.values():
        if not isinstance(order, list) or not order or not set(map(str, order)) <= set(Action):
            raise ValueError(wrong)
    return {validator: tuple(order) for validator, order in value.items()}


def _read_failure_rate(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError("must be a share of all turns, between 0 and 1: 0.2")
    return float(value)


def _read_template(value: Any, folder: Path) -> str:
    if value in (*SHIPPED, NONE):
        return str(value)
    path = folder / Path(str(value)).expanduser()
    try:
        there = path.is_file()
    except OSError as error:  # a path that no file can have
        raise ValueError(str(error)) from None
    if not there:
        raise ValueError(f"no such file; else it must be {', '.join(SHIPPED)} or {NONE}")
    return str(path.resolve())
