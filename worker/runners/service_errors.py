"""Interprets errors of model services. Standard library only, because our small agents import this module."""

from __future__ import annotations

import contextlib
import html
import json
import re
import time
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

#: HTTP statuses of an overloaded or rate-limiting service.
BUSY = frozenset({429, 529})
_PASSING = frozenset({408, 409, 425, 429})

_WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SPENT, TOO_LONG, FILTERED = (re.compile("|".join(_WORDS[name]), re.IGNORECASE) for name in ("spent", "long", "filter"))
_STATUS_OF = {word: int(status) for status, words in _WORDS["status"].items() for word in words}
END_WORDS = tomllib.loads(Path(__file__).with_name("answer_ends.toml").read_text("utf-8"))
#: Fields with a status, fields with nested errors, and the search depth.
_CODES = ("code", "status", "status_code", "http_status", "type")
_INSIDE, _DEEPEST = ("error", "errors", "details", "metadata", "headers", "raw"), 5
_NUMBER = re.compile(r"(?:HTTP )?([45]\d\d)(?:\.0+)?(?: [A-Z][\w ]*)?", re.ASCII)
_CLASS = re.compile(r"(?:litellm\.)?(\w{4,40}Error)\b")
_MESSAGE = re.compile(r'"(?:message|detail|msg|error)"\s*:\s*"((?:[^"\\]|\\.){1,2000})')
_MARKUP = re.compile(r"<(style|script|head)\b.*?(?:</\1>|\Z)|<!--.*?-->|</?[a-zA-Z!][^<>]{0,2000}>", re.DOTALL)
#: Fields and headers with a waiting time -> seconds per unit.
_WAITS = dict.fromkeys(("retry-after", "retry_after", "retry_after_seconds", "retrydelay", "retry_delay"), 1.0)
_WAITS |= {"retry-after-ms": 1e-3, "retry_after_ms": 1e-3}
_IN_WORDS = re.compile(r"(?:again|retry) (?:in|after) ((?:\d[\d.]{0,9} ?[a-z]{1,7} ?){1,4})", re.ASCII)
_SPAN = re.compile(r"(\d{1,13}(?:\.\d{1,9})?) ?(ms|[smhd]?)[a-z]{0,6}[ .]?", re.IGNORECASE | re.ASCII)
_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def classify_fault(status: int, said: str) -> str:
    """Classify a model service's error as limit, auth, context_length or overloaded, or "" for other errors.

    ``status`` is the HTTP status; 0 without a response.
    """
    if status == 429 or is_spent(status, said):
        return "limit"
    if status in {401, 403}:
        return "auth"
    if status == 413 or TOO_LONG.search(said):
        return "context_length"
    return "overloaded" if not status or status >= 500 else ""


def is_spent(status: int, said: str) -> bool:
    """Return True if a model service's error means that the account has no credit left."""
    return status == 402 or SPENT.search(said) is not None


def is_temporary(status: int, said: str = "") -> bool:
    """Return True if an error of a model service is temporary. ``status`` is 0 without a response."""
    lasts = is_spent(status, said) or (status != 429 and TOO_LONG.search(said))
    return not lasts and (not status or status >= 500 or status in _PASSING)


def find_status(error: object, http: int = 0) -> int:
    """Return the HTTP status in an error's content, or else the response's status ``http``."""
    layers = list(_nested_errors(error))
    said = [
        str(layer.get(name)).strip() for layer in layers for name in _CODES if not isinstance(layer.get(name), bool)
    ]
    named = next((int(found[1]) for text in said if (found := _NUMBER.fullmatch(text))), 0)
    said += [found[1] for layer in layers if (found := _CLASS.match(str(layer.get("message"))))]
    named = named or next((_STATUS_OF[word] for word in map(str.lower, said) if word in _STATUS_OF), 0)
    return named if http < 400 or (http >= 500 and 0 < named < 500) else http


def _nested_errors(error: object, depth: int = _DEEPEST) -> Iterator[Mapping[str, Any]]:
    if isinstance(error, str) and error.lstrip()[:1] in {"{", "["}:
        with contextlib.suppress(ValueError, RecursionError):
            error = json.loads(error)
    for each in error[:9] if isinstance(error, list) else [error]:
        if isinstance(each, dict) and depth:
            for name in _INSIDE:
                yield from _nested_errors(each.get(name), depth - 1)
            yield each


def plain_words(said: str) -> str:
    """Extract the readable message from an error in JSON, HTML or plain text, as one line."""
    before, brace, rest = said.partition("{")
    if brace and (found := _MESSAGE.findall(brace + rest)):
        said = " ".join((before, plain_words(re.sub(r"\\(.)", r"\1", found[-1]))))
    elif '":' in rest:
        said = before
    return " ".join(html.unescape(_MARKUP.sub(" ", said)).split())[:300]


def find_wait(headers: Mapping[str, str], error: object = None) -> float:
    """Return how many seconds a service asks the client to wait, in its headers or error, or 0."""
    named = dict(headers)
    for layer in _nested_errors(error):
        named |= {str(name).lower(): str(value) for name, value in layer.items()}
    asked = [unit * _parse_span(named[name]) for name, unit in _WAITS.items() if name in named]
    asked += map(_parse_span, _IN_WORDS.findall(named.get("message", "")[:2000]))
    if wait := next(filter(None, asked), 0.0):
        return wait
    resets = {name: _parse_span(value) for name, value in named.items() if "ratelimit" in name and "reset" in name}
    used_up = [wait for name, wait in resets.items() if named.get(name.replace("reset", "remaining")) == "0"]
    return max(used_up) if used_up else min(resets.values(), default=0.0)


def _parse_span(text: str) -> float:
    """Parse ``36``, ``6m0s``, ``20ms``, an epoch time or a date, and return the seconds from now."""
    text, found = text.strip(), 0.0
    if re.fullmatch(rf"(?:{_SPAN.pattern}){{1,6}}", text, re.IGNORECASE | re.ASCII):
        found = sum(float(number) * _UNITS[unit.lower()] for number, unit in _SPAN.findall(text))
        found /= 1000 if found > 1e11 else 1
        found -= time.time() if found > 1e9 else 0
    else:
        with contextlib.suppress(ValueError, OverflowError):
            read = datetime.fromisoformat if "T" in text[:11] else parsedate_to_datetime
            found = read(text).timestamp() - time.time()
    return found if 0 < found < 1e9 else 0.0
