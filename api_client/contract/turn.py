"""A turn: one user message and one answer, with its request, state and outcome."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, field, replace
from enum import StrEnum
from typing import Any

from api_client.contract.decision import TurnDecision
from api_client.contract.frozen import checked_frozen
from api_client.contract.image import Image
from api_client.contract.interruption import Interruption
from api_client.contract.open_enum import OpenEnum
from api_client.contract.owners import format_owner
from api_client.contract.turn_error import TurnError, error_to_dict
from api_client.contract.turn_labels import LABELS
from api_client.contract.validator_names import BUILT_IN

#: Validators that are active if a request names none (ADR-038, section 6, as repaired by docs/enforcement.md).
DEFAULT_VALIDATORS = BUILT_IN

#: Request fields that the first version did not have.
_LATER = frozenset(
    {"images", "policy", "work", "work_data", "traceparent", "operator", "attached", "filled", "labels", "key"}
    | {"template", "priority", "weight", "at_once"}
)


_REQUEST_JSON = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=asdict)

_TURN_ID = re.compile(r"turn-[0-9a-f]{32}")


class TurnState(OpenEnum):
    """The states of a turn from its submission to its end."""

    #: Waits for its session, for a worker, or for the time of its next attempt.
    QUEUED = "queued"
    #: A worker holds the lease and the agent runs.
    RUNNING = "running"
    #: The agent's run is recorded; validation, fallback or failing comes next.
    RAN = "ran"
    #: A worker holds the lease and validates the answer.
    VALIDATING = "validating"
    #: Waits for the answer to its question, at most for a time. No worker holds it.
    SUSPENDED = "suspended"
    #: The outcome is written. Nothing follows.
    FINISHED = "finished"


class Outcome(OpenEnum):
    """The possible results of a finished turn, of which each turn has exactly one."""

    PASSED = "passed"
    PASSED_AFTER_RETRY = "passed_after_retry"
    PASSED_BY_FALLBACK = "passed_by_fallback"
    #: Checks found errors, and a person accepted or repaired the result.
    PASSED_BY_HUMAN = "passed_by_human"
    #: Validators found errors after the last attempt, and no fallback could repair them.
    FAILED = "failed"
    #: The last attempt's agent did not finish (ADR-036).
    INCOMPLETE = "incomplete"
    #: The agent could not work: bad credentials, unknown model, broken installation.
    ERROR = "error"
    #: The model refused, or the provider's filter stopped it.
    REFUSED = "refused"
    CANCELLED = "cancelled"
    #: The deadline, or the limit of tokens or money over all attempts, was reached.
    EXPIRED = "expired"
    #: The turn alone repeatedly killed its workers; it is in the list of dead letters.
    DEAD = "dead"

    @property
    def success(self) -> bool:
        """Return True if the answer was accepted, either by all validators or by a person."""
        return self in _SUCCESSES


_SUCCESSES = frozenset(
    {Outcome.PASSED, Outcome.PASSED_AFTER_RETRY, Outcome.PASSED_BY_FALLBACK, Outcome.PASSED_BY_HUMAN}
)


class DoubleText(StrEnum):
    """The treatment of a second message that arrives while its session is still working on a turn."""

    QUEUE = "queue"
    REJECT = "reject"
    INTERRUPT = "interrupt"


class Priority(StrEnum):
    """The priorities of waiting turns: people's turns start before programs' turns."""

    INTERACTIVE = "interactive"
    BACKGROUND = "background"


@checked_frozen(slots=True, kw_only=True)
class TurnRequest:
    """A caller's request for one turn, stored unchanged in the turn's record.

    Attributes:
        messages: the conversation, oldest first, ``{"role": ..., "content": str}``; the last is the user's.
        session_id: turns of one session run one at a time, in the order of their submits.
        owner: who may read and cancel this turn: a hash, never a name or a key.
        validators: active validators; each must be offered, or the submit is refused.
        locale: language of feedback and messages to the user, ``de`` or ``en``.
        max_attempts: most agent runs: ``max_retries`` of ADR-038 plus one.
        deadline_seconds: wall time over all attempts, waiting included.
        double_text: what to do if the session is busy.
        token_limit, cost_limit_usd: limits over all attempts: tokens in and out, US dollars; 0: no limit.
        metadata: the caller's own notes; shown, never interpreted.
        policy: validator -> what is tried for its errors, in order; others are retried, repaired, failed.
        work: kind of work (``contract/work.py``); empty for a chat message. work_data: its data, shown with the turn.
        traceparent: the caller's span, from the header of this name.
        key: owner name of the request's API key; empty on the command line.
        operator: submitted by an operator: gates may run programs even where no sandbox is available.
        attached: JSON that admissions attached, by name; only its author reads it.
        filled: fields, and names in ``attached``, that an admission set and the caller did not ask for.
        labels: fields of the record for lists and figures.
        priority: a ``Priority``; empty means ``interactive``.
        weight: of its owner in the fair queue; 0 means 1. at_once: agents of its owner at once; 0: as the settings say.
        template: hash of the session template, ``none`` for no template; empty for the worker's own setting.
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
    token_limit: int = 0
    cost_limit_usd: float = 0.0
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
        """Return the user's message, which is the last message of the conversation."""
        return self.messages[-1]["content"] if self.messages else ""

    @property
    def shown_owner(self) -> str:
        """Return the owner's name as shown to operators."""
        return format_owner(self.owner, self.key)

    @property
    def reserve(self) -> tuple[int, int]:
        """Return the reserve charged for a lost run: tokens, and millionths of a US dollar."""
        return self.token_limit // self.max_attempts, int(self.cost_limit_usd * 1e6) // self.max_attempts

    def with_attachment(self, name: str, data: object) -> TurnRequest:
        """Return a copy of the request with ``data`` attached under ``name``. None removes the attachment."""
        attached = {each: said for each, said in self.attached.items() if each != name}
        if data is not None:
            attached[name] = json.loads(_REQUEST_JSON.encode(data))
        return replace(self, attached=attached)

    def to_json(self) -> str:
        """Encode the request as JSON with sorted keys, so that equal requests give equal texts.

        Later fields are written only if used, so that hashes of earlier requests stay the same.
        """
        names = self.__dataclass_fields__
        data = {name: value for name in names if (value := getattr(self, name)) or name not in _LATER}
        return _REQUEST_JSON.encode(data)

    @classmethod
    def from_json(cls, text: str | bytes) -> TurnRequest:
        """Decode a stored request, ignoring fields of newer versions. Raises ``ValueError`` if the text is invalid."""
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


@checked_frozen(slots=True, kw_only=True)
class SlotShare:
    """The agent slots that an owner may use, as a limit and a weight relative to other owners.

    Attributes:
        weight: slots relative to an owner of weight 1; 0 means 1. at_once: agents at once; 0: as the settings say.
        background: its turns never have the priority ``interactive``.
    """

    weight: int = 0
    at_once: int = 0
    background: bool = False

    def apply_to(self, request: TurnRequest) -> TurnRequest:
        """Return a copy of a request with the weight, limit and priority of this share."""
        priority = Priority.BACKGROUND.value if self.background else request.priority
        return replace(request, weight=self.weight, at_once=self.at_once, priority=priority)


@checked_frozen(slots=True, kw_only=True)
class PendingFailure:
    """The reason why a turn is about to end without an answer.

    ``reason`` is an English sentence for operators; ``why`` is an ``IncompleteReason`` for incomplete runs, else empty.
    """

    outcome: Outcome = Outcome.FAILED
    code: str = "failed"
    reason: str = ""
    why: str = ""

    def to_json(self) -> str:
        """Encode the reason as JSON for the turn's record."""
        data = {"outcome": self.outcome.value, "code": self.code, "reason": self.reason}
        return json.dumps(data | ({"why": self.why} if self.why else {}))

    @classmethod
    def from_json(cls, text: str) -> PendingFailure | None:
        """Decode a stored reason, or return None for an empty string or object. Raises ``ValueError``."""
        data = json.loads(text or "{}")
        known = {name: str(data[name]) for name in ("code", "reason", "why") if name in data}
        return cls(outcome=Outcome(data.get("outcome", Outcome.FAILED)), **known) if data else None


@checked_frozen(slots=True, kw_only=True)
class Progress:
    """The fields of a turn's record that only the lease holder may change.

    Attributes:
        agent_session: the agent's own session, which the next attempt continues; empty for a fresh one.
        retries: attempts after a rejection.
        transients, handed_over, unverified: temporary errors, hand-overs and fruitless verifications of this attempt.
        avoid: space-separated words. A worker whose name, followed by ``$``, contains one of them leaves the turn to
            others for some seconds.
        best: the attempt that a fallback repairs or a person accepts; 0 for none.
        tokens_used, cost_used: usage of all attempts so far, in tokens and millionths of a US dollar.
        allowed: attempts allowed by now; 0: as requested.
        stage, stage_model: 1: another model (this one) took over after the last attempt; 2: a person was asked.
        fell: models that could not answer -> attempt, fault and reason; another model took over from each.
        fresh_from: attempts up to this one left nothing to continue from.
        interruption: the turn's question or its answer; kept until the run that continues from it has ended.
        answer_used: nonce of the run that used that answer, written right before; empty if unused.
        interruptions: kind of interruption -> its own counts for this turn.
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


@checked_frozen(slots=True, kw_only=True)
class Turn(Progress):
    """A snapshot of a turn's record. Times are in seconds since the epoch, or 0 if unset.

    ``deadline_at`` of a suspended turn is the latest possible deadline. ``lacks`` names workers that cannot run the
    next task, with the reason. ``markers`` are the spans of the step markers in ``response``.
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
    worker: str = ""
    suspended_at: float = 0.0
    decide_by: float = 0.0
    decision: TurnDecision | None = None

    @property
    def models(self) -> str:
        """Return the models that failed to answer, each with its fault, followed by the current model."""
        name, said = self.request.model, list[str]()
        while len(said) < len(self.fell) and (fell := self.fell.get(name)):
            said.append(f"{name} ({fell['fault']})")
            name = fell["next"]
        return ", ".join([*said, name])

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels that capabilities declare, with empty strings for missing labels."""
        return {name: self.request.labels.get(name, "") for name in LABELS}

    @property
    def success(self) -> bool:
        """Return True if the turn ended with an accepted answer."""
        return self.outcome is not None and self.outcome.success

    @property
    def max_attempts(self) -> int:
        """Return how many agent runs the turn may have, including runs that a person granted later."""
        return self.allowed or self.request.max_attempts

    def has_ended_with(self, seq: int, at_ms: int = 0) -> bool:
        """Return True if the turn has finished with a last event of this number and time (0 matches any time)."""
        finished = self.state is TurnState.FINISHED and seq == self.seq
        return finished and at_ms in {0, round(self.finished_at * 1000)}

    def to_dict(self) -> dict[str, Any]:
        """Return the turn as a JSON-ready dictionary for the HTTP API and the command line."""
        data = asdict(self)
        data = {name: data[name] for name in (*Turn.__annotations__, *Progress.__annotations__)}
        data["failing"] = data["failing"] or {}
        data["interruption"] = self.interruption.to_dict() if self.interruption else {}
        data["error"] = error_to_dict(self.error)
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
        texts = {name: text for name, text in self.request.work_data.items() if isinstance(text, str)}
        return texts | data | self.labels


def new_turn_id() -> str:
    return f"turn-{secrets.token_hex(16)}"


def new_session_id() -> str:
    """Return a new random session id, for a message that belongs to no known chat."""
    return f"session-{secrets.token_hex(16)}"


def check_turn_id(turn_id: str) -> None:
    """Raise ``ValueError`` if a text is not a well-formed turn id."""
    if not _TURN_ID.fullmatch(turn_id):
        raise ValueError(f"not a turn id: {turn_id[:80]!r}")
