"""Recognises tool calls and bare JSON, which some agents print instead of an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

#: Markup of tool calls and their results, which some agents print instead of an answer.
_TOOL_CALL = re.compile(
    r"^</?(?:\w+:)?(?:[a-z]+_\w+|tools?|action|invoke|function|parameter|observation|bash|think(?:ing)?|system-\w+)\b[^<>\n]{0,200}>"
    r"|^<[|｜][^<>\n]{1,60}[|｜]>|^\[TOOL_CALLS\]|^[⏺●]?\s?\w{1,20}\([^()\n]{0,200}\)\n\s+⎿|^✿\w+✿|^`{3,}tool_"
    r"|^Action(?: Input:|: ?[\w.]{1,60}[ \t]*$)|^\**Tool (?:call|result|use|output|input|name):|^Bash\("
    r"|^to=functions\.\w|^functions\.[\w.-]+(?::\d+)?(?:\(|\s*(?:\(\s*)?\{|<\|)"
    r"|^\*\*\* (?:Begin Patch|(?:Add|Update|Delete) File)|^--- \S+\n\+\+\+ "
    r"|^\{\"(?:name|type)\": ?\"\w+\",[^\n]{0,4000}\"(?:arguments|parameters|input)\": ?\{",
    re.MULTILINE,
)
#: Each set of keys marks a JSON object as a tool call.
_CALL_KEYS = (
    *({"name", arguments} for arguments in ("arguments", "parameters", "input")),
    *({"tool", arguments} for arguments in ("args", "input")),
    {"action", "action_input"},
    {"tool_calls"},
    {"function_call"},
)
_JSON_LINE = re.compile(r"^[\[{]", re.MULTILINE)
_BLANKS = re.compile(r"\s*")
#: So many lines that begin like JSON, but are not, are tried: each may be read to the end of the text.
_MOST_BROKEN = 20


def contains_tool_call(text: str, code: Iterable[str] = ()) -> bool:
    """Return True if a tool call begins at a line of the text, or at the beginning of a block of ``code``."""
    if _TOOL_CALL.search(text) or any(map(_is_json_call, _find_json(text))):
        return True
    return any(_is_json_call(_read_json(block.lstrip(), 0)[0]) for block in code)


def is_bare_json(text: str) -> bool:
    """Return True if a text is nothing but JSON objects, arrays and nulls. Numbers and strings are also plain text."""
    text, end = text.strip(), 0
    while end < len(text):
        value, end = _read_json(text, end)
        if value is not None and not isinstance(value, dict | list):
            return False
    return bool(text)


def _find_json(text: str) -> Iterator[object]:
    broken = end = 0
    for line in _JSON_LINE.finditer(text):
        if line.start() >= end and broken < _MOST_BROKEN:
            value, end = _read_json(text, line.start())
            broken += end == line.start()
            yield value


def _read_json(text: str, start: int) -> tuple[object, int]:
    """Return the JSON value at a position and the position of what follows, or ``""`` and the same position."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return "", start
    return value, _BLANKS.match(text, end).end()  # type: ignore[union-attr]


def _is_json_call(value: object) -> bool:
    """Return True if a JSON value is a tool call, or an array that begins with one."""
    call = value[0] if isinstance(value, list) and value else value
    if not isinstance(call, dict):
        return False
    function = call.get("function")
    return (
        call.get("type") == "tool_use"
        or (isinstance(function, dict) and "arguments" in function)
        or any(keys <= call.keys() for keys in _CALL_KEYS)
    )
