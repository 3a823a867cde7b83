"""Lists the tools of each agent that a policy's rules can control (agents.toml), and their alternative names."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

from worker.runners.tool_rules.patterns import Match, match_pattern

_TABLES = tomllib.loads(Path(__file__).with_name("agents.toml").read_text(encoding="utf-8"))
_ALIASES: dict[str, str] = _TABLES.pop("aliases")
#: Agent -> tools that it asks about before each call, and tools that it uses without asking.
AGENTS = {agent: (table["asks"].split(), table["silent"].split()) for agent, table in _TABLES.items()}


class ToolRuleCheck(NamedTuple):
    """The result of checking a policy's rule for a tool: a warning, or an empty string if the agent obeys the rule.

    ``never_asks`` is True if the agent runs all tools of the rule without asking first.
    """

    warning: str
    never_asks: bool = False


def list_tool_names(tool_name: str) -> set[str]:
    """Return all names of a tool, such as its names in older versions of the agent, and ``tool_name`` itself."""
    newest = _ALIASES.get(tool_name, tool_name)
    return {newest, *(name for name, other in _ALIASES.items() if other == newest)}


def parse_agent_name(runner_setting: str) -> str:
    """Return the agent that a model's setting ``runner`` names, such as ``codex`` in ``codex:gpt-5``."""
    name, _, option = runner_setting.partition(":")
    return f"{name}:{option.partition(':')[0]}" if name == "acp" else name


def check_tool_rule(tool_pattern: str, agent: str) -> ToolRuleCheck:
    """Check whether an agent asks before it calls the tools that match a pattern such as ``mcp__*``.

    A policy's rule for a tool works only if the agent asks. There is also a warning if the agent has no such tool.
    """
    asks, silent = AGENTS.get(agent, ([tool_pattern], []))
    quiet = [name for name in silent if match_pattern(tool_pattern, name) is Match.DOES]
    heard = any(match_pattern(tool_pattern, name) is Match.DOES for tool in asks for name in list_tool_names(tool))
    if quiet:
        return ToolRuleCheck(f"{agent} uses {', '.join(quiet)} without asking", not heard)
    if heard or tool_pattern.startswith("mcp__"):
        return ToolRuleCheck("")
    known = {name.casefold(): name for name in asks}
    hint = f"; its name is {known[tool_pattern.casefold()]}" if tool_pattern.casefold() in known else ""
    return ToolRuleCheck(f"{agent} has no tool {tool_pattern}{hint}")
