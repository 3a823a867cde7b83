"""Sends one request to an OpenAI-compatible service, in a process that can be killed at any moment.

The request arrives as JSON on standard input, which hides the key. An answer is complete only with ``finish_reason``
stop *and* ``[DONE]``, or with ``response.completed``. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import urlsplit

from worker.runners.service_errors import (
    BUSY,
    END_WORDS,
    FILTERED,
    classify_fault,
    find_status,
    find_wait,
    is_spent,
    is_temporary,
    plain_words,
)

_MAX_ERROR = 16_384
_ENDS = {word.lower(): end for end, words in END_WORDS["chat"].items() for word in words}
_FINISH = "the answer ended with finish_reason"
#: Longest line in bytes; a service may send its whole answer in one line.
_LONGEST_LINE = 16 << 20
_FIELDS = frozenset({b"data", b"event", b"id", b"retry"})


def main() -> None:
    """Send the request on standard input to the service, and print the events of its answer."""
    asked = json.load(sys.stdin)
    timeouts = Timeouts(asked["timeouts"])
    try:
        response = _post_request(asked, timeouts)
        if response.status != http.client.OK:
            headers = {name.lower(): value for name, value in response.getheaders()}
            said = response.read(_MAX_ERROR).decode("utf-8", "replace")
            _report_failure(f"HTTP {response.status}", said, response.status, find_wait(headers, said))
        (_relay_response if asked["api"] == "responses" else _relay_chat)(_read_events(response, timeouts))
    except (OSError, http.client.HTTPException) as error:
        late = timeouts.seconds and isinstance(error, TimeoutError)
        said = f"it sent nothing for {timeouts.seconds:g} s" if late else f"{type(error).__name__}: {error}"
        _report_failure("the service broke off", said)


class Timeouts:
    """Time limits for the first event of a streamed answer and for each further event, in seconds."""

    def __init__(self, timeouts: dict[str, float]) -> None:
        self.seconds, self._next = timeouts.get("first", 0.0), timeouts.get("next", 0.0)
        self._due = time.monotonic() + self.seconds
        self.connection: socket.socket | None = None

    def restart_timer(self) -> None:
        """Restart the timer because an event has arrived."""
        self.seconds, self._due = self._next, time.monotonic() + self._next

    def apply_timeout(self) -> None:
        """Set the socket's timeout to the time left for the next event."""
        if self.connection:
            self.connection.settimeout(max(0.001, self._due - time.monotonic()) if self.seconds else None)


def _post_request(asked: dict[str, Any], timeouts: Timeouts) -> http.client.HTTPResponse:
    url = urlsplit(asked["url"])
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname or "", url.port, timeout=timeouts.seconds or None)
    connection.connect()
    timeouts.connection = connection.sock
    timeouts.apply_timeout()
    body = {**asked["parameters"], "model": asked["model"], "stream": True}
    path = f"{url.path.rstrip('/')}/chat/completions"
    if asked["api"] == "responses":
        body |= {"input": [_to_responses_input(message) for message in asked["messages"]], "store": False}
        path = f"{url.path.rstrip('/')}/responses"
    else:
        body |= {"messages": asked["messages"], "stream_options": {"include_usage": True}}
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if asked["key"]:
        headers["authorization"] = f"Bearer {asked['key']}"
    connection.request("POST", path, json.dumps(body), headers)
    return connection.getresponse()


def _to_responses_input(message: dict[str, Any]) -> dict[str, Any]:
    if isinstance(message["content"], str):
        return message
    parts = [
        {"type": "input_image", "image_url": part["image_url"]["url"]}
        if part["type"] == "image_url"
        else {"type": "input_text", "text": part["text"]}
        for part in message["content"]
    ]
    return {**message, "content": parts}


def _relay_response(events: Iterator[bytes]) -> None:
    refusal: list[str] = []
    skipped = False
    for data in events:
        try:
            event = json.loads(data)
            kind, inside = event["type"], event.get("response") or {}
            if kind == "response.output_text.delta":
                _print_event({"event": "output", "text": _content_text(event["delta"])})
            elif kind == "response.refusal.delta":
                refusal.append(_content_text(event["delta"]))
            elif kind in {"response.failed", "error"}:
                _fail_in_stream(inside.get("error") or event.get("error") or event)
            elif kind in {"response.completed", "response.incomplete"}:
                _report_usage(inside.get("usage"), "input_tokens", "output_tokens")
                _report_end(inside, refusal, skipped=skipped)
                return
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            if data != b"[DONE]":
                skipped = True  # the lost event may have been a piece of the answer
                _print_event({"event": "skipped"})
    _report_unfinished("the connection ended before the answer")


def _report_end(response: dict[str, Any], refusal: list[str], *, skipped: bool) -> None:
    said = str((response.get("incomplete_details") or {}).get("reason") or response["status"])
    if refusal or said == "content_filter":
        text = "".join(refusal)
        _print_event({"event": "refusal", "text": text or "incomplete: content_filter", "filtered": not text})
    elif said == "completed" and not skipped:
        _print_event({"event": "result"})
    else:
        _report_unfinished(f"the answer ended with {'an unreadable event' if skipped else said}")


def _relay_chat(events: Iterator[bytes]) -> None:
    """Print the events of a chat completion. Report a result only if every line was readable."""
    reasons: set[str] = set()
    refusal: list[str] = []
    skipped = False
    for data in events:
        if data == b"[DONE]":
            ends, words = {_ENDS.get(word.lower()) for word in reasons}, ", ".join(sorted(reasons)) or "missing"
            if refusal or "refused" in ends:
                said = "".join(refusal)
                _print_event({"event": "refusal", "text": said or f"finish_reason {words}", "filtered": not said})
            elif ends == {"well"} and not skipped:
                _print_event({"event": "result"})
            else:
                _report_unfinished("a line of the answer could not be read" if skipped else f"{_FINISH} {words}")
            return
        try:
            reasons |= _relay_chunk(json.loads(data), refusal)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            skipped = True
            _print_event({"event": "skipped"})
    _report_unfinished(f"the connection ended before [DONE]; {_FINISH} {', '.join(sorted(reasons)) or 'missing'}")


def _report_unfinished(text: str) -> None:
    _print_event({"event": "note", "text": text})
    _print_event({"event": "evidence", "facts": {"ended": text}})


def _read_events(response: http.client.HTTPResponse, timeouts: Timeouts) -> Iterator[bytes]:
    pending: list[bytes] = []
    first = True
    while line := _read_line(response, timeouts):
        line = line.removeprefix(b"\xef\xbb\xbf") if first else line
        first = False
        name, colon, value = line.rstrip(b"\r\n").partition(b":")
        if name == b"data" and line.endswith(b"\n"):
            timeouts.restart_timer()
            if not pending and (value.strip() == b"[DONE]" or _is_json(value)):
                yield value.strip()
            else:
                pending.append(value.strip())
        elif not name and not colon:
            yield from [b"\n".join(pending)] if pending else []
            pending = []
        elif name and name not in _FIELDS:
            yield line.strip()
    if pending:
        yield b"\n".join(pending)


def _read_line(response: http.client.HTTPResponse, timeouts: Timeouts) -> bytes:
    timeouts.apply_timeout()
    return response.readline(_LONGEST_LINE)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _relay_chunk(chunk: dict[str, Any], refusal: list[str]) -> set[str]:
    """Print the events of one chunk of a chat completion, and return its finish reasons."""
    if error := chunk.get("error"):
        _fail_in_stream(error)
    _report_usage(chunk.get("usage"), "prompt_tokens", "completion_tokens")
    for choice in chunk.get("choices") or ():
        if choice.get("index", 0) == 0:
            delta = choice.get("delta") or {}
            if text := _content_text(delta.get("content")):
                _print_event({"event": "output", "text": text})
            if text := _content_text(delta.get("refusal")):
                refusal.append(text)
            reason = choice.get("finish_reason")
            return {str(reason)[:64]} if reason else set()
    return set()


def _fail_in_stream(error: object) -> NoReturn:
    said = json.dumps(error)
    _report_failure("the service failed in the middle", said, find_status(error) or 500, find_wait({}, error))


def _report_usage(usage: object, of_input: str, of_output: str) -> None:
    if isinstance(usage, dict):
        counts = {"input_tokens": usage.get(of_input), "output_tokens": usage.get(of_output)}
        _print_event(
            {"event": "usage", "usage": {name: amount for name, amount in counts.items() if isinstance(amount, int)}}
        )


def _content_text(content: object) -> str:
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part["type"] == "text")
    if content is None or isinstance(content, str):
        return content or ""
    raise TypeError("content is text")


def _report_failure(what: str, said: str, http_status: int = 0, retry_after: float = 0.0) -> NoReturn:
    status, text = find_status(said, http_status), f"{what}: {plain_words(said)}"
    if 400 <= status < 500 and FILTERED.search(said):
        _print_event({"event": "refusal", "text": text, "filtered": True})
        sys.exit(0)
    kind = "transient" if is_temporary(status, said) else "permanent"
    busy = status in BUSY and not is_spent(status, said)
    fault = classify_fault(status, said)
    _print_event(
        {"event": "error", "kind": kind, "text": text, "busy": busy, "fault": fault, "retry_after": retry_after}
    )
    sys.exit(1)


def _print_event(event: dict[str, Any]) -> None:
    data = json.dumps(event).encode() + b"\n"
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


if __name__ == "__main__":
    main()
