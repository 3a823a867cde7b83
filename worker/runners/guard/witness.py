"""The witness at the door: reads along what a provider reports about the end of each model call.

It reads piece by piece what passes by, and holds back nothing. Of an event stream it parses only the events that may
tell an end; of other answers it keeps at most ``_MOST_KEPT`` bytes. Nothing of a prompt or an answer leaves it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from worker.files.recording import CALLS
from worker.runners.answer_words import digests_in, digests_of
from worker.runners.guard.call_texts import CallRequest, answer_text, request_of
from worker.runners.pricing import TOKENS, Tokens, summed
from worker.runners.service_errors import END_WORDS, TOO_LONG, is_spent, status_of, wait_of
from worker.runners.witnessed import MOST_CALLS, WENT_ON, Api, Call, CallEnd, ObservedCalls, word_of

#: Longest event, and longest answer in one piece, that is read; of a longer one nobody knows the end. In bytes.
_MOST_KEPT = 4 * 2**20
#: So much is kept of a stream's beginning: its text may have to be found in the answer. In bytes.
_MOST_BEGINNING = 2**17
#: Of an error so much is read, in bytes.
_MOST_ERROR = 16_384
_OVERLAP = 256
#: Of an estimate: bytes of a token, and of an event around the text of one.
_BYTES, _FRAME = 4, 300
#: So much of an error's message is looked at, in characters.
_MOST_SAID = 1000
#: Between two events, where lines end with a line feed alone.
_BLANK = b"\n\n"
#: How an event stream begins that is not called one.
_STREAM = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry|):")
_TO_SNIFF = 16
_GEMINI = re.compile(r"/models/([^/:]+):(?:stream)?[gG]enerateContent$")

#: In the file of a record: the number of a line's call.
_NUMBER = "call"

_Facts = dict[str, Any]


def api_of(path: str) -> Api | None:
    """The form of a model call, by its path; None for another request, such as counting tokens."""
    if path.endswith("/messages"):
        return "messages"
    if path.endswith(("/responses", "/responses/compact")):
        return "responses"
    if path.endswith("/chat/completions"):
        return "chat"
    return "gemini" if _GEMINI.search(path) else None


def model_in(path: str) -> str:
    """Return the model that a path names; empty where the body names it."""
    named = _GEMINI.search(path)
    return named[1] if named else ""


# What the providers say. Each reads one event or one whole answer, and returns what of a ``Call`` it tells.
_WORDS: Mapping[str, Mapping[str, CallEnd]] = {
    form: {word: CallEnd(end) for end, words in ends.items() for word in words} for form, ends in END_WORDS.items()
}
#: Items of a Responses answer that its asker is to carry out; others are the provider's own tools.
_ASKED = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"}
)


def _end(form: str, said: object) -> _Facts:
    known = _WORDS[form].get(str(said)) or _WORDS[form].get(str(said).lower(), CallEnd.UNKNOWN)
    return {"end": known, "word": word_of(said)} if said else {}


def _error(found: object) -> _Facts:
    """An error of any of them: its kind, never its message; but many say by that alone what is wrong."""
    facts: Mapping[str, Any] = found if isinstance(found, dict) else {"message": found}
    kinds = [word_of(facts.get(name)) for name in ("type", "code", "status")]
    said = f"{kinds} {facts.get('message')}"[:_MOST_SAID]
    word = next((word for word in kinds if word not in {"", "None"}), "error")
    word = "insufficient_quota" if is_spent(0, said) else "context_length_exceeded" if TOO_LONG.search(said) else word
    return {"end": CallEnd.ERROR, "word": word, "status": status_of(found), "retry_after": wait_of({}, found)}


def _counts(usage: object, *names: str) -> _Facts:
    """Return the ``TOKENS`` of a provider's usage. ``names``: its words for each; ``+`` adds, ``.`` leads into one."""
    found = (sum(max(0, _number(usage, name)) for name in words.split("+")) for words in names)
    return {name: amount for name, amount in zip(TOKENS, found, strict=False) if amount}


def _number(usage: object, path: str) -> int:
    name, _, rest = path.partition(".")
    value = usage.get(name) if isinstance(usage, dict) else None
    return _number(value, rest) if rest else value if type(value) is int else 0


def _of_messages(said: _Facts) -> _Facts:
    kind = said.get("type")
    if kind == "error":
        return _error(said.get("error"))
    message = said["message"] if kind == "message_start" else said
    facts = {} if kind == "message_start" else _end("messages", said.get("delta", said).get("stop_reason"))
    read, written = "cache_read_input_tokens", "cache_creation_input_tokens"
    hour = "cache_creation.ephemeral_1h_input_tokens"
    counts = _counts(message.get("usage"), f"input_tokens+{read}+{written}", "output_tokens", read, written, hour)
    return {"model": message.get("model"), **facts, **counts}


def _of_responses(said: _Facts) -> _Facts:
    kind = str(said.get("type", ""))
    if kind == "error" or (said.get("error") and "status" not in said):
        return _error(said.get("error") or said)
    if kind == "response.output_item.done":
        return _items([said["item"]])
    whole = said["response"] if kind.startswith("response.") else said
    status, facts = str(whole.get("status")), {}
    if status == "incomplete":
        facts = _end("incomplete", (whole.get("incomplete_details") or {}).get("reason") or status)
    elif status == "failed":
        facts = _error(whole.get("error"))
    elif status not in {"in_progress", "queued"} or not kind:
        facts = _end("responses", status)
    details = "input_tokens_details"
    read, written = f"{details}.cached_tokens", f"{details}.cache_write_tokens"
    counts = _counts(whole.get("usage"), "input_tokens", "output_tokens", read, written)
    return {"model": whole.get("model"), **facts, **_items(whole.get("output") or []), **counts}


def _items(items: Iterable[_Facts]) -> _Facts:
    found: _Facts = {}
    for item in items:
        if item.get("type") in _ASKED:
            found["asked"] = True
        if any(part.get("type") == "refusal" for part in item.get("content") or () if isinstance(part, dict)):
            found["refused"] = True
    return found


def _of_chat(said: _Facts) -> _Facts:
    if said.get("error"):
        return _error(said["error"])
    details = "prompt_tokens_details"
    read, written = f"{details}.cached_tokens", f"{details}.cache_write_tokens"
    counts = _counts(said.get("usage"), "prompt_tokens", "completion_tokens", read, written)
    found: _Facts = {"model": said.get("model"), **counts}
    for choice in said.get("choices") or ():
        if choice.get("index", 0) == 0:
            part = choice.get("delta") or choice.get("message") or {}
            found |= _end("chat", choice.get("finish_reason"))
            found |= {"asked": True} if part.get("tool_calls") or part.get("function_call") else {}
            found |= {"refused": True} if part.get("refusal") else {}
    return found


def _of_gemini(said: _Facts) -> _Facts:
    if said.get("error"):
        return _error(said["error"])
    given = "candidatesTokenCount+thoughtsTokenCount"
    counts = _counts(said.get("usageMetadata"), "promptTokenCount", given, "cachedContentTokenCount")
    found = {"model": said.get("modelVersion"), **counts}
    if blocked := (said.get("promptFeedback") or {}).get("blockReason"):
        return {**found, "end": CallEnd.REFUSED, "word": word_of(blocked)}
    for candidate in (said.get("candidates") or ())[:1]:
        parts = (candidate.get("content") or {}).get("parts") or ()
        found |= {"asked": True} if any("functionCall" in part for part in parts) else {}
        found |= _end("gemini", candidate.get("finishReason"))
    return found


@dataclass(frozen=True, slots=True)
class _Form:
    """How one API tells an end: the reader of an event, and texts in the events that may tell something.

    Of events with ``last`` only the last one counts: many services send the tokens so far with each piece.
    """

    read: Callable[[_Facts], _Facts]
    telling: tuple[bytes, ...]
    last: bytes = b""

    def events(self, lines: bytes) -> list[bytes]:
        """The events in some lines that are worth reading: to look for a text is much cheaper than to parse."""
        found: dict[int, int] = {}
        for words in self.telling:
            at = lines.find(words)
            while at >= 0:
                end = lines.find(_BLANK, at)
                end = len(lines) if end < 0 else end
                found[lines.rfind(_BLANK, 0, at) + 1] = end
                at = lines.find(words, end)
        return [lines[start : found[start]] for start in sorted(found)]

    def last_event(self, lines: bytes) -> bytes:
        """The last event in some lines that holds ``last``; empty for none."""
        if not self.last or (at := lines.rfind(self.last)) < 0:
            return b""
        return lines[lines.rfind(_BLANK, 0, at) + 1 :].lstrip(b"\n").partition(_BLANK)[0]


def _spaced(*words: str) -> tuple[bytes, ...]:
    """The same with and without a space behind each colon."""
    return tuple(form.encode() for word in words for form in (word, word.replace(":", ": ")))


_ENDED = ("completed", "incomplete", "failed", "cancelled", "output_item.done")
_FORMS: dict[Api, _Form] = {
    "messages": _Form(_of_messages, (b"message_start", b"message_delta", b'"error"')),
    "responses": _Form(_of_responses, (b'"error"', *(f'"response.{word}"'.encode() for word in _ENDED))),
    "chat": _Form(
        _of_chat,
        _spaced('"finish_reason":"', '"error":{', '"error":"', '"tool_calls":[', '"function_call":{', '"refusal":"'),
        last=b'"prompt_tokens"',
    ),
    "gemini": _Form(
        _of_gemini, (b"finishReason", b"functionCall", b"blockReason", b'"error"'), last=b'"promptTokenCount"'
    ),
}


class BrokenFraming(ConnectionError):
    """An answer's framing cannot be read."""


class AnswerFraming:
    """Finds the end of an answer's body in what its connection brings (RFC 9112, 6 and 7)."""

    def __init__(self, headers: Mapping[bytes, bytes], *, bodyless: bool) -> None:
        self._chunked = headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked")
        length = headers.get(b"content-length")
        #: Bytes still to come of the body, or of its present chunk; None: until the connection ends.
        self._left: int | None = 0 if self._chunked or bodyless else int(length) if length else None
        self._rest, self._trailers = b"", False
        self.over = bodyless or (self._left == 0 and not self._chunked)
        #: Something came behind the end.
        self.surplus = False

    @property
    def until_closed(self) -> bool:
        """Return whether only the end of the connection ends it."""
        return self._left is None

    def take(self, raw: bytes) -> bytes:
        """Return what of the body is in a piece. Raises ``BrokenFraming``: it is not framed as its head said."""
        if self._chunked:
            return b"".join(self._chunks(raw))
        if self._left is None:
            return raw
        self.surplus = len(raw) > self._left
        piece = raw[: self._left]
        self._left -= len(piece)
        self.over = not self._left
        return piece

    def _chunks(self, raw: bytes) -> Iterable[bytes]:
        data, at = self._rest + raw, 0
        self._rest = b""
        while not self.over and at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                at += len(piece)
                yield piece
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._rest = data[at:]
                if len(self._rest) > _MOST_ERROR:
                    raise BrokenFraming("a chunk's size is too long")
                return
            line, at = data[at:end].strip(), end + 1
            if self._trailers:
                self.over = not line
            elif line:
                try:
                    self._left = int(line.partition(b";")[0], 16)
                except ValueError:
                    self._left = -1
                if self._left < 0:
                    raise BrokenFraming("a chunk has no size")
                self._trailers = not self._left
        self.surplus = at < len(data)


class Record:
    """The calls of a run, while it runs. Used by many threads.

    With a ``path`` a line of that file has each call as it began, as more was known, and as it ended: for who adopts
    the run.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, Call | CallListener] = {}
        self._begun = self._since = self._left_out = 0
        self._sums: dict[str, Tokens] = {}
        self._path = path
        #: Calls that ended badly and were not repeated, by their numbers: what they asked.
        self._unmet: dict[int, CallRequest] = {}
        #: How many calls ended badly, one after the other, until now.
        self.failures = 0

    def begin(self, path: str) -> CallListener | None:
        """Listen to a call; None where the path belongs to no model call."""
        api = api_of(path)
        if api is None:
            return None
        call = Call(api=api, model=word_of(model_in(path)), started=time.time())
        with self._lock:
            listening = CallListener(call, self._begun, self._note, self._met_by)
            self._calls[self._begun] = listening
            self._begun += 1
            if len(self._calls) > MOST_CALLS:
                self._leave_out()
            self._write(listening.number, call)
        return listening

    def _leave_out(self) -> None:
        """Keep of the oldest call that has ended its tokens alone."""
        number, call = next(((n, c) for n, c in self._calls.items() if isinstance(c, Call)), (0, None))
        if call:
            del self._calls[number]
        if call and number >= self._since:
            self._left_out += 1
            self._sums = summed([(call.model, call.counted)], self._sums)

    def _note(self, listening: CallListener, call: Call) -> None:
        """More is known of a call; one that has ended is all that is kept of it."""
        with self._lock:
            self._put(listening.number, call)
            if call.ended:
                self.failures = 0 if call.end in WENT_ON else self.failures + 1
            if call.ended and call.end not in WENT_ON:
                self._unmet[listening.number] = replace(listening.request, text="", end="")
            elif call.ended:
                self._excuse(listening)

    def _put(self, number: int, call: Call) -> None:
        if call.ended and number in self._calls:
            self._calls[number] = call
        self._write(number, call)

    def _met_by(self, listening: CallListener) -> None:
        """Note which earlier calls a call repeats, by its request, which has passed."""
        with self._lock:
            for number in [each for each, earlier in self._unmet.items() if listening.request.repeats(earlier)]:
                self._meet(number)

    def _excuse(self, listening: CallListener) -> None:
        """Note of earlier calls what this one wrote too, without having read it: it was asked in other words."""
        for number in list(self._unmet):
            call = self._calls.get(number)
            if isinstance(call, Call) and (found := digests_in(call.digests, listening.text)):
                found -= digests_in(found, listening.request.text)
                left = tuple(digest for digest in call.digests if digest not in found)
                self._put(number, replace(call, digests=left)) if left else self._meet(number)

    def _meet(self, number: int) -> None:
        del self._unmet[number]
        if isinstance(call := self._calls.get(number), Call):
            self._put(number, replace(call, repeated=True))

    def _write(self, number: int, call: Call) -> None:
        if self._path:
            with contextlib.suppress(OSError), self._path.open("a", encoding="ascii") as lines:
                lines.write(json.dumps({_NUMBER: number, **call.to_dict()}) + "\n")

    def count(self) -> int:
        """Return how many calls have begun: a place to look from later, and from now on the only one but 0."""
        with self._lock:
            self._since, self._left_out, self._sums = self._begun, 0, {}
            return self._begun

    def seen(self, since: int = 0) -> ObservedCalls:
        """The calls that began after the first ``since``, which is 0 or what ``count`` returned last."""
        with self._lock:
            calls = [call for number, call in self._calls.items() if number >= since]
            found = [call if isinstance(call, Call) else call.so_far() for call in calls]
            return ObservedCalls(calls=found, left_out=self._left_out, sums=self._sums)


def path_of(directory: Path) -> Path:
    """The file of a delivery's calls, beside its folder."""
    return directory.with_name(f"{directory.name}{CALLS}")


def adopted(directory: Path, since: int = 0) -> ObservedCalls | None:
    """The calls of a run whose worker died, after the first ``since``; None where they were not recorded."""
    return read(path_of(directory), since)


def read(path: Path, since: int = 0) -> ObservedCalls | None:
    """The calls in the file of a record, after the first ``since``; None where there is none."""
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, ValueError):
        return None
    names, calls = {field.name for field in fields(Call)}, dict[int, Call]()
    for at, line in enumerate(lines):
        with contextlib.suppress(ValueError, TypeError, AttributeError, KeyError):
            facts = json.loads(line)
            kept = {name: value for name, value in facts.items() if name in names}
            # Of a worker before this numbering each line is a call.
            calls[int(facts.get(_NUMBER, at))] = Call(
                **(kept | {"end": CallEnd(kept["end"]), "digests": tuple(kept.get("digests", ()))})
            )
    found = [calls[number] for number in sorted(calls) if number >= since]
    earlier = found[:-MOST_CALLS]
    sums = summed([(call.model, call.counted) for call in earlier], {})
    return ObservedCalls(calls=found[-MOST_CALLS:], left_out=len(earlier), sums=sums)


class CallListener:
    """One call, while it is asked and answered. Used by one thread, but for ``so_far``."""

    def __init__(
        self,
        call: Call,
        number: int,
        report: Callable[[CallListener, Call], None],
        asked: Callable[[CallListener], None],
    ) -> None:
        self._call, self.number, self._report, self._asked = call, number, report, asked
        self._body, self._beginning = bytearray(), bytearray()
        self._form = _FORMS[call.api]
        self._sent = self._events = self._bytes = 0
        self._facts: _Facts = {}
        self._kept = bytearray()
        self._last = b""
        self._streamed = self._sniffs = self._too_long = self._over = False
        self._unpack: Any = None
        self._unreadable = ""

    def asked(self, body: bytes, model: str, *, tools: bool) -> None:
        """The request's body passes by, with the model that it names; ``tools``: it offers some."""
        self._body, self._sent = bytearray(body), len(body)
        self._call = replace(self._call, model=word_of(model), tools=tools)
        self._report(self, self.so_far())

    def refuse(self, status: int, word: str) -> None:
        """The call is not passed on; ``word``: for what."""
        self._call, self._facts = replace(self._call, status=status), {"word": word_of(f"model proxy: {word}")}
        self.close(whole=True)

    def answered(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """The answer's head passes by; names in small letters."""
        self._asked(self)
        wait = wait_of({name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()})
        self._call = replace(self._call, status=status, retry_after=wait)
        kind = headers.get(b"content-type", b"").lower()
        self._streamed = b"event-stream" in kind and status < 400
        self._sniffs = not self._streamed and b"json" not in kind and status < 400
        match headers.get(b"content-encoding", b"identity").lower().strip():
            case b"identity" | b"":
                pass
            case b"gzip" | b"x-gzip" | b"deflate":
                self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
            case other:
                self._unreadable = f"content-encoding:{other.decode('latin-1')}"

    def heard(self, piece: bytes, *, whole: bool = False) -> None:
        """A piece of the answer's body passes by; ``whole``: with it the answer is."""
        unknown = "end" not in self._facts
        self._bytes += len(piece)
        self._events += piece.count(b"data:") if self._streamed else 0
        if piece and not self._unreadable:
            self._hear(piece)
        if whole:
            self.close(whole=True)
        elif unknown and "end" in self._facts:
            self._report(self, self.so_far())

    def _hear(self, piece: bytes) -> None:
        if self._unpack:
            try:
                piece = self._unpack.decompress(piece, _MOST_KEPT)
            except zlib.error:
                self._unreadable = "content-encoding"
                return
        if self._sniffs and len(self._kept) + len(piece) >= _TO_SNIFF:
            self._sniffs = False
            if _STREAM.match(bytes(self._kept) + piece[:_TO_SNIFF]):
                self._streamed = True
        if not self._streamed:
            self._too_long = self._too_long or len(self._kept) + len(piece) > _MOST_KEPT
            if not self._too_long:
                self._kept += piece
            return
        self._beginning += piece[: _MOST_BEGINNING - len(self._beginning)]
        if b"\n" not in piece:
            self._keep(piece)
            return
        said = bytes(self._kept) + piece if self._kept else piece
        lines, blank, rest = (said.replace(b"\r\n", b"\n") if b"\r" in said else said).rpartition(_BLANK)
        self._kept.clear()
        lines += blank
        if rest:
            self._keep(rest)
        self._take(lines)

    def _keep(self, rest: bytes) -> None:
        """The beginning of an event; of one that is too long only its end is kept."""
        self._kept += rest
        if len(self._kept) > _MOST_KEPT:
            self._too_long = True
            del self._kept[:-_OVERLAP]

    def _take(self, lines: bytes) -> None:
        self._last = self._form.last_event(lines) or self._last
        for event in self._form.events(lines):
            self._event(event)

    def _event(self, event: bytes) -> None:
        """One event: its data may have several lines; some services forget the blank line between two."""
        data = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
        if not self._read(b"\n".join(data)) and len(data) > 1:
            for each in data:
                self._read(each)

    def _read(self, said: bytes) -> bool:
        """Take in one event, or a whole answer; what cannot be read tells nothing: False."""
        try:
            found = json.loads(said)
            for part in found if isinstance(found, list) else [found]:
                facts = self._form.read(part)
                counted = {name: max(facts[name], self._facts.get(name, 0)) for name in TOKENS if name in facts}
                self._facts |= {name: value for name, value in facts.items() if value} | counted
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False
        return True

    def close(self, *, whole: bool, why: str = "") -> None:
        """The call is over: its answer came ``whole``, or not, and ``why``. Only the first time counts."""
        if self._over:
            return
        self._over = True
        if self._streamed:
            self._take(bytes(self._kept))
            if "input_tokens" not in self._facts:
                self._event(self._last)
        elif not self._unreadable and not self._too_long and (whole or self._call.status >= 400):
            self._read(bytes(self._kept[: _MOST_ERROR if self._call.status >= 400 else None]))
        self._report(self, replace(self._call, **self._known(whole, why), ended=time.time()))
        self._kept, self._beginning, self._body = bytearray(), bytearray(), bytearray()

    def so_far(self) -> Call:
        """The call as it is now. For any thread."""
        return replace(self._call, **self._known(whole=False, why=""))

    @functools.cached_property
    def request(self) -> CallRequest:
        """What was asked; to be read once all of it has passed."""
        return request_of(bytes(self._body))

    @property
    def text(self) -> str:
        """The beginning of what the model wrote."""
        return answer_text(bytes(self._beginning if self._streamed else self._kept), streamed=self._streamed)

    def _known(self, whole: bool, why: str) -> _Facts:
        """Everything known of it, with the digests of a text whose place in an answer may have to be known."""
        found = self._found(whole, why)
        went_on = found["end"] in WENT_ON
        if not (went_on and self._call.tools):
            found["digests"] = digests_of(self.text, cut=not went_on)
        return found

    def _found(self, whole: bool, why: str) -> _Facts:
        facts, call = dict(self._facts), self._call
        if "status" in facts:  # of an error in an answer, or of one that its gateway calls a 5xx
            facts["status"] = status_of({"code": facts["status"]}, call.status)
        if call.retry_after:
            facts.pop("retry_after", None)
        asked, refused = facts.pop("asked", False), facts.pop("refused", False)
        model = call.model or word_of(facts.pop("model", ""))
        facts.pop("model", None)
        end = facts.get("end")
        if call.status >= 300:
            return {**facts, "end": CallEnd.ERROR, "model": model}
        if not why and self._sent and (end is None or (end is not CallEnd.ERROR and "input_tokens" not in facts)):
            facts |= self._estimated(facts)
        if end is CallEnd.WELL and (asked or refused):
            facts["end"] = CallEnd.TOOL if asked else CallEnd.REFUSED
        elif end is None and not call.status:
            facts |= {"end": CallEnd.ERROR if why else CallEnd.CUT, "word": word_of(why)}
        elif end is None:
            unknown = self._unreadable or ("too long" if self._too_long else "") or ("" if self._streamed else "unread")
            facts["end"] = CallEnd.UNKNOWN if unknown and whole else CallEnd.CUT
            facts["word"] = word_of(unknown if whole else why)
        return {**facts, "model": model}

    def _estimated(self, facts: _Facts) -> _Facts:
        """Return what a call used whose provider named no number, or not the last: rather too much than too little."""
        said = self._bytes // _BYTES
        if self._streamed:
            said = max(self._events, (self._bytes - _FRAME * self._events) // _BYTES)
        taken, given = facts.get("input_tokens") or self._sent // _BYTES + 1, facts.get("output_tokens", 0)
        return {"input_tokens": taken, "output_tokens": max(given, said), "estimated": True}
