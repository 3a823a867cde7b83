"""Decides by a policy's rules whether a tool call runs, asks or is denied. Standard library only, for agents' hooks."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.runners.tool_rules.agent_tools import list_tool_names
from worker.runners.tool_rules.patterns import ANY, GLOB, Match, match_pattern
from worker.runners.tool_rules.shell_commands import find_commands, get_program_name, list_spellings
from worker.runners.tool_rules.shell_words import ShellCommand
from worker.runners.tool_rules.touched_paths import (
    WORKING_FOLDERS,
    find_argument_paths,
    find_command_paths,
    find_working_folders,
    match_paths,
)

Rule = Mapping[str, Any]

#: Arguments that are command lines, and a tool whose ``command`` is not one.
_COMMANDS, _NO_SHELL = ("command", "cmd"), frozenset({"apply_patch"})
#: Patterns that may match a whole line although none of its commands matches.
_OF_LINES = re.compile(r"^\*.*[^*]|[;|&<>()$`'\"\\\n]|  ")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,20}://|\bwww\.|/dev/(?:tcp|udp)/", re.IGNORECASE)
_PROGRAMS = re.compile(
    r"(?:curl|wget|ssh|scp|sftp|rsync|nc|ncat|telnet|ftp|ping|dig|nslookup|pip3?|npm|npx|yarn|pnpm|cargo"
    r"|apt(?:-get)?|gh|docker|git (?:push|pull|fetch|clone|ls-remote))(?: |$)"
)
_NETWORK_TOOLS = re.compile(r"web|fetch|browser|http|^mcp__", re.IGNORECASE)


def find_rule(rules: Sequence[Rule], tool: str, arguments: Mapping[str, Any], *, root: str, folder: str) -> Rule:
    """Return the first rule that matches a tool call, or an empty mapping.

    Each command of a line is checked by itself, and the strictest result counts. ``root`` is HELIX_ROOT; relative paths
    in ``arguments`` start at ``folder``, where the agent works.
    """
    call = _RuledCall(tool, arguments, root, folder)
    parts: list[ShellCommand | None] = [*call.commands] if len(call.commands) == 1 else [*call.commands, None]
    found = [(_find_rule(rules, call, each), each) for each in parts]
    counts = [rule for rule, part in found if rule or not call.commands or (part and not part.wrapped)]
    return max(counts, key=_rank_rule, default={})


def _find_rule(rules: Sequence[Rule], call: _RuledCall, command: ShellCommand | None) -> Rule:
    found = []
    for rule in rules:
        if fits := _match_rule(rule, call, command):
            found.append(rule)
        if fits is Match.DOES:
            break
    return max(found, key=_rank_rule, default={})


def _rank_rule(rule: Rule) -> int:
    """Return the strictness of a rule. A missing rule is stricter than a rule that allows the call."""
    word = rule.get("do", "ask") if rule else ""
    return {"run": 0, "": 1, "ask": 2, "deny": 4}[word] + (word == "ask" and rule.get("who") == "operator")


class _RuledCall:
    def __init__(self, tool: str, arguments: Mapping[str, Any], root: str, folder: str) -> None:
        self.tool, self.arguments, self.root = tool, arguments, root
        places = (arguments[name] for name in WORKING_FOLDERS if isinstance(arguments.get(name), str))
        self.folder = str(Path(folder, *places))

    @functools.cached_property
    def commands(self) -> list[ShellCommand]:
        given = next((self.arguments[name] for name in _COMMANDS if self.arguments.get(name)), None)
        if isinstance(given, list):
            given = [each if isinstance(each, str) else ANY for each in given]
        return find_commands(given) if self.tool not in _NO_SHELL and isinstance(given, str | list) else []

    @functools.cached_property
    def folders(self) -> list[str | None]:
        return find_working_folders(self.commands, self.folder)

    def paths(self, command: ShellCommand | None, *, only_path_arguments: bool) -> Iterator[str | None]:
        """Yield the paths that the call, or one of its commands, reads or writes. None means any path."""
        yield from find_argument_paths(
            self.tool, {**self.arguments, "command": ""}, self.folder, only_path_arguments=only_path_arguments
        )
        if command:
            yield from find_command_paths(command, self.folders)


def _match_rule(rule: Rule, call: _RuledCall, command: ShellCommand | None) -> Match:
    runs = rule.get("do", "ask") == "run"
    if not any(match_pattern(rule.get("tool", "*"), name) for name in list_tool_names(call.tool)):
        return Match.NO
    found = [Match.DOES]
    for name, pattern in rule.get("arguments", {}).items():
        value = call.arguments.get(name)
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
        if name not in _COMMANDS or not call.commands:
            found.append(match_pattern(pattern, text))
        elif command:
            found.append(_match_command(pattern, command, text if len(call.commands) == 1 else "", runs=runs))
        else:
            found.append(Match.NO if runs or not _OF_LINES.search(pattern) else match_pattern(pattern, text.strip()))
    if folder := rule.get("folder"):
        fits = match_paths(
            folder, call.paths(command, only_path_arguments=runs), call.root, match_contents=not runs
        ) or [Match.NO]
        found.append(Match.NO if runs and call.commands else min(fits) if runs else max(fits))
    if rule.get("network"):
        found.append(_match_network(call, command))
    least = min(found)
    return Match.NO if runs and least is not Match.DOES else least


def _match_command(pattern: str, command: ShellCommand, line: str, *, runs: bool) -> Match:
    """Match a command with a pattern. Rules that allow commands must match literally."""
    if runs:
        plain = command.plain and command.words and re.fullmatch(r"[^\s\0\1]+", command.words[0])
        return match_pattern(pattern, " ".join(command.words).replace(GLOB, "*")) if plain else Match.NO
    head, blank, rest = pattern.partition(" ")
    base = head.rpartition("/")[2]
    patterns = {pattern, f"{base}{blank}{rest}"} if base.strip("*") else {pattern}
    return max(match_pattern(each, text) for each in patterns for text in [line.strip(), *list_spellings(command)])


def _match_network(call: _RuledCall, command: ShellCommand | None) -> Match:
    texts = [value for value in call.arguments.values() if isinstance(value, str)]
    if _NETWORK_TOOLS.search(call.tool) or any(_ADDRESS.search(text) for text in texts):
        return Match.DOES
    fits = [Match.DOES for text in (list_spellings(command) if command else ()) if _PROGRAMS.match(text)]
    return max(fits, default=Match.MAY if command and ANY in get_program_name(command) else Match.NO)
