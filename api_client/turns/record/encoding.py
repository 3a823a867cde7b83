"""Encodes and decodes transitions for the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api_client.contract.attempt_record import AttemptFacts
from api_client.contract.events import Body
from api_client.contract.frozen import checked_frozen
from api_client.contract.record import ASKED, FieldChanges, reference_name
from api_client.contract.turn import Outcome, Progress
from api_client.contract.turn_error import TurnError, error_to_dict
from api_client.store.commands import SHORT_BYTES, Word
from api_client.turns.record.transition import Answer, Transition, TransitionTexts

#: Longer texts are written before their transition; shorter texts cost Lua next to nothing.
AHEAD_BYTES = 65_536
_OF = "~"
#: This many characters never exceed SHORT_BYTES; most texts are shorter.
_SURELY_SHORT = SHORT_BYTES // 4
#: Fields of a transition that are JSON as they are.
_PLAIN = (
    *("attempt", "counters", "end_counters", "run_ended", "validated", "validation_ms"),
    *("service", "service_reason", "service_wait_ms"),
)


@checked_frozen(slots=True, kw_only=True)
class EncodedTransition:
    """A state transition as it is sent to the store.

    ``ahead`` has the facts to store before the transition. ``response`` is empty if ``response_in`` names the fact with
    the answer, such as ``2:text``.
    """

    transition: Transition
    texts: TransitionTexts
    facts: dict[str, str]
    ahead: dict[str, str]
    response: str
    response_in: str

    def build_arguments(self) -> dict[str, Word]:
        """Return the named arguments of the Lua script ``commit.lua``."""
        transition, texts, ending = self.transition, self.texts, ""
        if transition.outcome:
            answer = json.dumps(self._answer_texts())[1:-1]
            ending = f'{answer}, "markers": {texts.markers}, "error": {texts.error}'
        return {
            "next": str(transition.next or ""),
            "state": transition.state.value,
            "attempt": transition.attempt,
            "ahead": " ".join(self.ahead),
            "delay_ms": transition.delay_ms,
            "suspend_ms": int(transition.suspend_seconds * 1000),
            "outcome": transition.outcome.value if transition.outcome else "",
            "ending": ending,
            "counters": _format_counters(transition.counters),
            "end_counters": _format_counters(transition.end_counters),
            "run_ended": int(transition.run_ended),
            "validated": int(transition.validated),
            "validation_ms": transition.validation_ms,
            "service": transition.service,
            "service_reason": transition.service_reason,
            "service_wait_ms": transition.service_wait_ms,
            "n_fields": 2 * len(self.texts.fields),
            "n_facts": 2 * len(self.facts),
            "n_answer": 2 * len(self.answer_fields()),
        }

    def build_rest(self) -> list[str]:
        """Return the unnamed arguments of ``commit.lua``: fields, attempt facts, answer fields and events."""
        pairs = [*self.texts.fields.items(), *self.facts.items(), *self.answer_fields().items()]
        return [text for pair in pairs for text in pair] + self.texts.events

    def answer_fields(self) -> dict[str, str]:
        """Return the stored fields of a finished turn's answer, or an empty dict while the turn continues."""
        if self.transition.outcome is None:
            return {}
        return {**self._answer_texts(), "error": self.texts.error, "markers": self.texts.markers}

    def _answer_texts(self) -> dict[str, str]:
        answer = self.transition.answer
        place = {"response_in": self.response_in} if self.response_in else {}
        return {"response": self.response, **place, "step": answer.step, "step_source": answer.step_source}

    def to_dict(self) -> dict[str, Any]:
        """Return a final transition, without its events, as a JSON-ready dictionary."""
        transition, answer = self.transition, self.transition.answer
        return {name: getattr(transition, name) for name in _PLAIN} | {
            "fields": self.texts.fields,
            "facts": self.facts,
            "outcome": transition.outcome.value if transition.outcome else "",
            "answer": {
                "response": self.response,
                "response_in": self.response_in,
                "markers": self.texts.spans,
                "step": answer.step,
                "step_source": answer.step_source,
                "error": error_to_dict(answer.error),
            },
        }


def encode_transition(
    transition: Transition, stored: Mapping[str, str], asked: str = "", token: str = ""
) -> EncodedTransition:
    """Encode a state transition, replacing long texts by references to texts that are already stored.

    ``stored`` has the attempt's stored facts, ``asked`` is the user's message. Without a ``token`` no text is written
    ahead.
    """
    response, texts = transition.answer.response, transition.texts
    if not stored and sum(map(len, (response, *texts.facts.values()))) <= _SURELY_SHORT:  # true for most transitions
        return EncodedTransition(
            transition=transition, texts=texts, facts=texts.facts, ahead={}, response=response, response_in=""
        )
    places = {text: name for name, text in stored.items() if is_long(text)}
    facts, ahead = dict[str, str](), dict[str, str]()

    def find_place(name: str, text: str) -> str:
        """Return the name of the fact that stores a text. Equal texts share one fact."""
        if text not in places:
            places[text] = name
            if token and _count_bytes(text) > AHEAD_BYTES:
                places[text] = f"{name}{_OF}{token}"
                ahead[places[text]] = text
        return places[text]

    for name, text in texts.facts.items():
        if stored and stored.get(reference_name(name)):
            facts[reference_name(name)] = ""
        if not is_long(text):
            facts[name] = text
        elif name == "prompt" and text == asked:
            facts[reference_name(name)] = ASKED
        elif find_place(name, text) != name:
            facts[reference_name(name)] = places[text]
        else:
            facts[name] = text
    place = ""
    if is_long(response):
        name = find_place("response", response)
        if name == "response":
            facts[name] = response
        response, place = "", f"{transition.attempt}:{name}"
    return EncodedTransition(
        transition=transition, texts=texts, facts=facts, ahead=ahead, response=response, response_in=place
    )


def decode_transition(data: Mapping[str, Any], events: list[Body], stored: Mapping[str, str]) -> Transition:
    """Decode a final transition from the dictionary of ``EncodedTransition.to_dict`` and its events.

    ``stored`` has the facts of the attempt, which hold long texts. Raises ``ValueError`` if the data is not a final
    transition.
    """
    texts = {**stored, **data["facts"]}
    facts = _resolve_references(data["facts"], texts)
    answer = data["answer"]
    _, _, place = answer.get("response_in", "").partition(":")
    error = json.loads(answer["error"]) if isinstance(answer["error"], str) else answer["error"]
    return Transition(
        **{name: data[name] for name in _PLAIN},
        fields=FieldChanges.from_texts(Progress, data["fields"]),
        facts=FieldChanges.from_texts(AttemptFacts, facts),
        events=events,
        outcome=Outcome(data["outcome"]),
        answer=Answer(
            response=texts.get(place, "") if place else answer["response"],
            step=answer["step"],
            step_source=answer["step_source"],
            error=TurnError.from_dict(error),
        ),
    )


def _resolve_references(facts: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, str]:
    suffix, found = reference_name(""), dict[str, str]()
    for name, text in facts.items():
        if name.endswith(suffix) and text in texts:
            found[name.removesuffix(suffix)] = texts[text]
        elif not name.endswith(suffix) or text:  # an empty reference says that the text is no longer elsewhere
            found[name] = text
    return found


def is_long(text: str) -> bool:
    """Return True if a text is so long that it is stored only once and referred to elsewhere."""
    return len(text) > _SURELY_SHORT and _count_bytes(text) > SHORT_BYTES


def _count_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def find_orphaned(facts: Mapping[str, str]) -> list[str]:
    """Return the names of facts that were written in advance for a transition that was never stored."""
    named = {place for name, place in facts.items() if name.endswith(reference_name(""))}
    return [name for name in facts if _OF in name and name not in named]


def _format_counters(counters: dict[str, int]) -> str:
    return "\n".join([f"{name}\t{by}" for name, by in counters.items()])
