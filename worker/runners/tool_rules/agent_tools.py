"""Lists the tools of each agent that a policy's rules can control (agents.toml), and their alternative names."""

from __future__ import annotations

import tomllib
from pathlib import Path

from worker.runners.tool_rules.patterns import Match, match_pattern

_TABLES = tomllib.loads(Path(__file__).with_name("agents.toml").read_text(encoding="utf-8"))
_ALIASES: dict[str, str] = _TABLES.pop("aliases")
#: Agent -> tools that it asks about before each call, and tools that it uses without asking.
AGENTS = {agent: (table["asks"].split(), table["silent"].split()) for agent, table in _TABLES.items()}


def tool_names(tool: str) -> set[str]:
    """Return every name of a tool, including ``tool`` itself. A rule for one of the names applies to all of them."""
    newest = _ALIASES.get(tool, tool)
    return {newest, *(name for name, other in _ALIASES.items() if other == newest)}


def find_agent(runner: str) -> str:
    """Return the agent in a model's setting ``runner``, such as ``codex`` or ``acp:opencode``, without its options."""
    name, _, option = runner.partition(":")
    return f"{name}:{option.partition(':')[0]}" if name == "acp" else name


def find_uncontrolled(pattern: str, agent: str) -> tuple[str, bool]:
    """Return a warning if an agent calls tools like ``pattern`` without asking first, and True if it never asks first.

    A policy's rule works only if the agent asks before each call. ``pattern`` is the tool name in the rule, in which
    ``*`` matches any text. The warning is empty if the rule works. Another warning tells that the agent has no such
    tool.
    """
    asks, silent = AGENTS.get(agent, ([pattern], []))
    quiet = [name for name in silent if match_pattern(pattern, name) is Match.DOES]
    heard = any(match_pattern(pattern, name) is Match.DOES for tool in asks for name in tool_names(tool))
    if quiet:
        return f"{agent} uses {', '.join(quiet)} without asking", not heard
    if heard or pattern.startswith("mcp__"):
        return "", False
    known = {name.casefold(): name for name in asks}
    hint = f"; its name is {known[pattern.casefold()]}" if pattern.casefold() in known else ""
    return f"{agent} has no tool {pattern}{hint}", False
