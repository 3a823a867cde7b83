"""The interface of runners, each of which runs an agent once and reports its progress and result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from api_client.contract.completion import Completion as Completion
from api_client.contract.completion import ErrorKind as ErrorKind
from api_client.contract.completion import Verdict as Verdict
from api_client.contract.interruption import Interruption
from worker.enforcement.tool_call_log import ToolCallLog
from worker.runners.sent_input import SentInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOrders:
    """The rules for an agent's tool calls in one run, and the texts shown to the agent when a rule applies.

    Attributes:
        rules: rules as ``ToolRule.to_dict`` writes them, in order.
        asks: True if a person can be asked; otherwise such calls are denied.
        approval_socket: socket of the ``ApprovalServer``, after a person's decision.
        denied, unasked, later, said: texts for the agent: a denied call, nobody to ask, a call beside a question, and a
            person's decision.
        secrets: values hidden from questions, longest first.
    """

    rules: tuple[Mapping[str, Any], ...]
    root: Path
    asks: bool = True
    approval_socket: Path | None = None
    denied: str = ""
    unasked: str = ""
    later: str = ""
    said: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAccess:
    """The connection from a run to its tool gateway, an MCP server outside the sandbox.

    The model proxy adds ``secret``, which names the run; the agent never has it.
    """

    socket: Path
    secret: str = field(repr=False)


AgentEventKind = Literal["output", "reset", "tool", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An event reported by a running agent: a piece or a reset of its answer, a tool call or a note.

    ``server`` and ``result_bytes`` describe a call that went through the tool gateway.
    """

    kind: AgentEventKind
    text: str = ""
    detail: str = ""
    server: str = ""
    result_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Everything that a runner needs to know to run an agent once.

    Attributes:
        attempt, delivery: numbers from 1; deliveries count over the whole turn.
        messages: the conversation, oldest first, ending with the user's message.
        directory: the delivery's folder, for all files of the agent.
        agent_session: the agent session to continue; empty for a fresh one.
        so_far: the interrupted answer to continue; empty for none.
        rejected: the answer that the feedback in ``prompt`` is about, for an agent that does not remember it.
        option: the part after ``:`` in the model's runner.
        deadline: latest end, by ``time.monotonic()``.
        read_only: True if the agent may only read files in ``directory``.
        inputs: readable files from the owner's earlier work.
        action_log: log file of the scripted agent; empty for none.
        owner: owner of the session, whose agent process may be kept; empty: never.
        recorded: True to record the output, so that another worker can adopt the run.
        tools: rules for tool calls; None leaves decisions to the agent.
        interruption: the answered question that ended an earlier delivery.
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
    rejected: str = ""
    model: str = ""
    option: str = ""
    locale: str = "en"
    deadline: float
    idle_seconds: float = 600.0
    kill_grace_seconds: float = 5.0
    read_only: bool = False
    inputs: tuple[Path, ...] = ()
    action_log: str = ""
    owner: str = ""
    recorded: bool = False
    tools: ToolOrders | None = None
    interruption: Interruption | None = None
    tool_access: ToolAccess | None = None

    @property
    def process_tag(self) -> str:
        """Return the tag that marks all processes of the run: ``<turn>.<attempt>.<delivery>``."""
        return f"{self.turn_id}.{self.attempt}.{self.delivery}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of an agent run: the verdict, the answer, and the tokens and money that the run used.

    Attributes:
        text: the answer, or its longest known beginning.
        sent: the input, if it was more than the prompt.
        adopted: number of the earlier delivery whose run this was; 0 for none.
        kept_seconds: how long the agent process stays for the next message.
        tool_calls: the agent's tool calls; None if it reports none.
    """

    completion: Completion
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    agent_session: str = ""
    sent: SentInput | None = None
    adopted: int = 0
    kept_seconds: float = 0.0
    tool_calls: ToolCallLog | None = None
    interruption: Interruption | None = None


def not_begun(reason: str, *, host: bool) -> RunResult:
    """Return an error result for a run that could not start. ``host`` says that this machine is to blame."""
    kind = ErrorKind.HOST if host else ErrorKind.TRANSIENT
    return RunResult(completion=Completion(verdict=Verdict.ERROR, kind=kind, reason=reason))


def config_error(reason: str) -> RunResult:
    """Return an error result for a run whose configuration or script is invalid."""
    return RunResult(completion=Completion(verdict=Verdict.ERROR, kind=ErrorKind.CONFIG, reason=reason))


class Stop(Protocol):
    """Interface that tells a runner when and why to end an agent. Runners check it every 0.2 s."""

    @property
    def reason(self) -> str:
        """Return why the run must end (``cancelled``, ``expired``, ``shutdown``, ``fenced``), or an empty string."""

    @property
    def lease_ends(self) -> float:
        """Return the ``time.monotonic()`` value at which this worker's lease ends. The agent must end earlier."""


#: Reason of a ``Stop`` whose run waits for an answer; its session is kept.
SUSPENDED = "suspended"


def find_stop_reason(stop: Stop) -> str:
    """Return the reason why the agent must end, or an empty string to continue, also while the lease is uncertain."""
    return "" if getattr(stop, "in_doubt", False) else stop.reason


Emit = Callable[[AgentEvent], None]


def needs_folder(runner: object) -> bool:
    """Return True if each run of this runner needs a folder for its agent's files."""
    return bool(getattr(runner, "needs_folder", True))


def reads_files(runner: object) -> bool:
    """Return True if this runner's agents can read files."""
    return bool(getattr(runner, "reads_files", True))


def continues_answer(runner: object, order: Order) -> bool:
    """Return True if a run after a question goes on with the answer, because its agent remembers the conversation.

    Any other agent starts anew, and writes the whole answer once more.
    """
    return bool(order.agent_session) and bool(getattr(runner, "remembers", True))


class Runner(Protocol):
    """Interface for running agents of one kind, each run in its own thread."""

    @property
    def name(self) -> str:
        """Return the name by which ``HELIX_MODELS`` refers to this runner."""

    def run(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once and return its result after all processes of the run have ended.

        A failed agent is a verdict, never an exception.
        """


@runtime_checkable
class AdoptingRunner(Protocol):
    """Interface of runners that can read a finished run's result from the files that the run left behind."""

    def adopt(self, order: Order) -> RunResult | None:
        """Return the result of an earlier complete run from its folder, or None if the agent must run again."""


class AsyncRunner(Protocol):
    """Interface for running agents of one kind in the worker's event loop, without a thread for each run."""

    @property
    def name(self) -> str: ...

    async def run_async(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Run the agent once in the event loop, and return its result. Must not block the loop."""


#: A runner that has both methods runs in the event loop.
AnyRunner = Runner | AsyncRunner


def runs_in_loop(runner: object) -> TypeGuard[AsyncRunner]:
    """Return True if a runner runs its agents in the event loop instead of a thread."""
    return hasattr(runner, "run_async")  # ten times faster than isinstance with a protocol


#: Builds a runner and its option from the model's runner in HELIX_MODELS. Raises ``SettingsError``.
BuildRunner = Callable[[str], tuple[AnyRunner, str]]
