"""Decides on an ACP agent's permission requests by the runner's settings and the policy's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.runners import tool_gate
from worker.runners.tool_rules.patterns import match_pattern


def is_allowed(call: Mapping[str, Any], kinds: list[str], folder: Path | None) -> bool:
    """Return True if the settings allow a tool call by its kind or its paths. Policy rules take precedence."""
    if call.get("kind") in kinds:
        return True
    if folder is None:
        return False
    paths = _call_paths(call)
    own = folder.resolve()
    inside = [isinstance(path, str) and (own / path).resolve().is_relative_to(own) for path in paths]
    return call.get("kind") == "edit" and bool(inside) and all(inside)


def call_arguments(call: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a tool call's input and paths as one dict of arguments, or None if the agent did not send the input."""
    given = call.get("rawInput")
    return paths_by_name(call) | given if isinstance(given, dict) else None


def apply_rules(call: Mapping[str, Any], rules: Sequence[Mapping[str, Any]], root: str, folder: str) -> str:
    """Return the decision of the policy's rules on a tool call (run, ask or deny), or '' if no rule matches."""
    tool, given = tool_name(call), call_arguments(call)
    placed = _call_paths(call) and tool != "execute"
    asked = [rule for rule in rules if match_pattern(rule.get("tool", "*"), tool)] if given is None else []
    if any(
        rule.get("arguments")
        or (rule.get("do") != "run" and (rule.get("network") or (rule.get("folder") and not placed)))
        for rule in asked
    ):
        return "deny"
    given_or_paths = paths_by_name(call) if given is None else given
    rule = tool_gate.find_rule(rules, tool, given_or_paths, root=root, folder=folder or root)
    word = str(rule.get("do", "ask")) if rule else ""
    return "deny" if word == "ask" and given is None else word


def tool_name(call: Mapping[str, Any]) -> str:
    """Return the tool name of a call as used in policy rules."""
    return str(call.get("kind") or "other")


def paths_by_name(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paths of a tool call under the argument names ``path``, ``path 1`` and so on."""
    return {f"path {number}" if number else "path": path for number, path in enumerate(_call_paths(call))}


def _call_paths(call: Mapping[str, Any]) -> list[Any]:
    places = call.get("locations")
    return [each.get("path") for each in places if isinstance(each, dict)] if isinstance(places, list) else []


def choose_option(options: object, *, yes: bool) -> dict[str, Any]:
    """Return the reply to a permission request: allow once, reject once, or cancelled if that option is missing."""
    wanted = ("allow_once",) if yes else ("reject_once", "reject_always")
    for kind in wanted:
        for option in options if isinstance(options, list) else ():
            if isinstance(option, dict) and option.get("kind") == kind:
                return {"outcome": {"outcome": "selected", "optionId": option.get("optionId")}}
    return {"outcome": {"outcome": "cancelled"}}
