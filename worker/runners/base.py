"""The runner protocol: a runner runs one agent once and reports what the agent does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from api_client.contract.completion import Completion as Completion
from api_client.contract.completion import ErrorKind as ErrorKind
from api_client.contract.completion import Verdict as Verdict
from api_client.contract.interruption import Interruption
from worker.enforcement.claims.journal import Journal
from worker.runners.sent import SentInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOrders:
    """The rules for the agent's tool calls.

    Attributes:
        rules: as ``ToolRule.to_dict`` writes them, in order. root: HELIX_ROOT.
        asks: a person can be asked; else such a call is denied.
        keeper: the socket of the ``PermitKeeper`` of a run that goes on from a person's answer.
        denied: what the agent hears about a call that the rules deny. unasked: about one that nobody can be asked
            about. later: about one that comes together with a question. said: what it hears of a person's answer.
        secrets: values that a question does not show, the longest first.
    """

    rules: tuple[Mapping[str, Any], ...]
    root: Path
    asks: bool = True
    keeper: Path | None = None
    denied: str = ""
    unasked: str = ""
    later: str = ""
    said: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)


AgentEventKind = Literal["output", "reset", "tool", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """Something the agent did. ``text`` is the piece of answer, the reason of a reset, the tool's name, or the note."""

    kind: AgentEventKind
    text: str = ""
    detail: str = ""


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
        option: the rest of the model's runner after ``:``, such as a script's path.
        deadline: when the run must be over, by ``time.monotonic()``.
        idle_seconds: longest silence of the agent.  kill_grace_seconds: time between SIGTERM and SIGKILL.
        read_only: the agent may read in ``directory``, and nothing else: no tool of its writes, runs or fetches.
        inputs: files outside the project that it may read: what earlier work of its owner left.
        witness: file in which the scripted agent records what it executed, or empty.
        owner: whose session it is; the agent's process may then be kept for its next message. Empty: it never is.
        tools: what may become of its tool calls; None: its own permissions decide.
        interruption: the question that an earlier delivery ended with, and its answer: this run goes on from there.
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
    owner: str = ""
    recorded: bool = False
    tools: ToolOrders | None = None
    interruption: Interruption | None = None

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
    ``interruption`` is what the turn is to wait for, where the verdict says so.
    For ``kept_seconds`` its process waits here for the session's next message; 0: it has ended.
    ``journal`` is what its agent reported of its tools; None of an agent that reports none.
    """

    completion: Completion
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    agent_session: str = ""
    sent: SentInput | None = None
    adopted: int = 0
    kept_seconds: float = 0.0
    journal: Journal | None = None
    interruption: Interruption | None = None


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


def stop_reason(stop: Stop) -> str:
    """Return why an agent must end; empty also while its guard suspends it: only the store knows whose turn it is."""
    return "" if getattr(stop, "in_doubt", False) else stop.reason


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
