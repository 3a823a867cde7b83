"""Joins the CLI's messages to one answer, from standard output or transcript, and checks that no part is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from worker.enforcement.tool_call_log import CallKind, ToolCallRecorder

#: Model name of the CLI's own messages, such as "API Error: ...".
SYNTHETIC = "<synthetic>"
PARAGRAPH = "\n\n"
#: Characters that JavaScript and Python together treat as white space.
_WHITE = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_WHITE += "\u2028\u2029\u202f\u205f\u3000\ufeff"
#: The CLI's request to a model whose message was cut in mid-sentence.
_CUT = "Resume directly"
#: Stop reasons of a complete answer; empty if the CLI gives none.
_WHOLE = frozenset({"", "end_turn", "stop_sequence"})


def clean_text(text: object) -> str:
    """Return the text with lone surrogates replaced, or an empty string if the value is not a text."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""


def content_blocks(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content blocks of a message. Plain text becomes a single block."""
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def gap_after(record: Mapping[str, Any]) -> str:
    """Return the separator between the parts of an answer before and after a ``user`` message.

    A blank line, or nothing if the model was cut off and asked to continue.
    """
    said = [clean_text(block.get("text")) for block in content_blocks(record) if block.get("type") == "text"]
    cut = bool(said) and all(_CUT in text for text in said)
    return "" if cut else PARAGRAPH


def trim_text(text: str) -> str:
    """Return the text without surrounding white space, as the CLI defines white space."""
    return text.strip(_WHITE)


def ends_with(text: str, last: str) -> bool:
    """Return True if an answer ends with this message, ignoring surrounding white space."""
    return trim_text(text).endswith(trim_text(last))


def find_cut_reason(stop_reason: object) -> str:
    """Return why the model stopped early, or an empty string if the answer is complete."""
    reason = str(stop_reason or "")
    return "" if reason in _WHOLE else reason


def longest_text(*known: str) -> str:
    """Return the longest of the given texts, ignoring surrounding white space."""
    return max(known, key=lambda text: len(trim_text(text)))


#: The CLI's tools -> kind of call, and the argument that names its object. MCP tools may do anything.
_READING = (
    "Read Glob Grep LS LSP WebFetch WebSearch TodoWrite TodoRead Task Agent Skill TaskOutput BashOutput TaskStop"
    " KillShell ToolSearch AskUserQuestion ExitPlanMode"
)
_KINDS: Mapping[str, tuple[CallKind, str]] = {
    **dict.fromkeys(("Write", "Edit", "MultiEdit"), ("write", "file_path")),
    "NotebookEdit": ("write", "notebook_path"),
    **dict.fromkeys(("Bash", "PowerShell"), ("run", "command")),
    **dict.fromkeys(_READING.split(), ("read", "")),
}
_EXIT = re.compile(r"Exit code (\d+)")


def journal_tool_start(call: str, name: str, given: Mapping[str, Any], tool_calls: ToolCallRecorder) -> None:
    """Record in ``tool_calls`` that a call of the tool ``name`` has started."""
    kind, key = _KINDS.get(name, ("other", ""))
    tool_calls.begin(call, kind, clean_text(given.get(key) if key else name))


def journal_tools(record: Mapping[str, Any], tool_calls: ToolCallRecorder) -> None:
    """Record in ``tool_calls`` which tool calls a message starts and ends."""
    facts = record.get("tool_use_result")
    for block in content_blocks(record):
        if block.get("type") == "tool_use":
            journal_tool_start(str(block.get("id")), str(block.get("name")), _get_mapping(block, "input"), tool_calls)
        elif block.get("type") == "tool_result":
            said = block.get("content")
            texts = (
                [said] if isinstance(said, str) else [str(_as_mapping(each).get("text") or "") for each in said or ()]
            )
            text, wrong, more = "\n".join(texts), block.get("is_error") is True, _as_mapping(facts)
            code = _EXIT.match(text) if wrong else None
            shown = "\n".join(str(more.get(name) or "") for name in ("stdout", "stderr")) if "stdout" in more else text
            tool_calls.end(
                str(block.get("tool_use_id")),
                ok=None if more.get("backgroundTaskId") else not wrong,
                ran=not (wrong and (text.startswith("<tool_use_error>") or _was_refused(record))),
                output=clean_text(shown),
                code=int(code[1]) if code else None,
                new=more.get("type") == "create",
            )


def _was_refused(record: Mapping[str, Any]) -> bool:
    found = record.get("tool_result_meta")
    each = (
        (_as_mapping(_as_mapping(meta).get("permission_decision")) for meta in found) if isinstance(found, list) else ()
    )
    return any(decision.get("decision") not in (None, "accept") for decision in each)


def _get_mapping(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _as_mapping(holder.get(name))


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
