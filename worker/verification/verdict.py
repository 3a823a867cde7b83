"""Extracts a verifier's verdict, one JSON object with a nonce that a verified file cannot forge, from its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any

#: Longest answer read, in characters from its end; most JSON objects tried.
MAX_TEXT, MAX_OBJECTS = 262_144, 500
#: Most errors or checks kept, and the longest of them in characters.
MAX_ENTRIES, MAX_ENTRY = 100, 2_000
_MAX_ENVELOPES = 3


class VerdictError(ValueError):
    """Raised when an answer contains no valid verdict. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class VerifierVerdict:
    """The verdict of a verifying agent. ``errors`` is empty only for a successful output."""

    success: bool
    feedback: str | None = None
    errors: list[str] = field(default_factory=list)
    checks_passed: list[str] = field(default_factory=list)


def read_verdict(text: str, nonce: str) -> VerifierVerdict:
    """Return the verdict that a verifying agent wrote in its answer.

    Raises ``VerdictError`` if there is no verdict, a verdict is malformed or lacks the nonce, or two verdicts disagree.
    """
    if len(nonce) < 8:
        raise ValueError("a nonce has at least 8 characters")
    found = [each for each in _find_objects(_unwrap_envelope(text)) if "success" in each or "nonce" in each]
    if not found:
        raise VerdictError("the verifier gave no verdict: its answer holds no JSON object with 'success'")
    own = [each for each in found if _matches_nonce(each.get("nonce"), nonce)]
    if not own:
        raise VerdictError("the verdict does not repeat the nonce of this verification, so it is not the verifier's")
    verdicts = [_parse_verdict(each) for each in own]
    if any(verdict.success != verdicts[0].success for verdict in verdicts):
        raise VerdictError("the verifier gave two verdicts that disagree")
    return verdicts[-1]


def _matches_nonce(given: object, nonce: str) -> bool:
    return isinstance(given, str) and compare_digest(given.encode("utf-8", "replace"), nonce.encode())


def _unwrap_envelope(text: str) -> str:
    for _ in range(_MAX_ENVELOPES):
        try:
            envelope = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if not isinstance(envelope, dict) or envelope.get("type") != "result" or "success" in envelope:
            return text
        if envelope.get("is_error"):
            raise VerdictError(f"the verifier ended with an error: {str(envelope.get('result') or 'unknown')[:200]}")
        if not isinstance(envelope.get("result"), str):
            raise VerdictError("the verifier's envelope holds no answer")
        text = envelope["result"]
    return text


def _find_objects(text: str) -> Iterator[dict[str, Any]]:
    text = text[-MAX_TEXT:]
    decoder = json.JSONDecoder(object_pairs_hook=_reject_repeats)
    position, tried = text.find("{"), 0
    while position >= 0 and tried < MAX_OBJECTS:
        tried += 1
        try:
            found, position = decoder.raw_decode(text, position)
        except RepeatedKeyError as error:
            raise VerdictError(f"the verdict has the key {error.args[0]!r} twice") from None
        except (ValueError, RecursionError):
            position += 1
        else:
            yield found
        position = text.find("{", position)


class RepeatedKeyError(Exception):
    """Raised when a verdict has the same key twice."""


def _reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs) and ("success" in found or "nonce" in found):
        keys = [key for key, _ in pairs]
        raise RepeatedKeyError(next(key for key in keys if keys.count(key) > 1))
    return found


def _parse_verdict(data: dict[str, Any]) -> VerifierVerdict:
    success, feedback = data.get("success"), data.get("feedback")
    if not isinstance(success, bool):
        raise VerdictError(f"the verdict's 'success' must be true or false, not {json.dumps(success)[:80]}")
    if feedback is not None and not isinstance(feedback, str):
        raise VerdictError("the verdict's 'feedback' must be a text")
    errors = _read_sentences(data.get("errors"), "errors")
    if success and errors:
        raise VerdictError(f"the verdict says success and names errors: {errors[0][:200]}")
    feedback = feedback.strip()[: 10 * MAX_ENTRY] if feedback else None
    if not success and not errors:
        errors = [(feedback or "the verifier rejected the output without saying why")[:MAX_ENTRY]]
    return VerifierVerdict(
        success, feedback or None, errors, _read_sentences(data.get("checks_passed"), "checks_passed")
    )


def _read_sentences(value: object, name: str) -> list[str]:
    if value is None:
        return []
    entries = [value] if isinstance(value, str | dict) else value
    if not isinstance(entries, list):
        raise VerdictError(f"the verdict's {name!r} must be a list of texts")
    sentences = (_format_entry(entry)[:MAX_ENTRY] for entry in entries[:MAX_ENTRIES])
    return [sentence for sentence in sentences if sentence]


def _format_entry(entry: object) -> str:
    if isinstance(entry, str):
        return entry.strip()
    if isinstance(entry, dict):
        said = next((entry[key] for key in ("message", "error", "description") if isinstance(entry.get(key), str)), "")
        place = ":".join(str(entry[key]) for key in ("file", "line") if isinstance(entry.get(key), str | int))
        if said:
            return f"{place}: {said}" if place else said
    return json.dumps(entry, ensure_ascii=False)
