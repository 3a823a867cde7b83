"""What a policy says about a tool call: run, ask or deny. The standard library alone: hooks of agents use it.

Rules are plain mappings here, as ``ToolRule.to_dict`` writes them; the first one that fits decides.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

Rule = Mapping[str, Any]

#: What joins commands of a shell, or hides one in another.
_JOINS = re.compile(r"[;|&\n`<>()]")
_COMMAND = "command"
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]{1,20}://|\bwww\.", re.IGNORECASE)
_PROGRAMS = re.compile(
    r"(?:^|[\s;|&(`/])(?:curl|wget|ssh|scp|sftp|rsync|nc|ncat|telnet|ftp|ping|dig|nslookup|pip3?|npm|npx|yarn|pnpm|cargo"
    r"|apt(?:-get)?|gh|docker|git\s[^;|&\n]{0,200}?\b(?:push|pull|fetch|clone|ls-remote))(?:\s|$)"
)
_NETWORK_TOOLS = re.compile(r"web|fetch|browser|http|^mcp__", re.IGNORECASE)


def ruling(rules: Sequence[Rule], tool: str, arguments: Mapping[str, Any], *, root: str, folder: str) -> Rule:
    """The first rule that fits; an empty mapping where none does: then the agent's own permissions decide.

    ``root`` is HELIX_ROOT; relative paths of ``arguments`` are below ``folder``, where the agent works.
    """
    return next((rule for rule in rules if _fits(rule, tool, arguments, root, folder)), {})


def _fits(rule: Rule, tool: str, arguments: Mapping[str, Any], root: str, folder: str) -> bool:
    lets_run = rule.get("do", "ask") == "run"
    if not fnmatchcase(tool, rule.get("tool", "*")):
        return False
    for name, pattern in rule.get("arguments", {}).items():
        if not _matches(arguments.get(name), pattern, lets_run, command=name == _COMMAND):
            return False
    if rule.get("folder") and not _below(rule["folder"], arguments, root, folder, lets_run):
        return False
    return not rule.get("network") or _reaches_out(tool, arguments)


def _matches(value: Any, pattern: str, lets_run: bool, *, command: bool) -> bool:
    """A text against a pattern. Of joined commands each may be the one that is asked about; none runs unasked."""
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    if not command:
        return fnmatchcase(text, pattern)
    if lets_run:
        return not _JOINS.search(text) and "$" not in text and fnmatchcase(text.strip(), pattern)
    return fnmatchcase(text, pattern) or any(fnmatchcase(part.strip(), pattern) for part in _JOINS.split(text))


def _below(pattern: str, arguments: Mapping[str, Any], root: str, folder: str, lets_run: bool) -> bool:
    """Whether a path that the call names fits; for a call that is to run all of them must."""
    paths = [value for name, value in arguments.items() if "path" in name and isinstance(value, str)]
    # The real place: a link in the agent's folder must not make another place look like this one.
    places = [os.path.realpath(Path(folder, path)) for path in paths]
    fits = [fnmatchcase(os.path.relpath(place, os.path.realpath(root)), pattern) for place in places]
    return bool(fits) and (all(fits) if lets_run else any(fits))


def _reaches_out(tool: str, arguments: Mapping[str, Any]) -> bool:
    if _NETWORK_TOOLS.search(tool):
        return True
    texts = [value for value in arguments.values() if isinstance(value, str)]
    return any(_ADDRESS.search(text) or _PROGRAMS.search(text) for text in texts)
