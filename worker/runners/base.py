"""A runner: it runs one agent once, reports what the agent does, and brings evidence of its end.

A runner never decides whether an answer is good. It says whether the agent really finished (ADR-036).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from worker.runners.sent import Sent

AgentEventKind = Literal["output", "reset", "tool", "note"]


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
    #: A limit of the agent itself: turns, budget, output size.
    LIMIT = "limit"


class Why(StrEnum):
    """The reason why a run is incomplete; the user's words for it are in ``contract/words/messages.toml``."""

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
class AgentEvent:
    """Something the agent did. ``text`` is the piece of answer, the reason of a reset, the tool's name, or the note."""

    kind: AgentEventKind
    text: str = ""
    detail: str = ""


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
        evidence: JSON-ready facts the verdict rests on (exit code, signal, marks, ...).
    """

    verdict: Verdict
    reason: str
    kind: ErrorKind | None = None
    why: Why | None = None
    retry_after: float = 0.0
    busy: bool = False
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def lost(self) -> bool:
        """Return whether the run was taken from its worker and says nothing of the agent: others killed it."""
        return self.verdict is Verdict.INCOMPLETE and self.evidence.get(KILLED_BY) == OTHERS

    def to_dict(self) -> dict[str, Any]:
        """The completion as a JSON-ready mapping."""
        return {
            "verdict": self.verdict.value,
            "reason": self.reason,
            "kind": self.kind.value if self.kind else None,
            "why": self.why.value if self.why else None,
            "retry_after": self.retry_after,
            "busy": self.busy,
            "evidence": self.evidence,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order to a runner.

    Attributes:
        turn_id, session_id: whose run this is.
        attempt: number of the attempt, from 1. delivery: number of the delivery over the whole turn, from 1.
        prompt: what to say to the agent: the user's message, or the feedback.
        messages: the conversation so far, oldest first, the user's message last.
        workdir: the session's folder. directory: this delivery's own folder; all the agent writes belongs there.
            Neither is made for a runner that needs no folder (``needs_folder``).
        agent_session: the agent session to continue from, or empty for a fresh one.
        so_far: the text of this answer that came before a break, and that the agent is asked to go on from; or empty.
        model: name of the model that is asked; its block of the settings file holds.
        locale: language of what we say to the agent besides, ``de`` or ``en``.
        option: what is after ``:`` in the model's runner, such as a script's path.
        deadline: when the run must be over, by ``time.monotonic()``.
        idle_seconds: longest silence of the agent.  kill_grace_seconds: time between SIGTERM and SIGKILL.
        read_only: the agent may read in ``directory``, and nothing else: no tool of its writes, runs or fetches.
        inputs: files outside the project that it may read: what earlier phases of its owner wrote.
        witness: file in which the scripted agent records what it executed, or empty.
        recorded: its output is kept beside ``directory`` while it runs, so that a finished run can be adopted.
    """

    turn_id: str
    session_id: str
    attempt: int
    delivery: int
    prompt: str
    messages: tuple[dict[str, str], ...]
    workdir: Path
    directory: Path
    agent_session: str = ""
    so_far: str = ""
    model: str = ""
    option: str = ""
    locale: str = "en"
    deadline: float
    idle_seconds: float = 600.0
    kill_grace_seconds: float = 5.0
    read_only: bool = False
    inputs: tuple[Path, ...] = ()
    witness: str = ""
    recorded: bool = False

    @property
    def mark(self) -> str:
        """The mark of the run, found in all its processes: ``<turn>.<attempt>.<delivery>``."""
        return f"{self.turn_id}.{self.attempt}.{self.delivery}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result: the verdict, the text, usage, and the agent session to continue from.

    ``adopted`` is the number of the earlier delivery that this was the run of; 0 for the delivery at work.
    The text of a run that is not complete is the longest text known of its answer: a beginning of it, in order.
    ``sent`` is what the agent was really sent, where that is more than the order's prompt.
    """

    completion: Completion
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    agent_session: str = ""
    sent: Sent | None = None
    adopted: int = 0


def not_begun(reason: str, *, host: bool) -> RunResult:
    """The result when the agent was never started: by a fault of this machine, or by another that passes."""
    kind = ErrorKind.HOST if host else ErrorKind.TRANSIENT
    return RunResult(completion=Completion(verdict=Verdict.ERROR, kind=kind, reason=reason))


def config_error(reason: str) -> RunResult:
    """The result when the installation, or the script, is wrong."""
    return RunResult(completion=Completion(verdict=Verdict.ERROR, kind=ErrorKind.CONFIG, reason=reason))


class Stop(Protocol):
    """Asks a running agent to end. Checked by the runner at least every 0.2 s."""

    @property
    def reason(self) -> str:
        """Empty while the run may go on; else ``cancelled``, ``expired``, ``shutdown`` or ``fenced``."""
        ...

    @property
    def lease_ends(self) -> float:
        """Until when, by ``time.monotonic()``, this worker surely holds the turn. The agent must not outlive it."""
        ...


Emit = Callable[[AgentEvent], None]


def needs_folder(runner: object) -> bool:
    """True if a runner's agents work in files: then each run gets its own folder, and the session's is made ready.

    A runner whose agents never touch a file says ``needs_folder = False``: its order's ``directory`` is then not made.
    """
    return bool(getattr(runner, "needs_folder", True))


def reads_files(runner: object) -> bool:
    """Return whether a runner's agents have tools, and can read files. One without says ``reads_files = False``."""
    return bool(getattr(runner, "reads_files", True))


class Runner(Protocol):
    """Runs agents of one kind, and blocks while one runs: each run has a thread. Used by many threads at once."""

    @property
    def name(self) -> str:
        """The name in ``HELIX_MODELS``."""
        ...

    def run(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once, to the end, and report.

        An agent's failure is a verdict, never an exception; when this returns, no process of the run is left.
        """
        ...


@runtime_checkable
class Adopts(Protocol):
    """A runner that knows a finished run by what it left in its delivery's folder. Optional."""

    def adopt(self, order: Order) -> RunResult | None:
        """The complete result of the delivery that ``order`` names; None where its agent must run again. May block."""
        ...


class AsyncRunner(Protocol):
    """Runs agents of one kind in the worker's event loop: a run that waits costs no thread."""

    @property
    def name(self) -> str:
        """The name in ``HELIX_MODELS``."""
        ...

    async def run_async(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """As ``Runner.run``. Never blocks the loop for more than some milliseconds."""
        ...


#: A runner offers one of the two ways to run; one that offers both is run in the loop.
AnyRunner = Runner | AsyncRunner


def in_loop(runner: object) -> TypeGuard[AsyncRunner]:
    """Return whether a runner runs in the event loop."""
    return hasattr(runner, "run_async")  # a tenth of what a protocol's isinstance takes


#: From a model's runner as HELIX_MODELS names it, to the runner and its option. Raises ``SettingsError``.
BuildRunner = Callable[[str], tuple[AnyRunner, str]]
