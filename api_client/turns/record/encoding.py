"""A move as the store takes it: texts by name. A long text is stored once, and other facts name its place. Pure.

A very long one is written before its move, by a plain command, as a fact that nobody reads until the move names it:
carried through Lua it would hold up the server twice as long. The fact's name ends with the writer's token
(``text~TOKEN``), so what a writer left that lost its turn is never taken for another's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api_client.contract.completion import Verdict
from api_client.contract.declared import frozen
from api_client.contract.events import Body, TurnRetrying, body_of, data_of
from api_client.contract.issues import TurnError, error_data
from api_client.contract.marker import Span
from api_client.contract.record import ASKED, AttemptFacts, AttemptRecord, FieldChanges, changes_of, elsewhere
from api_client.contract.tasks import PHASE_RUN, RETRY, Link
from api_client.contract.turn import Outcome, Progress, Turn, TurnState
from api_client.store.commands import SHORT_BYTES, Word
from worker.enforcement.attempt import Attempt
from worker.enforcement.documents.splice import marker_spans
from worker.enforcement.policy import Policy, Retry

# A move: one change of a turn by its holder. The ``after_*`` modules say which move follows from what.

#: Take the fields of a turn, and of an attempt, that a move changes: ``progress(retries=2)``.
progress = changes_of(Progress)
attempt_facts = changes_of(AttemptFacts)


@frozen(slots=True, kw_only=True)
class Answer:
    """The response of a finished turn: ``response``, or the ``error`` that says why there is none."""

    response: str = ""
    step: str = ""
    step_source: str = ""
    error: TurnError | None = None


@frozen(slots=True, kw_only=True)
class MoveTexts:
    """A move as it is stored.

    Attributes:
        fields, facts: of the turn and of the move's attempt, by name. events: kind, data (JSON) of each, in a row.
        spans: of the step markers that count in the answer. markers, error: these and the answer's error, as JSON.
    """

    fields: dict[str, str]
    facts: dict[str, str]
    events: list[str]
    spans: tuple[Span, ...]
    markers: str
    error: str


@frozen(slots=True, kw_only=True)
class Move:
    """One transition of a turn by its holder: its writes, events and counters, and the next link.

    Attributes:
        state, next: where the turn goes; ignored when ``outcome`` is set.
        fields: the turn's fields that change. facts: those of attempt ``attempt``. ``encoding.py`` makes texts of them.
        events: in order; the store itself adds the event of a turn's end.
        delay_ms: time before ``next`` may be claimed.
        counters: see ``contract/counters.py``; the store adds what it measures.
        outcome, answer: set when this is the end.
        end_counters: counted only if the turn really ends so, and was not cancelled in the same moment.
        run_ended: an agent run ended with this. judged: an answer was judged.
        judged_ms: how long judging took, in ms, where both are one move.
        service, service_reason: what the run reports about its service, as ``service_said`` names it, and why.
        service_wait_ms: how long the service asks us to wait.
        park_seconds: above 0, the turn waits so long in the inbox for a decision; ``state`` is parked then.
    """

    attempt: int
    state: TurnState = TurnState.RAN
    next: Link | None = None
    fields: FieldChanges[Progress] = field(default_factory=progress)
    facts: FieldChanges[AttemptFacts] = field(default_factory=attempt_facts)
    events: list[Body] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    delay_ms: int = 0
    outcome: Outcome | None = None
    answer: Answer = field(default_factory=Answer)
    end_counters: dict[str, int] = field(default_factory=dict)
    run_ended: bool = False
    judged: bool = False
    judged_ms: int = 0
    park_seconds: float = 0.0
    service: str = ""
    service_reason: str = ""
    service_wait_ms: int = 0
    _texts: MoveTexts | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def texts(self) -> MoveTexts:
        """The move's texts: made once, because a move that is sealed is written twice."""
        texts = self._texts
        if texts is None:
            answer = self.answer
            spans = marker_spans(answer.response) if answer.step else ()
            texts = MoveTexts(
                fields=self.fields.to_texts(),
                facts=self.facts.to_texts(),
                events=flat(self.events),
                spans=spans,
                markers=json.dumps(spans) if spans else "[]",
                error=json.dumps(error_data(answer.error)) if answer.error else "{}",
            )
            object.__setattr__(self, "_texts", texts)
        return texts


def flat(events: Sequence[Body]) -> list[str]:
    """Events as arguments of a command: kind, data (JSON) of each."""
    return [part for body in events for part in (body.KIND, json.dumps(data_of(body)))]


def policy_of(turn: Turn) -> Policy:
    """The policy a turn was submitted with."""
    request = turn.request
    applied = request.applied
    return Policy(
        max_attempts=turn.max_attempts,
        locale=request.locale,
        order=request.policy,
        go_on=request.phase is None,  # a phase's result is its files
        caps=applied.caps if applied else {},
        lenient=frozenset(applied.lenient) if applied else frozenset(),
    )


def again(turn: Turn, attempt: int) -> Link:
    """The link that runs the turn's agent once more."""
    return Link(RETRY if turn.request.phase is None else PHASE_RUN, attempt)


def judged(records: Sequence[AttemptRecord]) -> list[Attempt]:
    """A turn's stored attempts as the policy sees them."""
    return [
        Attempt(
            number=record.number,
            text=record.text,
            answer=record.answer,
            complete=record.completion.get("verdict") == Verdict.COMPLETE,
            issues=record.issues,
            fresh=asked_anew(records[:at]),
        )
        for at, record in enumerate(records)
    ]


def asked_anew(before: Sequence[AttemptRecord]) -> bool:
    """True when the attempt after these was asked by a person, or of another model, not by the policy's feedback."""
    return bool(before) and before[-1].decision == "escalate"


def retrying(
    turn: Turn, attempt: int, reason: str, *, codes: Iterable[str] = (), feedback: str = "", goes_on: bool = False
) -> TurnRetrying:
    """The event that says that the agent is asked again."""
    return TurnRetrying(
        attempt=attempt,
        max_attempts=turn.max_attempts,
        reason=reason,
        codes=tuple(codes),
        feedback=feedback,
        goes_on=goes_on,
        delay_seconds=0,
    )


def asked_for(turn: Turn, link: Link, reason: str, decision: Retry) -> TurnRetrying:
    """The event that says that the policy asks the agent again."""
    return retrying(
        turn, link.attempt + 1, reason, codes=decision.codes, feedback=decision.feedback, goes_on=decision.goes_on
    )


#: A longer text is written before its move; a shorter one costs Lua next to nothing.
AHEAD_BYTES = 65_536
_OF = "~"
#: Characters that SHORT_BYTES hold whatever they are: most texts are shorter.
_SURELY_SHORT = SHORT_BYTES // 4


@frozen(slots=True, kw_only=True)
class EncodedMove:
    """A move in the form of ``commit.lua`` and of a seal.

    Attributes:
        facts: of the move's attempt, as they are stored. ahead: those that are to be stored before.
        response: the answer; empty where ``response_in`` says which fact has it, such as ``2:text``.
    """

    move: Move
    texts: MoveTexts
    facts: dict[str, str]
    ahead: dict[str, str]
    response: str
    response_in: str

    def arguments(self) -> dict[str, Word]:
        """Return what ``commit.lua`` is called with, but for who commits; ``rest`` follows."""
        move = self.move
        return {
            "next": str(move.next or ""),
            "state": move.state.value,
            "attempt": move.attempt,
            "ahead": " ".join(self.ahead),
            "delay_ms": move.delay_ms,
            "park_ms": int(move.park_seconds * 1000),
            "outcome": move.outcome.value if move.outcome else "",
            "ending": self._finished_data() if move.outcome else "",
            "counters": _lines(move.counters),
            "end_counters": _lines(move.end_counters),
            "run_ended": int(move.run_ended),
            "judged": int(move.judged),
            "judged_ms": move.judged_ms,
            "service": move.service,
            "service_reason": move.service_reason,
            "service_wait_ms": move.service_wait_ms,
            "n_fields": 2 * len(self.texts.fields),
            "n_facts": 2 * len(self.facts),
            "n_answer": 2 * len(self.answer()),
        }

    def rest(self) -> list[str]:
        """The arguments without a name: fields, facts, the answer's fields, events."""
        pairs = [*self.texts.fields.items(), *self.facts.items(), *self.answer().items()]
        return [text for pair in pairs for text in pair] + self.texts.events

    def answer(self) -> dict[str, str]:
        """The fields of a finished turn's record; none while it goes on."""
        if self.move.outcome is None:
            return {}
        return {**self._texts(), "error": self.texts.error, "markers": self.texts.markers}

    def _finished_data(self) -> str:
        """The answer in the event of the end: the inside of a JSON object."""
        return f'{json.dumps(self._texts())[1:-1]}, "markers": {self.texts.markers}, "error": {self.texts.error}'

    def _texts(self) -> dict[str, str]:
        answer = self.move.answer
        place = {"response_in": self.response_in} if self.response_in else {}
        return {"response": self.response, **place, "step": answer.step, "step_source": answer.step_source}

    def to_dict(self) -> dict[str, Any]:
        """An ending move as ``Accepted`` keeps it, without its events."""
        move, answer = self.move, self.move.answer
        return {
            "attempt": move.attempt,
            "fields": self.texts.fields,
            "facts": self.facts,
            "counters": move.counters,
            "end_counters": move.end_counters,
            "outcome": move.outcome.value if move.outcome else "",
            "answer": {
                "response": self.response,
                "response_in": self.response_in,
                "markers": self.texts.spans,
                "step": answer.step,
                "step_source": answer.step_source,
                "error": error_data(answer.error),
            },
            "run_ended": move.run_ended,
            "judged": move.judged,
            "judged_ms": move.judged_ms,
            "service": move.service,
            "service_reason": move.service_reason,
            "service_wait_ms": move.service_wait_ms,
        }


def encode(move: Move, stored: Mapping[str, str], asked: str = "", token: str = "") -> EncodedMove:
    """The move with its long texts by reference, where a fact of its attempt has them.

    ``stored`` are the attempt's facts so far, and win over the move's: a text that is there is not sent again. An
    answer that no fact has becomes one. ``asked`` is the user's message: a prompt that is it is in the request.
    ``token`` is of the claim that writes it; without one, no text is written before.
    """
    response, texts = move.answer.response, move.texts
    if not stored and sum(map(len, (response, *texts.facts.values()))) <= _SURELY_SHORT:  # as most moves are
        return EncodedMove(move=move, texts=texts, facts=texts.facts, ahead={}, response=response, response_in="")
    places = {text: name for name, text in stored.items() if is_long(text)}
    facts, ahead = dict[str, str](), dict[str, str]()

    def place_of(name: str, text: str) -> str:
        """The fact that has the text: an earlier one, a new one that is written ahead, or ``name`` itself."""
        if text not in places:
            places[text] = name
            if token and _bytes_of(text) > AHEAD_BYTES:
                places[text] = f"{name}{_OF}{token}"
                ahead[places[text]] = text
        return places[text]

    for name, text in texts.facts.items():
        if stored and stored.get(elsewhere(name)):
            facts[elsewhere(name)] = ""
        if not is_long(text):
            facts[name] = text
        elif name == "prompt" and text == asked:
            facts[elsewhere(name)] = ASKED
        elif place_of(name, text) != name:
            facts[elsewhere(name)] = places[text]
        else:
            facts[name] = text
    place = ""
    if is_long(response):
        name = place_of("response", response)
        if name == "response":
            facts[name] = response
        response, place = "", f"{move.attempt}:{name}"
    return EncodedMove(move=move, texts=texts, facts=facts, ahead=ahead, response=response, response_in=place)


def decode(data: Mapping[str, Any], events: list[Body], stored: Mapping[str, str]) -> Move:
    """An ending move again, from ``EncodedMove.to_dict`` and its events; also as records of version 1 have it.

    ``stored`` are the facts of its attempt: long texts are read from there. Raises ``ValueError``: it is not a move
    that ends a turn.
    """
    texts = {**stored, **data["facts"]}
    facts = _with_texts(data["facts"], texts)
    answer = data["answer"]
    _, _, place = answer.get("response_in", "").partition(":")
    error = json.loads(answer["error"]) if isinstance(answer["error"], str) else answer["error"]
    return Move(
        attempt=int(data["attempt"]),
        fields=FieldChanges.from_texts(Progress, data["fields"]),
        facts=FieldChanges.from_texts(AttemptFacts, facts),
        events=events,
        counters=data["counters"],
        end_counters=data["end_counters"],
        outcome=Outcome(data["outcome"]),
        answer=Answer(
            response=texts.get(place, "") if place else answer["response"],
            step=answer["step"],
            step_source=answer["step_source"],
            error=TurnError.from_dict(error),
        ),
        run_ended=data["run_ended"],
        judged=data["judged"],
        # Older records have none of these: a run was stored before its answer was judged.
        judged_ms=data.get("judged_ms", 0),
        service=data.get("service", ""),
        service_reason=data.get("service_reason", ""),
        service_wait_ms=data.get("service_wait_ms", 0),
    )


def _with_texts(facts: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, str]:
    """The facts with the texts they name in place of the names."""
    suffix, found = elsewhere(""), dict[str, str]()
    for name, text in facts.items():
        if name.endswith(suffix) and text in texts:
            found[name.removesuffix(suffix)] = texts[text]
        elif not name.endswith(suffix) or text:  # an empty name says that the text is no longer elsewhere
            found[name] = text
    return found


def is_long(text: str) -> bool:
    """Return whether a text is stored apart."""
    return len(text) > _SURELY_SHORT and _bytes_of(text) > SHORT_BYTES


def _bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def left_behind(facts: Mapping[str, str]) -> list[str]:
    """Those of an attempt's facts that were written ahead of a move that never came."""
    named = {place for name, place in facts.items() if name.endswith(elsewhere(""))}
    return [name for name in facts if _OF in name and name not in named]


def _lines(counters: dict[str, int]) -> str:
    """Counters as the commands take them: name, tab, number; one a line."""
    return "\n".join([f"{name}\t{by}" for name, by in counters.items()])


# An accepted answer on its way into the session's folder, as the turn's record keeps it until the commit. It is sealed
# before the first file is written: a worker that takes the turn over publishes and commits the same, without judging
# again.


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The values to publish and commit.

    Attributes:
        move: the move that ends the turn.
        delivery: the folder's name of the accepted delivery.
        mended: files of earlier deliveries and of the fallback, by name; they stand for those this delivery wrote.
    """

    move: Move
    delivery: str
    mended: dict[str, str] = field(default_factory=dict)

    def to_json(self, stored: Mapping[str, str]) -> str:
        """As the record keeps it; ``stored`` are the facts of its attempt, as for ``encode``."""
        data = {"move": encode(self.move, stored).to_dict(), "delivery": self.delivery, "mended": self.mended}
        texts = self.move.texts.events  # JSON already
        events = ", ".join(f'["{kind}", {said}]' for kind, said in zip(texts[::2], texts[1::2], strict=True))
        return f'{{"events": [{events}], {json.dumps(data)[1:]}'

    @classmethod
    def from_json(cls, text: str, stored: Callable[[int], Mapping[str, str]]) -> Accepted:
        """Read it again; ``stored`` returns the facts of an attempt, by its number.

        Raises ``ValueError``: the text is not one.
        """
        data = json.loads(text)
        events = [body_of(kind, facts) for kind, facts in data["events"]]
        move = data["move"]
        if isinstance(move, str):  # a record of version 1
            move = json.loads(move)
        found = decode(move, events, stored(int(move["attempt"])))
        return cls(move=found, delivery=data["delivery"], mended=data["mended"])
