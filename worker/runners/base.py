"""A runner: it runs one agent once, reports what the agent does, and brings evidence of its end.

A runner never decides whether an answer is good. It says whether the agent really finished (ADR-036).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeGuard, get_args, runtime_checkable

from api_client.contract.completion import Completion as Completion
from api_client.contract.completion import ErrorKind as ErrorKind
from api_client.contract.completion import Fault as Fault
from api_client.contract.completion import Verdict as Verdict
from api_client.contract.completion import Why as Why
from api_client.contract.tool_calls import ToolQuestion, WaitingCall
from worker.enforcement.claims.journal import CallKind, Journal, JournalWriter
from worker.runners.service_errors import plain_words

# The input of an agent or service as its runner really sent it, kept with the attempt. Pure.
#
# Secrets are masked. Of a very long conversation the oldest messages are left out, and that is said.

#: Characters kept of all texts together: the conversation is in the turn's request too.
MOST_CHARS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One run's input.

    Attributes:
        system: instructions beside the messages: the session's CLAUDE.md, or the system message of a service.
        messages: role and content of each message, oldest first; of an image only its text and name.
        continues: what the agent knew already from the session it continued; empty for a fresh session.
    """

    system: str = ""
    messages: Sequence[Mapping[str, str]] = ()
    continues: str = ""

    def to_dict(self, redact: Callable[[str], str]) -> dict[str, Any]:
        """As it is stored: every text redacted, the newest messages first in line for the room there is."""
        left = MOST_CHARS
        kept: list[dict[str, str]] = []
        for message in reversed(self.messages):
            text = redact(message.get("content", ""))
            kept.append({"role": message.get("role", ""), "content": _end_of(text, left)})
            left -= min(left, len(text))
        stored: dict[str, Any] = {"system": _beginning_of(redact(self.system), MOST_CHARS), "messages": kept[::-1]}
        return stored | ({"continues": self.continues} if self.continues else {})


def _beginning_of(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[{len(text) - most} characters are left out here]"


def _end_of(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"[{len(text) - most} characters are left out here]\n{text[len(text) - most :]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOrders:
    """The rules for the agent's tool calls.

    Attributes:
        rules: as ``ToolRule.to_dict`` writes them, in order. root: HELIX_ROOT.
        asks: a person can be asked; else such a call is denied.
        answered: the question that an earlier delivery ended with: this run goes on from there.
        keeper: the socket of the ``PermitKeeper`` of such a run.
        denied: what the agent hears about a call that the rules deny. unasked: about one that nobody can be asked
            about. later: about one that comes together with a question. said: what it hears of a person's answer.
    """

    rules: tuple[Mapping[str, Any], ...]
    root: Path
    asks: bool = True
    answered: ToolQuestion | None = None
    keeper: Path | None = None
    denied: str = ""
    unasked: str = ""
    later: str = ""
    said: str = ""


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
        option: what is after ``:`` in the model's runner, such as a script's path.
        deadline: when the run must be over, by ``time.monotonic()``.
        idle_seconds: longest silence of the agent.  kill_grace_seconds: time between SIGTERM and SIGKILL.
        read_only: the agent may read in ``directory``, and nothing else: no tool of its writes, runs or fetches.
        inputs: files outside the project that it may read: what earlier phases of its owner wrote.
        witness: file in which the scripted agent records what it executed, or empty.
        owner: whose session it is; the agent's process may then be kept for its next message. Empty: it never is.
        tools: what may become of its tool calls; None: its own permissions decide.
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

    @property
    def answered(self) -> ToolQuestion | None:
        """The question from which this run goes on."""
        return self.tools.answered if self.tools else None

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
    ``call`` is the tool call that a person is to be asked about, where the verdict says so.
    For ``kept_seconds`` its process waits here for the session's next message; 0: it has ended.
    ``journal`` is what its agent reported of its tools; None of an agent that reports none.
    """

    completion: Completion
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    agent_session: str = ""
    sent: Sent | None = None
    adopted: int = 0
    kept_seconds: float = 0.0
    journal: Journal | None = None
    call: WaitingCall | None = None


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


# An agent's output, line by line, and the completion gate of the scripted runners. Pure.

#: Longest answer in characters; a longer one is a limit error, not an answer.
MAX_ANSWER = 4 * 2**20

#: What is passed on as it comes.
_EVENTS: dict[str, AgentEventKind] = {"output": "output", "reset": "reset", "tool": "tool", "note": "note"}


class AnswerTooLong(Exception):
    """The answer went over ``MAX_ANSWER``."""


def json_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object that a line of an agent's output is; None for any other line."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def killed(code: int | None, who: str) -> tuple[Why, str] | None:
    """Why the run of ``who`` is incomplete, and in words, where a signal ended it, or nobody knows; else None."""
    if code is None:
        return Why.BROKE_OFF, f"nobody knows how {who} ended"
    return (Why.KILLED, f"{who} was killed by signal {-code}") if code < 0 else None


class Transcript:
    """Collects the agent's output: the answer so far, its usage, its error, whether it gave a result."""

    def __init__(self) -> None:
        self.result = False
        self.error: dict[str, Any] = {}
        self.refusal: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self.skipped = 0
        self._journal = JournalWriter()
        self._pieces: list[str] = []
        self._length = 0

    @property
    def text(self) -> str:
        """The answer so far; resets are taken into account."""
        return "".join(self._pieces)

    @property
    def journal(self) -> Journal | None:
        """The agent's tools; None where it reported no use of one as a ``call``."""
        found = self._journal.journal
        return found if found.calls else None

    @property
    def evidence(self) -> dict[str, Any]:
        """Return whether there was a result, how many lines meant nothing, and what the agent says about itself."""
        return {**self.facts, "result": self.result, "skipped_lines": self.skipped}

    def take_line(self, line: bytes) -> list[AgentEvent]:
        """Read one line; one that is not a JSON object is skipped and counted. Returns what others should hear of it.

        Raises:
            AnswerTooLong: the answer is longer than an answer may be.
        """
        event = json_object(line)
        if event is None:
            self.skipped += 1
            return []
        heard = self.take(event)
        return [heard] if heard else []

    def take(self, event: dict[str, Any]) -> AgentEvent | None:
        """Take in a line of the agent; returns what to pass on.

        Raises:
            AnswerTooLong: the answer is longer than an answer may be.
        """
        kind = str(event.get("event"))
        # A lone surrogate can be written in JSON, but in no file, message or key.
        text = str(event.get("text", "")).encode("utf-8", "replace").decode()
        match kind:
            case "result":
                self.result = True
            case "error":
                self.error = event
            case "refusal":
                self.refusal = event
            case "usage" if isinstance(event.get("usage"), dict):
                self.usage.update(event["usage"])
            case "evidence" if isinstance(event.get("facts"), dict):
                self.facts.update(event["facts"])
            case "output":
                self._length += len(text)
                if self._length > MAX_ANSWER:
                    raise AnswerTooLong
                self._pieces.append(text)
            case "reset":
                self._pieces.clear()
                self._length = 0
            case "tool" | "note":
                pass
            case "call":
                self._call(event)
            case _:
                self.skipped += 1
        shown = _EVENTS.get(kind)
        return AgentEvent(kind=shown, text=text, detail=str(event.get("detail", ""))) if shown else None

    def _call(self, event: dict[str, Any]) -> None:
        """Note the use of a tool that has ended; its files are one use each."""
        ok, code = event.get("ok"), event.get("code")
        kind: CallKind = next((each for each in get_args(CallKind) if each == event.get("kind")), "other")
        for number, what in enumerate(event.get("what") or ()):
            name = f"{event.get('id')}:{number}"
            self._journal.begin(name, kind, str(what))
            self._journal.end(
                name,
                ok=ok if isinstance(ok, bool) else None,
                ran=event.get("ran") is not False,
                output=str(event.get("output") or ""),
                code=code if isinstance(code, int) and not isinstance(code, bool) else None,
            )


def judge(transcript: Transcript, code: int | None, evidence: dict[str, Any]) -> Completion:
    """The completion gate for an agent that ended by itself (ADR-036).

    Complete only when it ended with exit code 0 *and* gave a result *and* said something: the end of its output
    alone proves nothing.
    """
    evidence = {**evidence, "exit_code": code, **transcript.evidence}
    if transcript.error:
        return _reported_error(transcript.error, evidence)
    if refusal := transcript.refusal:
        return refused(str(refusal.get("text", "")), evidence, filtered=refusal.get("filtered") is True)
    why = Why.BROKE_OFF
    if ended := killed(code, "the agent"):
        why, reason = ended
    elif code:
        reason = f"the agent ended with exit code {code}"
    elif not transcript.result:
        reason = str(evidence.get("ended") or "the agent's output ended without a result")
    elif not transcript.text.strip():
        why, reason = Why.SILENT, "the agent finished but said nothing"
    else:
        return Completion(verdict=Verdict.COMPLETE, reason="exit code 0 and a result", evidence=evidence)
    return Completion(verdict=Verdict.INCOMPLETE, why=why, reason=reason, evidence=evidence)


def refused(said: str, evidence: dict[str, Any], *, filtered: bool) -> Completion:
    """The verdict where the provider says that the model refused, in its own words, or that a filter stopped it."""
    by = "the service's filter stopped the answer" if filtered else "the model refused"
    reason = f"{by}: {said}" if said.strip() else by
    why = Why.FILTERED if filtered else Why.REFUSED
    return Completion(verdict=Verdict.REFUSED, why=why, reason=" ".join(reason.split())[:300], evidence=evidence)


def _reported_error(error: dict[str, Any], evidence: dict[str, Any]) -> Completion:
    kind, retry_after, fault = error.get("kind"), error.get("retry_after"), error.get("fault")
    return Completion(
        verdict=Verdict.ERROR,
        reason=plain_words(str(error.get("text") or "")) or "the agent reported an error",
        kind=ErrorKind(kind) if kind in list(ErrorKind) else ErrorKind.PERMANENT,
        retry_after=float(retry_after) if isinstance(retry_after, int | float) and 0 < retry_after < 1e9 else 0.0,
        busy=error.get("busy") is True,
        fault=Fault(fault) if fault in list(Fault) else None,
        evidence=evidence,
    )
