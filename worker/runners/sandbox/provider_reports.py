"""Parse how each provider reports the end, the errors and the tokens of a model call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from worker.runners.observed_calls import Api, ModelCallEnd, clean_word
from worker.runners.pricing import TOKENS
from worker.runners.service_errors import END_WORDS, TOO_LONG, find_status, find_wait, is_spent

#: Characters of an error message that are searched.
_MOST_SAID = 1000
#: Separator between two events, if lines end with a line feed alone.
BLANK = b"\n\n"
_GEMINI = re.compile(r"/models/([^/:]+):(?:stream)?[gG]enerateContent$")
_WORDS: Mapping[str, Mapping[str, ModelCallEnd]] = {
    form: {word: ModelCallEnd(end) for end, words in ends.items() for word in words} for form, ends in END_WORDS.items()
}
#: Responses API items that the client must execute; other tools run at the provider.
_ASKED = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "computer_call"}
)

Facts = dict[str, Any]


def find_api(path: str) -> Api | None:
    """Return the kind of API that a request path belongs to, or None if the path is not a model call."""
    if path.endswith("/messages"):
        return "messages"
    if path.endswith(("/responses", "/responses/compact")):
        return "responses"
    if path.endswith("/chat/completions"):
        return "chat"
    return "gemini" if _GEMINI.search(path) else None


def find_model(path: str) -> str:
    """Return the model that a request path names, or an empty string if the path names none."""
    named = _GEMINI.search(path)
    return named[1] if named else ""


def _parse_end(form: str, said: object) -> Facts:
    known = _WORDS[form].get(str(said)) or _WORDS[form].get(str(said).lower(), ModelCallEnd.UNKNOWN)
    return {"end": known, "word": clean_word(said)} if said else {}


def _parse_error(found: object) -> Facts:
    facts: Mapping[str, Any] = found if isinstance(found, dict) else {"message": found}
    kinds = [clean_word(facts.get(name)) for name in ("type", "code", "status")]
    said = f"{kinds} {facts.get('message')}"[:_MOST_SAID]
    word = next((word for word in kinds if word not in {"", "None"}), "error")
    word = "insufficient_quota" if is_spent(0, said) else "context_length_exceeded" if TOO_LONG.search(said) else word
    return {"end": ModelCallEnd.ERROR, "word": word, "status": find_status(found), "retry_after": find_wait({}, found)}


def _parse_counts(usage: object, *names: str) -> Facts:
    found = (sum(max(0, _number_at(usage, name)) for name in words.split("+")) for words in names)
    return {name: amount for name, amount in zip(TOKENS, found, strict=False) if amount}


def _number_at(usage: object, path: str) -> int:
    name, _, rest = path.partition(".")
    value = usage.get(name) if isinstance(usage, dict) else None
    return _number_at(value, rest) if rest else value if type(value) is int else 0


def _parse_messages(said: Facts) -> Facts:
    kind = said.get("type")
    if kind == "error":
        return _parse_error(said.get("error"))
    message = said["message"] if kind == "message_start" else said
    facts = {} if kind == "message_start" else _parse_end("messages", said.get("delta", said).get("stop_reason"))
    read, written = "cache_read_input_tokens", "cache_creation_input_tokens"
    hour = "cache_creation.ephemeral_1h_input_tokens"
    counts = _parse_counts(message.get("usage"), f"input_tokens+{read}+{written}", "output_tokens", read, written, hour)
    return {"model": message.get("model"), **facts, **counts}


def _parse_responses(said: Facts) -> Facts:
    kind = str(said.get("type", ""))
    if kind == "error" or (said.get("error") and "status" not in said):
        return _parse_error(said.get("error") or said)
    if kind == "response.output_item.done":
        return _parse_items([said["item"]])
    whole = said["response"] if kind.startswith("response.") else said
    status, facts = str(whole.get("status")), {}
    if status == "incomplete":
        facts = _parse_end("incomplete", (whole.get("incomplete_details") or {}).get("reason") or status)
    elif status == "failed":
        facts = _parse_error(whole.get("error"))
    elif status not in {"in_progress", "queued"} or not kind:
        facts = _parse_end("responses", status)
    details = "input_tokens_details"
    read, written = f"{details}.cached_tokens", f"{details}.cache_write_tokens"
    counts = _parse_counts(whole.get("usage"), "input_tokens", "output_tokens", read, written)
    return {"model": whole.get("model"), **facts, **_parse_items(whole.get("output") or []), **counts}


def _parse_items(items: Iterable[Facts]) -> Facts:
    found: Facts = {}
    for item in items:
        if item.get("type") in _ASKED:
            found["asked"] = True
        if any(part.get("type") == "refusal" for part in item.get("content") or () if isinstance(part, dict)):
            found["refused"] = True
    return found


def _parse_chat(said: Facts) -> Facts:
    if said.get("error"):
        return _parse_error(said["error"])
    details = "prompt_tokens_details"
    read, written = f"{details}.cached_tokens", f"{details}.cache_write_tokens"
    counts = _parse_counts(said.get("usage"), "prompt_tokens", "completion_tokens", read, written)
    found: Facts = {"model": said.get("model"), **counts}
    for choice in said.get("choices") or ():
        if choice.get("index", 0) == 0:
            part = choice.get("delta") or choice.get("message") or {}
            found |= _parse_end("chat", choice.get("finish_reason"))
            found |= {"asked": True} if part.get("tool_calls") or part.get("function_call") else {}
            found |= {"refused": True} if part.get("refusal") else {}
    return found


def _parse_gemini(said: Facts) -> Facts:
    if said.get("error"):
        return _parse_error(said["error"])
    given = "candidatesTokenCount+thoughtsTokenCount"
    counts = _parse_counts(said.get("usageMetadata"), "promptTokenCount", given, "cachedContentTokenCount")
    found = {"model": said.get("modelVersion"), **counts}
    if blocked := (said.get("promptFeedback") or {}).get("blockReason"):
        return {**found, "end": ModelCallEnd.REFUSED, "word": clean_word(blocked)}
    for candidate in (said.get("candidates") or ())[:1]:
        parts = (candidate.get("content") or {}).get("parts") or ()
        found |= {"asked": True} if any("functionCall" in part for part in parts) else {}
        found |= _parse_end("gemini", candidate.get("finishReason"))
    return found


@dataclass(frozen=True, slots=True)
class ProviderForm:
    """The streaming format of one API: which events report the end, an error or tokens.

    Only the last event that contains ``last`` counts.
    """

    read: Callable[[Facts], Facts]
    telling: tuple[bytes, ...]
    last: bytes = b""

    def find_events(self, lines: bytes) -> list[bytes]:
        """Return the server-sent events in ``lines`` that contain information about usage or the end of the call."""
        found: dict[int, int] = {}
        for words in self.telling:
            at = lines.find(words)
            while at >= 0:
                end = lines.find(BLANK, at)
                end = len(lines) if end < 0 else end
                found[lines.rfind(BLANK, 0, at) + 1] = end
                at = lines.find(words, end)
        return [lines[start : found[start]] for start in sorted(found)]

    def find_last_event(self, lines: bytes) -> bytes:
        """Return the last event in ``lines`` with this format's pattern ``last``, or empty bytes without one."""
        if not self.last or (at := lines.rfind(self.last)) < 0:
            return b""
        return lines[lines.rfind(BLANK, 0, at) + 1 :].lstrip(b"\n").partition(BLANK)[0]


def _spaced_patterns(*words: str) -> tuple[bytes, ...]:
    return tuple(form.encode() for word in words for form in (word, word.replace(":", ": ")))


_ENDED = ("completed", "incomplete", "failed", "cancelled", "output_item.done")
FORMS: dict[Api, ProviderForm] = {
    "messages": ProviderForm(_parse_messages, (b"message_start", b"message_delta", b'"error"')),
    "responses": ProviderForm(_parse_responses, (b'"error"', *(f'"response.{word}"'.encode() for word in _ENDED))),
    "chat": ProviderForm(
        _parse_chat,
        _spaced_patterns(
            '"finish_reason":"', '"error":{', '"error":"', '"tool_calls":[', '"function_call":{', '"refusal":"'
        ),
        last=b'"prompt_tokens"',
    ),
    "gemini": ProviderForm(
        _parse_gemini, (b"finishReason", b"functionCall", b"blockReason", b'"error"'), last=b'"promptTokenCount"'
    ),
}
