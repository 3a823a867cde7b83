"""Asks an OpenAI-compatible service once: a process of its own, so that it can be stopped at any moment.

Run by ``openai_http`` as ``python -m worker.runners.http.agent``. The request comes as JSON on standard input, with
the key, so that neither the command line nor the environment shows it. Tells the same events as the scripted agent.
Standard library only.

The answer is whole only with ``finish_reason`` stop *and* ``[DONE]``: a connection that ends proves nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn
from urllib.parse import urlsplit

#: HTTP statuses that pass by themselves, besides all of 500 and above.
_PASSING = frozenset({408, 409, 425, 429})
#: Statuses of a service that has too much to do, or limits us.
_BUSY = frozenset({429, 529})
_MAX_ERROR = 2000
_LONGEST_LINE = 1 << 20


def main() -> None:
    """Ask, and tell what comes."""
    asked = json.load(sys.stdin)
    try:
        response = _post(asked)
        if response.status != http.client.OK:
            wait = _seconds(response.getheader("retry-after", ""))
            _fail(_kind(response.status), _said(response), busy=response.status in _BUSY, retry_after=wait)
        _relay(response)
    except (OSError, http.client.HTTPException) as error:
        _fail("transient", f"the service broke off: {type(error).__name__}: {error}")


def _post(asked: dict[str, Any]) -> http.client.HTTPResponse:
    url = urlsplit(asked["url"])
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname or "", url.port)
    body = {
        "model": asked["model"],
        "messages": asked["messages"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if asked["key"]:
        headers["authorization"] = f"Bearer {asked['key']}"
    connection.request("POST", f"{url.path.rstrip('/')}/chat/completions", json.dumps(body), headers)
    return connection.getresponse()


def _relay(response: http.client.HTTPResponse) -> None:
    finish = ""
    for data in _data_lines(response):
        if data == b"[DONE]":
            if finish == "stop":
                _tell({"event": "result"})
            else:
                _tell({"event": "note", "text": f"the answer ended with finish_reason {finish or 'missing'}"})
            return
        try:
            chunk = json.loads(data)
            finish = _hear(chunk) or finish
        except (ValueError, LookupError, TypeError, AttributeError):
            _tell({"event": "skipped"})


def _data_lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while line := response.readline(_LONGEST_LINE):
        name, _, value = line.partition(b":")
        if name == b"data":
            yield value.strip()


def _hear(chunk: dict[str, Any]) -> str:
    """Pass one chunk on; returns its finish_reason."""
    if error := chunk.get("error"):
        said = error.get("message", error) if isinstance(error, dict) else error
        _fail("transient", f"the service failed in the middle: {said}")
    if usage := chunk.get("usage"):
        told = {"input_tokens": usage.get("prompt_tokens"), "output_tokens": usage.get("completion_tokens")}
        _tell({"event": "usage", "usage": told})
    for choice in chunk.get("choices", ()):
        if choice.get("index", 0) == 0:
            if text := choice["delta"].get("content"):
                _tell({"event": "output", "text": text})
            return str(choice.get("finish_reason") or "")
    return ""


def _kind(status: int) -> str:
    return "transient" if status >= 500 or status in _PASSING else "permanent"


def _said(response: http.client.HTTPResponse) -> str:
    body = response.read(_MAX_ERROR).decode("utf-8", "replace")
    return f"HTTP {response.status}: {' '.join(body.split())[:300]}"


def _seconds(retry_after: str) -> float:
    """The wait of a ``Retry-After`` header (RFC 9110, 10.2.3: seconds or a date); 0 for none, or one in the past."""
    text = retry_after.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


def _fail(kind: str, text: str, *, busy: bool = False, retry_after: float = 0.0) -> NoReturn:
    _tell({"event": "error", "kind": kind, "text": text, "busy": busy, "retry_after": retry_after})
    sys.exit(1)


def _tell(event: dict[str, Any]) -> None:
    data = json.dumps(event).encode() + b"\n"
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


if __name__ == "__main__":
    main()
