"""A turn: one user message, one answer. Its request, its state, its outcome."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, field, replace
from enum import StrEnum
from typing import Any

from api_client.contract.decision import TurnDecision
from api_client.contract.frozen import frozen
from api_client.contract.image import Image
from api_client.contract.interruption import Interruption
from api_client.contract.offered import BUILT_IN
from api_client.contract.open_enum import OpenEnum
from api_client.contract.owners import shown_owner
from api_client.contract.turn_error import TurnError, error_data

#: Validators that are active when a request names none (ADR-038, section 6, as repaired by docs/enforcement.md).
DEFAULT_VALIDATORS = BUILT_IN

#: Fields of a request that the first version did not have.
_LATER = frozenset(
    {"images", "policy", "work", "work_data", "traceparent", "operator", "attached", "filled", "labels", "key"}
    | {"template", "priority", "weight", "at_once"}
)


#: How a request is written; made once, because ``json.dumps`` makes one for each text.
_REQUEST_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=asdict)

_TURN_ID = re.compile(r"turn-[0-9a-f]{32}")


class TurnState(OpenEnum):
    """The state of a turn. Every arrow between two states is one Lua command."""

    #: Waits for its session, for a worker, or for the time of its next attempt.
    QUEUED = "queued"
    #: A worker holds the lease and the agent runs.
    RUNNING = "running"
    #: The agent's run is recorded; validation, fallback or failing comes next.
    RAN = "ran"
    #: A worker holds the lease and judges the answer.
    VALIDATING = "validating"
    #: Waits until its question is answered, or the time for that is over. No worker holds it.
    SUSPENDED = "suspended"
    #: The outcome is written. Nothing follows.
    FINISHED = "finished"


class Outcome(OpenEnum):
    """The end of a turn: exactly one per turn, and it never lies."""

    PASSED = "passed"
    PASSED_AFTER_RETRY = "passed_after_retry"
    PASSED_BY_FALLBACK = "passed_by_fallback"
    #: Checks still found errors, and a person accepted the result all the same, or repaired it.
    PASSED_BY_HUMAN = "passed_by_human"
    #: Validators still found errors after the last attempt, and no fallback could repair them.
    FAILED = "failed"
    #: The last attempt's agent did not really finish (ADR-036).
    INCOMPLETE = "incomplete"
    #: The agent could not work at all: bad credentials, unknown model, broken set-up.
    ERROR = "error"
    #: The model refused what it was asked for, or its service's filter stopped it.
    REFUSED = "refused"
    CANCELLED = "cancelled"
    #: A budget ran out: deadline, tokens or money over all attempts.
    EXPIRED = "expired"
    #: The turn killed the workers that ran it, alone and repeatedly; it is in the list of dead letters.
    DEAD = "dead"

    @property
    def success(self) -> bool:
        """True when there is an accepted answer: by every active validator, or by a person."""
        return self in _SUCCESSES


_SUCCESSES = frozenset(
    {Outcome.PASSED, Outcome.PASSED_AFTER_RETRY, Outcome.PASSED_BY_FALLBACK, Outcome.PASSED_BY_HUMAN}
)


class DoubleText(StrEnum):
    """The treatment of a message that arrives while its session still works on another turn."""

    QUEUE = "queue"
    REJECT = "reject"
    INTERRUPT = "interrupt"


class Priority(StrEnum):
    """Whose agents start first: those of people who wait, then those of programs that do not (``lua/line.lua``)."""

    INTERACTIVE = "interactive"
    BACKGROUND = "background"


@frozen(slots=True, kw_only=True)
class TurnRequest:
    """The request of a caller. Stored once, unchanged, in the turn's record.

    Attributes:
        model: a model id of ``HELIX_MODELS``.
        messages: the conversation, oldest first, ``{"role": ..., "content": str}``; the last is the user's.
        images: images of the user's message, which names their files.
        session_id: turns of one session run one at a time, in the order they were submitted.
        owner: who may read and cancel this turn: a hash, never a name or a key.
        validators: names of the validators active for this turn; each is offered, or the submit is refused.
        locale: language of feedback and messages to the user, ``de`` or ``en``.
        max_attempts: how often the agent is run at most; ``max_retries`` of ADR-038 plus one.
        deadline_seconds: wall time over all attempts, waiting included, in seconds.
        double_text: what to do when the session is busy.
        token_budget, cost_budget_usd: what all attempts together may use, tokens in and out, US dollars; 0: no limit.
        metadata: the caller's own notes, strings to strings; shown, never interpreted.
        policy: validator to what is tried for its errors, in order; those not named are retried, repaired, failed.
        work: its kind of work (``contract/work.py``); empty: a message of a chat.
        work_data: what that kind needs to know; only that kind reads it. Texts in it are shown with the turn.
        traceparent: the caller's span, as the header of this name tells it; no part of what is asked.
        key: the owner, by name, of the API key that it came with; empty on the command line.
        operator: an operator submitted it: its gates may run programs also where no box can be made.
        attached: what admissions attached to the turn, as JSON by name; only who attached it reads it.
        filled: fields, and names in ``attached``, that an admission filled in: the caller did not ask for them.
        labels: fields of the record for lists and figures, set at the submit.
        priority: a ``Priority``; empty: ``interactive``.
        weight: of its owner, beside the others'; 0: 1. at_once: agents of its owner at once; 0: as the settings say.
        template: hash of the session template, ``none`` without one; empty where the worker's own settings say.
    """

    model: str
    messages: tuple[dict[str, str], ...]
    session_id: str
    images: tuple[Image, ...] = ()
    owner: str = "local"
    validators: tuple[str, ...] = DEFAULT_VALIDATORS
    locale: str = "en"
    max_attempts: int = 3
    deadline_seconds: float = 3600.0
    double_text: DoubleText = DoubleText.QUEUE
    token_budget: int = 0
    cost_budget_usd: float = 0.0
    metadata: dict[str, str] = field(default_factory=dict)
    policy: dict[str, tuple[str, ...]] = field(default_factory=dict)
    work: str = ""
    work_data: dict[str, Any] = field(default_factory=dict)
    traceparent: str = ""
    operator: bool = False
    attached: dict[str, Any] = field(default_factory=dict)
    filled: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    key: str = ""
    template: str = ""
    priority: str = ""
    weight: int = 0
    at_once: int = 0

    @property
    def prompt(self) -> str:
        """The user's message: the last of the conversation."""
        return self.messages[-1]["content"] if self.messages else ""

    @property
    def shown_owner(self) -> str:
        """The owner by name, for operators (the function ``shown_owner``)."""
        return shown_owner(self.owner, self.key)

    @property
    def reserve(self) -> tuple[int, int]:
        """Give what a lost run is charged, because nobody knows what it used: tokens, and millionths of a US dollar."""
        return self.token_budget // self.max_attempts, int(self.cost_budget_usd * 1e6) // self.max_attempts

    def attach(self, name: str, data: object) -> TurnRequest:
        """Return the request with what an admission attaches under its name; None: with nothing there."""
        attached = {each: said for each, said in self.attached.items() if each != name}
        if data is not None:
            attached[name] = json.loads(_REQUEST_JSON.encode(data))
        return replace(self, attached=attached)

    def to_json(self) -> str:
        """The request as it is stored; keys sorted, so that equal requests give equal text.

        What came later than the first version is there only if it is used: the body of an idempotency key stays.
        """
        names = self.__dataclass_fields__
        data = {name: value for name in names if (value := getattr(self, name)) or name not in _LATER}
        return _REQUEST_JSON.encode(data)

    @classmethod
    def from_json(cls, text: str | bytes) -> TurnRequest:
        """Read a stored request; fields of a newer version are left alone.

        Raises ``ValueError``: the text is not a request.
        """
        data = json.loads(text)
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        known["messages"] = tuple(known.get("messages", ()))
        known["images"] = tuple(Image(**image) for image in known.get("images", ()))
        known["validators"] = tuple(known.get("validators", DEFAULT_VALIDATORS))
        known["policy"] = {name: tuple(order) for name, order in known.get("policy", {}).items()}
        known["filled"] = tuple(known.get("filled", ()))
        said = known.get("double_text")
        known["double_text"] = DoubleText(said) if said in list(DoubleText) else DoubleText.QUEUE
        return cls(**known)


@frozen(slots=True, kw_only=True)
class SlotShare:
    """The share of the slots that an owner gets beside others.

    Attributes:
        weight: slots beside an owner of weight 1; 0: 1. at_once: agents at once; 0: as the settings say.
        background: none of its turns is another one's ``interactive``.
    """

    weight: int = 0
    at_once: int = 0
    background: bool = False

    def given(self, request: TurnRequest) -> TurnRequest:
        """The request of such an owner."""
        priority = Priority.BACKGROUND.value if self.background else request.priority
        return replace(request, weight=self.weight, at_once=self.at_once, priority=priority)


@frozen(slots=True, kw_only=True)
class PendingFailure:
    """The reason why a turn is about to end without an answer: decided, and carried out by its ``turn.fail`` link.

    Attributes:
        code: stable code of the error (docs/errors.md).
        reason: for operators, in English.
        why: of an incomplete run, how it broke off (``completion.Why``); else empty.
    """

    outcome: Outcome = Outcome.FAILED
    code: str = "failed"
    reason: str = ""
    why: str = ""

    def to_json(self) -> str:
        """As the record keeps it."""
        data = {"outcome": self.outcome.value, "code": self.code, "reason": self.reason}
        return json.dumps(data | ({"why": self.why} if self.why else {}))

    @classmethod
    def from_json(cls, text: str) -> PendingFailure | None:
        """Read a stored one; None for an empty text or object. Raises ``ValueError``: the text is not one."""
        data = json.loads(text or "{}")
        known = {name: str(data[name]) for name in ("code", "reason", "why") if name in data}
        return cls(outcome=Outcome(data.get("outcome", Outcome.FAILED)), **known) if data else None


@frozen(slots=True, kw_only=True)
class Progress:
    """The fields of a turn that its holder changes: each transition names those it changes and leaves the others.

    Attributes:
        agent_session: the agent's own session, which the next attempt continues; empty for a fresh one.
        retries: attempts after a rejection.
        transients, handed_over, unverified: passing errors, hand-overs and fruitless verifications of this attempt.
        avoid: words, parted by spaces. A worker whose name, with ``$`` behind it, has one of them leaves the turn to
            others for some seconds. ``@HOST$`` is a machine, ``worker-PID-START-`` a worker with all its processes.
        best: the attempt that a fallback repairs, or a person accepts; 0 for none.
        tokens_used, cost_used: used by all attempts so far, in tokens and millionths of a US dollar.
        allowed: attempts by now; 0: as requested.
        stage, stage_model: 1 another model (this one) took over after the last attempt, 2 a person was asked.
        fell: models of this turn that could not answer -> attempt, fault and reason; another one took over from each.
        fresh_from: attempts up to this one left nothing that the next continues.
        interruption: what the turn waits for, or was answered; kept until the run that goes on from it has ended.
        answer_used: a nonce of the run that used up that answer, right before it; empty while none did.
        interruptions: of each kind of interruption what it counts of this turn.
    """

    agent_session: str = ""
    retries: int = 0
    transients: int = 0
    handed_over: int = 0
    unverified: int = 0
    avoid: str = ""
    best: int = 0
    tokens_used: int = 0
    cost_used: int = 0
    allowed: int = 0
    stage: int = 0
    stage_model: str = ""
    fell: dict[str, Any] = field(default_factory=dict)
    fresh_from: int = 0
    failing: PendingFailure | None = None
    interruption: Interruption | None = None
    answer_used: str = ""
    interruptions: dict[str, Any] = field(default_factory=dict)


@frozen(slots=True, kw_only=True)
class Turn(Progress):
    """A snapshot of a turn's record. Times are seconds since the epoch by the store's clock, 0 when not yet.

    While a turn is suspended, ``deadline_at`` is the latest it can become: it comes back by the rest of the time-out.
    ``decision`` is the last one.
    ``lacks``: workers that cannot carry out its next link, each with why.
    ``policy``: the hash of its policy. ``markers``: the spans of the step markers in ``response`` that count
    (``contract/marker.py``).
    """

    turn_id: str
    epoch: str
    state: TurnState
    request: TurnRequest
    attempt: int = 1
    delivery: int = 0
    lacks: dict[str, Any] = field(default_factory=dict)
    next: str = ""
    outcome: Outcome | None = None
    response: str = ""
    step: str = ""
    step_source: str = ""
    markers: tuple[tuple[int, int], ...] = ()
    error: TurnError | None = None
    stop: str = ""
    created_at: float = 0.0
    finished_at: float = 0.0
    deadline_at: float = 0.0
    lease_until: float = 0.0
    seq: int = 0
    strikes: int = 0
    replay_of: str = ""
    worker: str = ""
    flow: str = ""
    policy: str = ""
    suspended_at: float = 0.0
    decide_by: float = 0.0
    decision: TurnDecision | None = None

    @property
    def models(self) -> str:
        """Its model, behind those that could not answer: each with the fault of its service."""
        name, said = self.request.model, list[str]()
        while len(said) < len(self.fell) and (fell := self.fell.get(name)):
            said.append(f"{name} ({fell['fault']})")
            name = fell["next"]
        return ", ".join([*said, name])

    @property
    def success(self) -> bool:
        """True when it has ended with an accepted answer."""
        return self.outcome is not None and self.outcome.success

    @property
    def max_attempts(self) -> int:
        """How often its agent may run; more may have been allowed than was asked for."""
        return self.allowed or self.request.max_attempts

    def ended_with(self, seq: int, at_ms: int = 0) -> bool:
        """True when the turn has finished, with the event of this number and time (0: not known) as its last."""
        finished = self.state is TurnState.FINISHED and seq == self.seq
        return finished and at_ms in {0, round(self.finished_at * 1000)}

    def to_dict(self) -> dict[str, Any]:
        """The turn as a JSON-ready mapping, as the CLI's ``--json`` and the HTTP API show it."""
        data = asdict(self)
        data = {name: data[name] for name in (*Turn.__annotations__, *Progress.__annotations__)}
        data["failing"] = data["failing"] or {}
        data["interruption"] = self.interruption.to_dict() if self.interruption else {}
        data["error"] = error_data(self.error)
        data["decision"] = self.decision.to_dict() if self.decision else {}
        request = data.pop("request")
        data["deliveries"] = data.pop("delivery")
        data["session_id"] = request["session_id"]
        data["model"] = request["model"]
        data["prompt"] = self.request.prompt
        data["validators"] = list(self.request.validators)
        data["prompt_template"] = self.request.template
        data["attached"] = self.request.attached
        data["max_attempts"] = self.max_attempts
        data["work"] = self.request.work or "chat"
        data["success"] = self.success
        return {name: text for name, text in self.request.work_data.items() if isinstance(text, str)} | data


def new_turn_id() -> str:
    """Return a fresh turn id."""
    return f"turn-{secrets.token_hex(16)}"


def new_session_id() -> str:
    """A session id for a message that belongs to no known chat (ADR-034)."""
    return f"session-{secrets.token_hex(16)}"


def check_turn_id(turn_id: str) -> None:
    """Raise ``ValueError`` if a text is not a turn id."""
    if not _TURN_ID.fullmatch(turn_id):
        raise ValueError(f"not a turn id: {turn_id[:80]!r}")
