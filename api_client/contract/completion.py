"""The verdict on an agent run, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """The ways in which an agent run can end."""

    #: The agent finished, so its text may be validated.
    COMPLETE = "complete"
    #: The run ended early: it died, was cut off, gave no answer, or reached the idle or total time limit.
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    #: The model refused, or the provider's filter stopped the model.
    REFUSED = "refused"
    #: The run waits for a person to decide on a tool call, and continues afterwards.
    ASKS = "asks"
    #: The agent could not work; ``Completion.kind`` says why.
    ERROR = "error"


class ErrorKind(StrEnum):
    """The kinds of agent errors, which decide whether and how a run is retried."""

    #: Temporary: 429, 5xx, network. Retried after a while without using up an attempt.
    TRANSIENT = "transient"
    #: Permanent: bad request or bad credentials.
    PERMANENT = "permanent"
    #: The installation is wrong: program missing, hooks not loaded, script unreadable.
    CONFIG = "config"
    #: This machine lacks disk, memory, processes or descriptors: another machine can run the agent.
    HOST = "host"
    #: The agent's session no longer exists; the run starts afresh.
    SESSION_LOST = "session_lost"
    #: A limit of the agent itself: turns, money, output size.
    LIMIT = "limit"


class ProviderFault(StrEnum):
    """Reasons why a model's provider failed."""

    #: 429, or the account has no credit.
    LIMIT = "limit"
    #: 5xx, 529, or no response.
    OVERLOADED = "overloaded"
    #: The prompt is too long for the model.
    CONTEXT_LENGTH = "context_length"
    #: 401 or 403: the key is not accepted.
    AUTH = "auth"


class IncompleteReason(StrEnum):
    """Reasons why an agent run gave no complete answer."""

    #: The run ended by itself without evidence that the agent had finished.
    BROKE_OFF = "broke_off"
    KILLED = "killed"
    #: The agent finished without an answer.
    SILENT = "silent"
    #: The agent did nothing for too long.
    IDLE = "idle"
    DEADLINE = "deadline"
    #: Refused by the model itself, or by the provider's filter.
    REFUSED = "refused"
    FILTERED = "filtered"


#: Evidence that a SIGKILL from outside ended the run, such as the kernel's when memory is short.
KILLED_BY, OTHERS = "killed_by", "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The verdict on an agent run, together with the evidence for it.

    Attributes:
        reason: one English sentence for operators.
        why: why the run is incomplete or refused, for the user's message; None for other verdicts.
        kind: the kind of error; None unless ``verdict`` is ERROR.
        retry_after: seconds to wait before retrying a transient error; 0 if unknown.
        busy: the provider is overloaded or limits requests (429, 529), so a longer wait helps.
        fault: the provider's reason, if it gave one.
        evidence: JSON-ready facts behind the verdict (exit code, signal, process tags, ...).
    """

    verdict: Verdict
    reason: str
    kind: ErrorKind | None = None
    why: IncompleteReason | None = None
    retry_after: float = 0.0
    busy: bool = False
    fault: ProviderFault | None = None
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def killed_from_outside(self) -> bool:
        """Return True if something other than the agent or this program killed the run."""
        return self.verdict is Verdict.INCOMPLETE and self.evidence.get(KILLED_BY) == OTHERS

    @property
    def out_of_credit(self) -> bool:
        """Return True if the run failed because the provider's account has no credit left."""
        return self.kind is ErrorKind.PERMANENT and self.fault is ProviderFault.LIMIT

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
