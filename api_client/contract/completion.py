"""The end of an agent's run, as a record keeps it: the verdict over the run, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """The end of an agent run."""

    #: The agent really finished; its text may be judged.
    COMPLETE = "complete"
    #: It ended early (died, was cut off, said nothing, ran into the idle or total time limit).
    INCOMPLETE = "incomplete"
    #: We were asked to stop it, and did.
    CANCELLED = "cancelled"
    #: The model refused, or its service's filter stopped it: the provider says so.
    REFUSED = "refused"
    #: It ended because a person has to say whether a tool call may run; it goes on from there.
    ASKS = "asks"
    #: It could not work; ``Completion.kind`` is the kind of error.
    ERROR = "error"


class ErrorKind(StrEnum):
    """Kinds of error a runner can tell apart."""

    #: Passes by itself: 429, 5xx, network. Asked again after a while, without using up an attempt.
    TRANSIENT = "transient"
    #: Does not pass: bad request, bad credentials.
    PERMANENT = "permanent"
    #: The installation is wrong: programme missing, hooks not loaded, script unreadable.
    CONFIG = "config"
    #: This machine is short of disk, memory, processes or descriptors: another one can run the agent.
    HOST = "host"
    #: The agent's session to continue is gone; the run starts afresh.
    SESSION_LOST = "session_lost"
    #: A limit of the agent itself: turns, money, output size.
    LIMIT = "limit"


class Fault(StrEnum):
    """What a model's service has against a run: another model may take it over (``fallbacks`` in a model's block)."""

    #: 429, or the account has no money left.
    LIMIT = "limit"
    #: 5xx and 529, or no answer at all.
    OVERLOADED = "overloaded"
    #: The question is too long for the model.
    CONTEXT_LENGTH = "context_length"
    #: 401, 403: the key does not count.
    AUTH = "auth"


class Why(StrEnum):
    """The reason why a run is incomplete; the user's words for it are in ``contract/messages.toml``."""

    #: It ended by itself, without the evidence that it had finished.
    BROKE_OFF = "broke_off"
    KILLED = "killed"
    #: It finished, but there is no answer.
    SILENT = "silent"
    #: It did nothing for too long.
    IDLE = "idle"
    DEADLINE = "deadline"
    #: Of a refusal: the model's own, or its service's filter.
    REFUSED = "refused"
    FILTERED = "filtered"


#: In a run's evidence: a SIGKILL ended it that neither its worker nor its guard sent, such as the kernel's for memory.
KILLED_BY, OTHERS = "killed_by", "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The verdict over one run, with its evidence.

    Attributes:
        verdict: how it ended.
        reason: one English sentence for operators.
        why: why it is incomplete or refused, for the user's message; None for other verdicts.
        kind: of what kind the error is; None unless ``verdict`` is ERROR.
        retry_after: seconds to wait before a transient error is tried again; 0 when unknown.
        busy: the service has too much to do or limits us (429, 529): waiting longer helps, asking soon does not.
        fault: what the service has against an error's run, where it said so.
        evidence: JSON-ready facts the verdict rests on (exit code, signal, marks, ...).
    """

    verdict: Verdict
    reason: str
    kind: ErrorKind | None = None
    why: Why | None = None
    retry_after: float = 0.0
    busy: bool = False
    fault: Fault | None = None
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def lost(self) -> bool:
        """Return whether the run was taken from its worker and says nothing of the agent: others killed it."""
        return self.verdict is Verdict.INCOMPLETE and self.evidence.get(KILLED_BY) == OTHERS

    @property
    def spent(self) -> bool:
        """Return whether the account at the service has no money left: a limit that does not pass."""
        return self.kind is ErrorKind.PERMANENT and self.fault is Fault.LIMIT

    def to_dict(self) -> dict[str, Any]:
        """The completion as a JSON-ready mapping."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
