"""A long text is stored once: whatever else has the same text names the fact that it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from api_client.contract.commands import SHORT_BYTES
from api_client.contract.record import ASKED, elsewhere
from worker.enforcement.documents.step import marker_spans
from worker.turns.transitions.moves import Move


def once(move: Move, stored: Mapping[str, str], asked: str = "") -> Move:
    """The same move with its long texts by reference, where a fact of its attempt has them.

    ``stored`` are the attempt's facts so far, and win over the move's: a text that lies there is not sent again. An
    answer that no fact has becomes one. ``asked`` is the user's message: a prompt that is it lies in the request.
    """
    places = {text: name for name, text in stored.items() if is_long(text)}
    facts: dict[str, str] = {}
    for name, text in move.facts.items():
        if stored.get(elsewhere(name)):
            facts[elsewhere(name)] = ""
        if name == "prompt" and text == asked and is_long(text):
            facts[elsewhere(name)] = ASKED
        elif is_long(text) and places.setdefault(text, name) != name:
            facts[elsewhere(name)] = places[text]
        else:
            facts[name] = text
    answer = move.answer
    if is_long(answer.response):
        name = places.setdefault(answer.response, "response")
        if name == "response":
            facts[name] = answer.response
        markers = marker_spans(answer.response) if answer.step else ()
        answer = replace(answer, response="", response_in=f"{move.attempt}:{name}", markers=markers)
    return replace(move, facts=facts, answer=answer)


def whole(move: Move, stored: Mapping[str, str]) -> Move:
    """A move that ends a turn with its answer's text again; ``stored`` as for ``once``."""
    _, _, name = move.answer.response_in.partition(":")
    if not name:
        return move
    text = move.facts.get(name, stored.get(name, ""))
    return replace(move, answer=replace(move.answer, response=text, response_in="", markers=()))


def is_long(text: str) -> bool:
    """Whether a text is stored apart."""
    return len(text) > SHORT_BYTES // 4 and len(text.encode("utf-8", "surrogatepass")) > SHORT_BYTES
