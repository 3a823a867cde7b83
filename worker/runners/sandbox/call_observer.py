"""Observe one model call as its bytes pass the model proxy, without delaying them."""

from __future__ import annotations

import functools
import json
import re
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from worker.runners.observed_calls import WENT_ON, ModelCall, ModelCallEnd, clean_word
from worker.runners.pricing import TOKENS
from worker.runners.sandbox.call_texts import CallRequest, extract_answer, parse_request
from worker.runners.sandbox.provider_reports import BLANK, FORMS, Facts
from worker.runners.service_errors import find_status, find_wait
from worker.runners.word_digests import digest_sequences

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


class CallObserver:
    """Observes the request and the response of one model call, and reports how the call ended."""

    def __init__(
        self,
        call: ModelCall,
        number: int,
        report: Callable[[CallObserver, ModelCall], None],
        asked: Callable[[CallObserver], None],
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

    def observe_request(self, body: bytes, model: str, *, tools: bool) -> None:
        """Record a request's body, its model, and whether it offers tools to the model."""
        self._body, self._sent = bytearray(body), len(body)
        self._call = replace(self._call, model=clean_word(model), tools=tools)
        self._report(self, self.current_call())

    def log_refusal(self, status: int, word: str) -> None:
        """Record that the proxy refused the call. ``word`` names what was not allowed."""
        self._call, self._facts = replace(self._call, status=status), {"word": clean_word(f"model proxy: {word}")}
        self.end_call(whole=True)

    def observe_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Record the status and the headers of the response. Header names are in lower case."""
        self._asked(self)
        wait = find_wait({name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()})
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
        if status >= 400:
            self._report(self, self.current_call())

    def observe_body(self, piece: bytes, *, whole: bool = False) -> None:
        """Record a piece of the response's body. ``whole`` marks the last piece."""
        unknown = "end" not in self._facts
        self._bytes += len(piece)
        self._events += piece.count(b"data:") if self._streamed else 0
        if piece and not self._unreadable:
            self._parse_piece(piece)
        if whole:
            self.end_call(whole=True)
        elif unknown and "end" in self._facts:
            self._report(self, self.current_call())

    def _parse_piece(self, piece: bytes) -> None:
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
            self._buffer_event(piece)
            return
        said = bytes(self._kept) + piece if self._kept else piece
        lines, blank, rest = (said.replace(b"\r\n", b"\n") if b"\r" in said else said).rpartition(BLANK)
        self._kept.clear()
        lines += blank
        if rest:
            self._buffer_event(rest)
        self._parse_events(lines)

    def _buffer_event(self, rest: bytes) -> None:
        self._kept += rest
        if len(self._kept) > _MOST_KEPT:
            self._too_long = True
            del self._kept[:-_OVERLAP]

    def _parse_events(self, lines: bytes) -> None:
        self._last = self._form.find_last_event(lines) or self._last
        for event in self._form.find_events(lines):
            self._parse_event(event)

    def _parse_event(self, event: bytes) -> None:
        """Parse one server-sent event, even if the service omits the blank lines between events."""
        data = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
        if not self._merge_facts(b"\n".join(data)) and len(data) > 1:
            for each in data:
                self._merge_facts(each)

    def _merge_facts(self, said: bytes) -> bool:
        try:
            found = json.loads(said)
            for part in found if isinstance(found, list) else [found]:
                facts = self._form.read(part)
                counted = {name: max(facts[name], self._facts.get(name, 0)) for name in TOKENS if name in facts}
                self._facts |= {name: value for name, value in facts.items() if value} | counted
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False
        return True

    def end_call(self, *, whole: bool, why: str = "") -> None:
        """Record the end of the call: a ``whole`` response, or a response cut off for the reason ``why``."""
        if self._over:
            return
        self._over = True
        if self._streamed:
            self._parse_events(bytes(self._kept))
            if "input_tokens" not in self._facts:
                self._parse_event(self._last)
        elif not self._unreadable and not self._too_long and (whole or self._call.status >= 400):
            self._merge_facts(bytes(self._kept[: _MOST_ERROR if self._call.status >= 400 else None]))
        self._report(self, replace(self._call, **self._known_facts(whole, why), ended=time.time()))
        self._kept, self._beginning, self._body = bytearray(), bytearray(), bytearray()

    def current_call(self) -> ModelCall:
        """Return the call with everything known so far. Thread-safe."""
        return replace(self._call, **self._known_facts(whole=False, why=""))

    @functools.cached_property
    def request(self) -> CallRequest:
        """Return the parsed request. Requires that the whole request was observed."""
        return parse_request(bytes(self._body))

    @property
    def text(self) -> str:
        return extract_answer(bytes(self._beginning if self._streamed else self._kept), streamed=self._streamed)

    def _known_facts(self, whole: bool, why: str) -> Facts:
        found = self._collect_facts(whole, why)
        goes_on = found["end"] in WENT_ON
        if not (goes_on and self._call.tools):
            found["digests"] = digest_sequences(self.text, cut=not goes_on)
        return found

    def _collect_facts(self, whole: bool, why: str) -> Facts:
        facts, call = dict(self._facts), self._call
        if "status" in facts:  # status of an error inside a response, or of an error that the gateway reports as 5xx
            facts["status"] = find_status({"code": facts["status"]}, call.status)
        if call.retry_after:
            facts.pop("retry_after", None)
        asked, refused = facts.pop("asked", False), facts.pop("refused", False)
        model = call.model or clean_word(facts.pop("model", ""))
        facts.pop("model", None)
        end = facts.get("end")
        if call.status >= 300:
            return {**facts, "end": ModelCallEnd.ERROR, "model": model}
        if not why and self._sent and (end is None or (end is not ModelCallEnd.ERROR and "input_tokens" not in facts)):
            facts |= self._estimate_tokens(facts)
        if end is ModelCallEnd.WELL and (asked or refused):
            facts["end"] = ModelCallEnd.TOOL if asked else ModelCallEnd.REFUSED
        elif end is None and not call.status:
            facts |= {"end": ModelCallEnd.ERROR if why else ModelCallEnd.CUT, "word": clean_word(why)}
        elif end is None:
            unknown = self._unreadable or ("too long" if self._too_long else "") or ("" if self._streamed else "unread")
            facts["end"] = ModelCallEnd.UNKNOWN if unknown and whole else ModelCallEnd.CUT
            facts["word"] = clean_word(unknown if whole else why)
        return {**facts, "model": model}

    def _estimate_tokens(self, facts: Facts) -> Facts:
        said = self._bytes // _BYTES
        if self._streamed:
            said = max(self._events, (self._bytes - _FRAME * self._events) // _BYTES)
        taken, given = facts.get("input_tokens") or self._sent // _BYTES + 1, facts.get("output_tokens", 0)
        return {"input_tokens": taken, "output_tokens": max(given, said), "estimated": True}
