"""Decides about a tool call by its parsed arguments: allow, ask or deny."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from api_client.contract.interruption import Answerer
from api_client.contract.owners import parse_owner


class CallReaction(StrEnum):
    """The possible reactions to a tool call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRule:
    """A rule about tool calls to one server. The first matching rule decides.

    Attributes:
        tool: pattern of the tool's name.
        arguments: path of an argument, such as ``to.0.address`` -> pattern of its text, its value, or ``{min, max}``.
        owners: names of keys, or owners as operators see them; empty: all.
        read_only, destructive: the server's own description of the tool; None: any.
        who, wait_seconds: who is asked, and how long an answer is waited for.
    """

    tool: str
    do: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    owners: Sequence[str] = ()
    read_only: bool | None = None
    destructive: bool | None = None
    who: str = Answerer.OWNER.value
    wait_seconds: int = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCall:
    """An agent's tool call, with the server's description of the tool.

    ``read_only`` and ``destructive`` are MCP annotations; tools without them count as writing and destructive.
    """

    server: str
    tool: str
    arguments: Mapping[str, Any]
    owner: str = ""
    read_only: bool = False
    destructive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDecision:
    """The decision about a tool call, and the people who are asked about it if necessary."""

    reaction: CallReaction
    who: str = Answerer.OWNER.value
    wait_seconds: int = 3_600


def decide_call(call: GatewayCall, rules: Sequence[CallRule], writes: str) -> CallDecision:
    """Decide whether a tool call runs, is denied, or needs a person's approval.

    A rule that denies or asks also matches a call without an argument that the rule names; a rule that allows must
    match completely. Without a matching rule, read-only tools run, and ``writes`` decides about other tools.
    """
    for rule in rules:
        if _matches(rule, call):
            return CallDecision(reaction=CallReaction(rule.do), who=rule.who, wait_seconds=rule.wait_seconds)
    return CallDecision(reaction=CallReaction.ALLOW if call.read_only else CallReaction(writes))


def _matches(rule: CallRule, call: GatewayCall) -> bool:
    if not fnmatchcase(call.tool, rule.tool):
        return False
    if rule.owners and call.owner not in map(parse_owner, rule.owners):
        return False
    said = ((rule.read_only, call.read_only), (rule.destructive, call.destructive))
    if any(wanted is not None and wanted is not found for wanted, found in said):
        return False
    allows = rule.do == CallReaction.ALLOW
    return all(_fits(_value_at(path, call.arguments), wanted, allows) for path, wanted in rule.arguments.items())


_MISSING = object()


def _value_at(path: str, arguments: Any) -> Any:
    found = arguments
    for step in path.split("."):
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return _MISSING
    return found


def _fits(value: Any, wanted: Any, allows: bool) -> bool:
    """Return True if a value meets a rule's condition. A value of another type meets only restrictive ones."""
    if isinstance(wanted, Mapping) or _is_number(wanted):
        limits = wanted if isinstance(wanted, Mapping) else {"min": wanted, "max": wanted}
        return _is_within(value, limits, allows) if _is_number(value) else not allows
    if isinstance(wanted, str) and isinstance(value, str):
        return fnmatchcase(value, wanted)
    return bool(value == wanted) if type(value) is type(wanted) else not allows


def _is_within(value: float, limits: Mapping[str, float], allows: bool) -> bool:
    """Return True if a number is within a rule's limits. A restrictive rule also compares the rounded numbers.

    Many servers round integers to doubles, so that they would read a number that the rule did not see.
    """
    low, high = limits.get("min", value), limits.get("max", value)
    rounded = not allows and _round_to_double(low) <= _round_to_double(value) <= _round_to_double(high)
    return bool(low <= value <= high or rounded)


def _round_to_double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf
