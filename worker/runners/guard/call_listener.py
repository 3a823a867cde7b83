"""Observe one model call as its bytes pass the model proxy, without delaying them.

Keeps at most ``_MOST_KEPT`` bytes of a response; prompts and answers never leave this module.
"""

from __future__ import annotations

import functools
import json
import re
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from worker.runners.answer_words import digests_of
from worker.runners.guard.call_texts import CallRequest, answer_text, request_of
from worker.runners.guard.provider_reports import BLANK, FORMS, Facts
from worker.runners.pricing import TOKENS
from worker.runners.service_errors import status_of, wait_of
from worker.runners.witnessed import WENT_ON, Call, CallEnd, word_of

#: Largest parsed event or unstreamed response, in bytes.
_MOST_KEPT = 4 * 2**20
#: Bytes kept from the start of a stream.
_MOST_BEGINNING = 2**17
#: Bytes of an error response that are parsed.
_MOST_ERROR = 16_384
_OVERLAP = 256
#: For estimates: bytes per token, and bytes of an event around its text.
_BYTES, _FRAME = 4, 300
#: Start of an event stream that lacks the right content type.
_STREAM = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry|):")
_TO_SNIFF = 16


class CallListener:
    """Observes one call; used by one thread, except ``so_far``."""

    def __init__(
        self,
        call: Call,
        number: int,
        report: Callable[[CallListener, Call], None],
        asked: Callable[[CallListener], None],
    ) -> None:
        self._call, self.number, self._report, self._asked = call, number, report, asked
        self._body, self._beginning = bytearray(), bytearray()
        self._form = FORMS[call.api]
        self._sent = self._events = self._bytes = 0
        self._facts: Facts = {}
        self._kept = bytearray()
        self._last = b""
        self._streamed = self._sniffs = self._too_long = self._over = False
        self._unpack: Any = None
        self._unreadable = ""

    def asked(self, body: bytes, model: str, *, tools: bool) -> None:
        """Observe the request body, the model that it names, and whether it offers ``tools``."""
        self._body, self._sent = bytearray(body), len(body)
        self._call = replace(self._call, model=word_of(model), tools=tools)
        self._report(self, self.so_far())

    def refuse(self, status: int, word: str) -> None:
        """Log that the proxy refused the call because of ``word``."""
        self._call, self._facts = replace(self._call, status=status), {"word": word_of(f"model proxy: {word}")}
        self.close(whole=True)

    def answered(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Observe the response head; header names are in lower case."""
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
        """Observe a piece of the response body; ``whole`` marks the last piece."""
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
        lines, blank, rest = (said.replace(b"\r\n", b"\n") if b"\r" in said else said).rpartition(BLANK)
        self._kept.clear()
        lines += blank
        if rest:
            self._keep(rest)
        self._take(lines)

    def _keep(self, rest: bytes) -> None:
        """Buffer the start of an event; of a too long event only the end."""
        self._kept += rest
        if len(self._kept) > _MOST_KEPT:
            self._too_long = True
            del self._kept[:-_OVERLAP]

    def _take(self, lines: bytes) -> None:
        self._last = self._form.last_event(lines) or self._last
        for event in self._form.events(lines):
            self._event(event)

    def _event(self, event: bytes) -> None:
        """Parse one event; some services omit the blank line before the next event."""
        data = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
        if not self._read(b"\n".join(data)) and len(data) > 1:
            for each in data:
                self._read(each)

    def _read(self, said: bytes) -> bool:
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
        """End the call: its response is ``whole``, or broke off because of ``why``. Only the first call counts."""
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
        """Return the call as known now. Thread-safe."""
        return replace(self._call, **self._known(whole=False, why=""))

    @functools.cached_property
    def request(self) -> CallRequest:
        """Return the parsed request; valid once the whole request has passed."""
        return request_of(bytes(self._body))

    @property
    def text(self) -> str:
        """Return the beginning of the text that the model wrote."""
        return answer_text(bytes(self._beginning if self._streamed else self._kept), streamed=self._streamed)

    def _known(self, whole: bool, why: str) -> Facts:
        """Return all known facts about the call, with digests of its text."""
        found = self._found(whole, why)
        goes_on = found["end"] in WENT_ON
        if not (goes_on and self._call.tools):
            found["digests"] = digests_of(self.text, cut=not goes_on)
        return found

    def _found(self, whole: bool, why: str) -> Facts:
        facts, call = dict(self._facts), self._call
        if "status" in facts:  # status of an error inside a response, or of an error that the gateway reports as 5xx
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

    def _estimated(self, facts: Facts) -> Facts:
        """Estimate tokens, rather too high, if the provider gave no final numbers."""
        said = self._bytes // _BYTES
        if self._streamed:
            said = max(self._events, (self._bytes - _FRAME * self._events) // _BYTES)
        taken, given = facts.get("input_tokens") or self._sent // _BYTES + 1, facts.get("output_tokens", 0)
        return {"input_tokens": taken, "output_tokens": max(given, said), "estimated": True}
