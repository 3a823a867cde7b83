"""Standard output of the Claude CLI (stream-json), line by line: the answer so far, tools, usage. Pure.

The text is joined from the blocks of the assistant's messages (``text``): ``result`` holds only the last of
them. Text that was streamed and then not confirmed (the service broke off, the CLI asks again) is taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_client.contract.tool_calls import ToolQuestion
from worker.enforcement.claims.journal import CallKind, Journal, JournalWriter
from worker.files.safe_io import opened, read
from worker.runners.base import MAX_ANSWER, AgentEvent, AnswerTooLong, json_object

# The answer made of the CLI's messages, and the proof that nothing of it is missing. Pure.
#
# The same text comes twice: on standard output while it is written (``cli_stream``), and in the CLI's own transcript
# (``cli_transcript``). Both join it by the rules here.

#: The CLI's own messages, such as "API Error: ...": not an answer.
SYNTHETIC = "<synthetic>"
PARAGRAPH = "\n\n"
#: What both its language and ours call white space.
_WHITE = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_WHITE += "\u2028\u2029\u202f\u205f\u3000\ufeff"
#: What the CLI says to a model whose message was cut in mid-sentence: the next message goes on right there.
_CUT = "Resume directly"
#: Why a model stopped, where its answer is whole; empty: the CLI does not say.
_WHOLE = frozenset({"", "end_turn", "stop_sequence"})


def cleaned(text: object) -> str:
    """A text that can be stored: a lone surrogate can be written in JSON, but in no file, message or key."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""


def blocks(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message; a plain text is one block."""
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def gap_after(record: Mapping[str, Any]) -> str:
    """Return what is between the text before a ``user`` message and the text after it.

    A blank line after a tool's result, a hook's words or a new message; nothing where the model was cut off and asked
    to go on.
    """
    said = [cleaned(block.get("text")) for block in blocks(record) if block.get("type") == "text"]
    cut = bool(said) and all(_CUT in text for text in said)
    return "" if cut else PARAGRAPH


def trimmed(text: str) -> str:
    """A text without the white space around it, as the CLI trims it; Python alone would leave a byte order mark."""
    return text.strip(_WHITE)


def ends_with(text: str, last: str) -> bool:
    """Return whether an answer ends with its last message. The CLI trims the message it tells its hooks."""
    return trimmed(text).endswith(trimmed(last))


def cut_short(stop_reason: object) -> str:
    """Return why the model stopped before its answer was whole; empty when it did not."""
    reason = str(stop_reason or "")
    return "" if reason in _WHOLE else reason


def longest(*known: str) -> str:
    """The longest of the texts known of an answer that is not whole: each is in order, and they are never mixed."""
    return max(known, key=lambda text: len(trimmed(text)))


#: The CLI's tools -> what a use does, and the name of what it is done to. Tools of MCP servers may do anything.
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


def begin_tool(call: str, name: str, given: Mapping[str, Any], journal: JournalWriter) -> None:
    """Note that the use of a tool begins."""
    kind, key = _KINDS.get(name, ("other", ""))
    journal.begin(call, kind, cleaned(given.get(key) if key else name))


def note_tools(record: Mapping[str, Any], journal: JournalWriter) -> None:
    """Note the uses of tools that a message begins or ends."""
    facts = record.get("tool_use_result")
    for block in blocks(record):
        if block.get("type") == "tool_use":
            begin_tool(str(block.get("id")), str(block.get("name")), _mapping(block, "input"), journal)
        elif block.get("type") == "tool_result":
            said = block.get("content")
            texts = [said] if isinstance(said, str) else [str(_mapped(each).get("text") or "") for each in said or ()]
            text, wrong, more = "\n".join(texts), block.get("is_error") is True, _mapped(facts)
            code = _EXIT.match(text) if wrong else None
            shown = "\n".join(str(more.get(name) or "") for name in ("stdout", "stderr")) if "stdout" in more else text
            journal.end(
                str(block.get("tool_use_id")),
                ok=None if more.get("backgroundTaskId") else not wrong,
                ran=not (wrong and (text.startswith("<tool_use_error>") or _refused(record))),
                output=cleaned(shown),
                code=int(code[1]) if code else None,
                new=more.get("type") == "create",
            )


def _refused(record: Mapping[str, Any]) -> bool:
    """Return whether the CLI did not let a tool run."""
    found = record.get("tool_result_meta")
    each = (_mapped(_mapped(meta).get("permission_decision")) for meta in found) if isinstance(found, list) else ()
    return any(decision.get("decision") not in (None, "accept") for decision in each)


#: What of a tool's input says what it does, the first that is there.
_DETAILS = ("file_path", "path", "pattern", "command", "url", "query", "description")
_DETAIL = 200
_INPUTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class ClaudeStream:
    """Collects one run's output. Feed it every line; it returns what to pass on.

    Attributes:
        result: the last result, empty before the first. error: the kind of error of the CLI's own last message.
        retries: how often the CLI asked the service again. retry_after: its last delay before that, in seconds.
        resets_at: when a used-up subscription may be used again, in seconds since 1970; 0 when the CLI does not say.
        skipped: lines that could not be read.
    """

    def __init__(self, answered: ToolQuestion | None = None) -> None:
        """``answered``: the question that the run goes on from; the CLI says no more of that call than its result."""
        self.result: dict[str, Any] = {}
        self.error = ""
        self.retries = 0
        self.retry_after = 0.0
        self.resets_at = 0.0
        self.skipped = 0
        self._torn = False
        self._settled = ""
        self._open = ""
        self._gap = ""
        self._used: dict[str, int] = {}
        self._spent: dict[str, dict[str, int]] = {}
        self._message = ""
        self._journal = JournalWriter()
        if answered:
            begin_tool(answered.call, answered.tool, answered.arguments, self._journal)

    @property
    def journal(self) -> Journal:
        """The tools that the agent and its subagents used."""
        return self._journal.journal

    @property
    def text(self) -> str:
        """The answer so far, or the fragment of one."""
        return self._settled + self._open

    @property
    def whole(self) -> bool:
        """Return whether nothing of the answer can be missing: each result was the end of the text before it."""
        return bool(self.result) and not self._torn and not self.skipped

    def take_line(self, line: bytes) -> list[AgentEvent]:
        """Read one line; one that is not a JSON object is skipped and counted.

        Raises:
            AnswerTooLong: the answer is longer than an answer may be.
        """
        record = json_object(line)
        if record is None:
            self.skipped += 1
            return []
        if record.get("type") in {"assistant", "user"}:
            note_tools(record, self._journal)
        if record.get("parent_tool_use_id"):
            return []  # a subagent talks to the agent, not to the user
        match record.get("type"):
            case "stream_event":
                return self._streamed(_mapping(record, "event"))
            case "assistant":
                return self._assistant(record)
            case "user":
                self._gap = self._gap or gap_after(record)
            case "system":
                return self._system(record)
            case "rate_limit_event":
                self._note_limit(_mapping(record, "rate_limit_info"))
            case "result":
                self._take_result(record)
        return []

    def usage(self, spent_before: float = 0.0) -> dict[str, Any]:
        """Tokens and cost of this run; ``spent_before`` is the cost of the session it continued, in US dollars.

        The CLI counts a continued session's cost on. Without a result there is no cost, and the tokens are those of the
        messages seen.
        """
        used = dict(self._used)
        if not self.result:
            for message in self._spent.values():
                for name, amount in message.items():
                    used[name] = used.get(name, 0) + amount
        if not used:
            return {}
        usage: dict[str, Any] = dict(used)
        total = self.result.get("total_cost_usd")
        if isinstance(total, int | float):
            usage["cost_usd"] = total - spent_before if total >= spent_before else total
        return usage

    def replace(self, text: str, reason: str) -> list[AgentEvent]:
        """Make another text the answer; a reader who saw something else hears the reason."""
        shown = self.text
        self._settled, self._open = text, ""
        if text.startswith(shown):
            return _output(text[len(shown) :])
        return [AgentEvent(kind="reset", text=reason), *_output(text)]

    def _take_result(self, record: dict[str, Any]) -> None:
        self.result = record
        self._gap = self._gap or PARAGRAPH
        self._torn = self._torn or not ends_with(self.text, cleaned(record.get("result")))
        self._count(_mapping(record, "usage"))
        if record.get("deferred_tool_use"):
            self._journal.wait()

    def _note_limit(self, limit: Mapping[str, Any]) -> None:
        resets_at = limit.get("resetsAt")
        if limit.get("status") == "rejected" and isinstance(resets_at, int | float):
            self.resets_at = float(resets_at)

    def _streamed(self, event: Mapping[str, Any]) -> list[AgentEvent]:
        match event.get("type"):
            case "message_start":
                message = _mapping(event, "message")
                self._message = str(message.get("id"))
                self._note_usage(_mapping(message, "usage"))
                return self._take_back()
            case "message_delta":
                self._note_usage(_mapping(event, "usage"))
            case "content_block_delta":
                delta = _mapping(event, "delta")
                if delta.get("type") == "text_delta":
                    return self._say(cleaned(delta.get("text")))
        return []

    def _say(self, text: str) -> list[AgentEvent]:
        if text and not self._open and self._settled:
            text = self._gap + text
        self._open += text
        self._check()
        return _output(text)

    def _assistant(self, record: Mapping[str, Any]) -> list[AgentEvent]:
        message = _mapping(record, "message")
        if message.get("model") == SYNTHETIC:
            self.error = str(record.get("error") or "")
            return []
        self._message = str(message.get("id"))
        self._note_usage(_mapping(message, "usage"))
        events: list[AgentEvent] = []
        for block in blocks(record):
            if block.get("type") == "text":
                events += self._settle(cleaned(block.get("text")))
            elif block.get("type") == "tool_use":
                name, given = str(block.get("name")), _mapping(block, "input")
                detail = next((str(given[key]) for key in _DETAILS if given.get(key)), "")
                events.append(AgentEvent(kind="tool", text=name, detail=cleaned(detail)[:_DETAIL]))
        return events

    def _settle(self, text: str) -> list[AgentEvent]:
        """A whole block has come: what was streamed of it is confirmed, completed or taken back."""
        if not text:
            return self._take_back()
        before, shown = self._settled, self.text
        self._settled = before + (self._gap if before else "") + text
        self._open, self._gap = "", ""
        self._check()
        if self._settled.startswith(shown):
            return _output(self._settled[len(shown) :])
        return [AgentEvent(kind="reset", text="the answer was written again"), *_output(self._settled)]

    def _take_back(self) -> list[AgentEvent]:
        if not self._open:
            return []
        self._open = ""
        return [AgentEvent(kind="reset", text="the answer broke off"), *_output(self._settled)]

    def _system(self, record: Mapping[str, Any]) -> list[AgentEvent]:
        match record.get("subtype"):
            case "api_retry":
                self.retries += 1
                delay = record.get("retry_delay_ms")
                self.retry_after = delay / 1000 if isinstance(delay, int | float) else 0.0
                status = record.get("error_status") or record.get("error") or "no answer"
                return [*self._take_back(), AgentEvent(kind="note", text=f"the service is asked again: {status}")]
            case "permission_denied":
                return [AgentEvent(kind="note", text=f"not allowed: {cleaned(record.get('tool_name'))}")]
        return []

    def _check(self) -> None:
        if len(self._settled) + len(self._open) > MAX_ANSWER:
            raise AnswerTooLong

    def _note_usage(self, usage: Mapping[str, Any]) -> None:
        """Each message reports its own usage, growing: the last report of a message counts."""
        self._spent.setdefault(self._message, {}).update(_tokens(usage))

    def _count(self, usage: Mapping[str, Any]) -> None:
        """One process may tell several results (background tasks); each counts its own turn."""
        for name, amount in _tokens(usage).items():
            self._used[name] = self._used.get(name, 0) + amount


def _tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    if any(isinstance(usage.get(name), int) for name in _INPUTS):
        found["input_tokens"] = sum(usage[name] for name in _INPUTS if isinstance(usage.get(name), int))
    if isinstance(usage.get("output_tokens"), int):
        found["output_tokens"] = usage["output_tokens"]
    return found


def _output(text: str) -> list[AgentEvent]:
    return [AgentEvent(kind="output", text=text)] if text else []


def _mapping(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _mapped(holder.get(name))


def _mapped(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# The answer of one run, read back from the CLI's own transcript when standard output did not bring it whole.
#
# A run's transcript begins with the conversation it continues. The run's own part begins behind its prompt, which the
# CLI records word for word.

#: Largest transcript that is read or kept, in bytes.
MAX_TRANSCRIPT = 256 * 2**20


class NotReadable(Exception):
    """The transcript does not show this run's answer. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The part of a transcript about one run.

    Attributes:
        text: the answer. last: its last message, maybe empty. stop_reason: why the model stopped after that one.
    """

    text: str = ""
    last: str = ""
    stop_reason: str = ""

    def lacks(self, message: str) -> bool:
        """Return whether the last message that the Stop hook heard is not at its end."""
        return not ends_with(self.text, message) or bool(trimmed(message)) is not bool(trimmed(self.last))


def content_of(transcript: str, session: str, home: Path) -> bytes:
    """The bytes of a run's transcript.

    Args:
        transcript: its path, as the CLI gave it to its hooks.
        session: the run's agent session, which names the file.
        home: the run's HOME, below which it must lie.

    Raises:
        OSError: it lies elsewhere, belongs to another session, is not a regular file or too large.
    """
    source = Path(transcript)
    if source.name != f"{session}.jsonl":
        raise OSError("the transcript is not this run's")
    if not source.resolve().is_relative_to(home.resolve()):
        raise OSError("the transcript is not in the run's own HOME")
    with opened(source.parent) as folder:
        return read(source.name, folder, MAX_TRANSCRIPT)


def recorded(content: bytes, session: str, prompt: bytes, before: bytes = b"") -> Recorded:
    """Return what a transcript holds of the run that was given this prompt.

    Args:
        content: the transcript.
        session: the run's agent session.
        prompt: what the run got on standard input.
        before: the transcript the run continued from; what is there too is not of this run.

    Raises:
        NotReadable: the run's prompt is not in it, or its answer is longer than an answer may be.
    """
    asked = prompt.decode("utf-8", "replace").strip()
    pieces: list[str] | None = None
    gap = last = stop_reason = message = ""
    for record in _records(content, session):
        kind = record["type"]
        if kind == "user" and not record.get("isMeta") and _said(record).strip() == asked:
            new = str(record.get("uuid") or "").encode() not in before if before else True
            pieces, gap, last, stop_reason, message = [] if new else None, "", "", "", ""
        elif pieces is None:
            continue
        elif kind == "user":
            gap = gap or gap_after(record)
        else:
            stop_reason = str(record["message"].get("stop_reason") or "")
            last = last if message == record["message"].get("id") else ""
            message = record["message"].get("id")
            for block in blocks(record):
                if block.get("type") == "text":
                    last = cleaned(block.get("text"))
                    pieces += [gap if pieces else "", last] if last else []
                    gap = "" if last else gap
    if pieces is None:
        raise NotReadable("the transcript does not hold this run's prompt")
    text = "".join(pieces)
    if len(text) > MAX_ANSWER:
        raise NotReadable(f"its answer is longer than {MAX_ANSWER} characters")
    return Recorded(text=text, last=last, stop_reason=stop_reason)


def _records(content: bytes, session: str) -> Iterator[dict[str, Any]]:
    """The messages of user and model, in order; not those of subagents, and not the CLI's own.

    Raises:
        NotReadable: a line is torn, so a message may be missing.
    """
    for number, line in enumerate(filter(bytes.strip, content.split(b"\n")), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise NotReadable(f"line {number} of the transcript is torn") from None
        if not isinstance(record, dict) or record.get("type") not in {"user", "assistant"} or record.get("isSidechain"):
            continue
        message = record.get("message")
        if record.get("sessionId") == session and isinstance(message, dict) and message.get("model") != SYNTHETIC:
            yield record


def _said(record: dict[str, Any]) -> str:
    return "\n".join(cleaned(block.get("text")) for block in blocks(record) if block.get("type") == "text")
