"""One process of the Claude CLI for several messages of a session (``--input-format stream-json``).

Each message has its own UUID, by which the CLI says when it took it and when it was done with it: what comes before the
first belongs to an earlier message. A message is complete while its process lives only where its own result, its own
Stop mark and the transcript agree; in every other case the process gets the end of its input, and once it has ended the
completion gate judges all that it left, as it does for a process of one message.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from api_client.contract.settings import Settings
from worker.files.safe_io import SHORT_OF
from worker.files.session import KEPT
from worker.runners.base import AgentEvent, Emit, ErrorKind, Order, RunResult, Sent, Stop, Verdict, not_begun
from worker.runners.claude import command, completion_gate
from worker.runners.claude.answer import before, evidence_of, left_by, problem_of
from worker.runners.claude.command import (
    READING_TOOLS,
    Base,
    arguments,
    binds,
    door_environment,
    environment,
    instructions,
    outbound,
    prepare,
    prompt_for,
    settings_content,
)
from worker.runners.claude.completion_gate import START, STOP, STOP_FAILURE
from worker.runners.claude.output import ClaudeStream, NotReadable, content_of, recorded
from worker.runners.guard import box
from worker.runners.guard.agent_process import Exit
from worker.runners.guard.footprint import Bounds, Footprint, memory_of
from worker.runners.guard.launch import Begun, Launch, begin, hearing
from worker.runners.guard.marks import is_stopped, number_inside, of_agent
from worker.runners.guard.processes import Processes
from worker.runners.guard.supervision import Ending, Supervision, stopped, watched
from worker.runners.warm import idle_agents

#: Tools that start no process, and so leave nothing behind that goes on.
_STARTING_NOTHING = frozenset({*READING_TOOLS, "Write", "Edit"})
_STREAMING = ("--input-format", "stream-json", "--replay-user-messages")
#: A message must be read, reported as taken, and its end reported behind its result within these times, in seconds.
_TO_READ, _TO_TAKE, _TO_END = 30.0, 5.0, 3.0
_LOOK_SECONDS = 0.25
#: What a message's tools and hooks started has ended so soon after it, in seconds.
_TO_BE_ALONE = 0.1
#: Ending a process takes the guard this long at most, in seconds.
_TO_DIE = 12.0


def fixed_part(settings: Settings, program: str, order: Order) -> str:
    """All that a process is started with, besides its folders and the conversation, as one digest.

    Empty where a process must not outlive its message: for a run that may only read, where the agent has tools that
    start processes, and where no box can be made that must be. Raises ``OSError``: a file of it cannot be read.
    """
    if order.read_only or not set(settings.claude_tools) <= _STARTING_NOTHING:
        return ""
    try:
        level = box.level(settings.box, wanted=True)
    except box.BoxError:
        return ""
    home, memory, file = Path("/home"), order.workdir / "CLAUDE.md", Path(program).resolve().stat()
    own = replace(order, directory=Path("/work"))
    seen = binds(settings, own, Path(program), home / "settings", Base()) if level.kind != "none" else []
    parts = [
        [order.owner, order.session_id, str(order.workdir), program, file.st_ino, file.st_size, file.st_mtime_ns],
        arguments(settings, order, home / "settings", "", Base()),
        environment(settings, home),
        settings_content(own, home, settings),
        memory.read_text("utf-8", "replace") if memory.is_file() and not memory.is_symlink() else "",
        repr((level, Bounds.of(settings), outbound(settings))),
        # What was put in the place of a file or folder would not be seen in a box that was made before.
        [[str(bind.path), bind.writable, *_placed(bind.path)] for bind in seen],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _placed(path: Path) -> tuple[int, int]:
    """The file or folder that is at a path; zeros for none."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return 0, 0
    return facts.st_dev, facts.st_ino


def opened(
    agents: Processes, settings: Settings, program: str, order: Order, fixed: str, stop: Stop
) -> ClaudeLiving | RunResult:
    """Start a process for the messages of an order's session; the result that says why not. May block."""
    began, top = time.monotonic(), order.workdir / command.TRANSCRIPTS / KEPT / order.directory.name
    base, session = command.base_of(order), command.session_of(order)
    inner, home = replace(order, directory=top / "work", recorded=False), top / "home"
    # A session's messages come one after the other: whatever another process kept of it is out of date.
    shutil.rmtree(top.parent, ignore_errors=True)
    held = contextlib.ExitStack()
    held.callback(shutil.rmtree, top, ignore_errors=True)
    try:
        (inner.directory / "output").mkdir(parents=True)
        settings_file = prepare(inner, home, settings)
        launch = Launch(
            argv=[program, *arguments(settings, inner, settings_file, session, base), *_STREAMING],
            env=environment(settings, home),
            stdin=None,
            binds=binds(settings, inner, Path(program), settings_file, base),
            box=settings.box,
            wanted=True,
            bounds=Bounds.of(settings),
            writes=[home],
            outbound=outbound(settings),
            door_env=door_environment(settings),
        )
        begun = begin(agents, launch, inner, stop, lambda _: None, lambda _: (), held)
    except OSError as error:
        held.close()
        return not_begun(f"the run's folders could not be made: {error}", host=error.errno in SHORT_OF)
    except BaseException:
        held.close()
        raise
    if isinstance(begun, Ending):
        held.close()
        return not_begun(begun.exit.error, host=False)
    return ClaudeLiving(begun, held, inner, home, fixed, base, launch.bounds, began)


@dataclass(slots=True)
class Exchange:
    """One message on its way: its order, and what came since it was asked.

    Attributes:
        taken_at: when the CLI said that it took it; 0 before. begun: it has repeated it, so what follows answers it; a
            process that was asked nothing before has nothing else to say. late: something of another message came.
        over: the CLI said that it is done with it. settle: tells the watch that there is nothing more to wait for.
        ended_at: when its result or a mark of its end was first seen; 0 before.
    """

    order: Order
    base: Base
    prompt: bytes
    began: float
    stream: ClaudeStream = field(default_factory=ClaudeStream)
    taken_at: float = 0.0
    begun: bool = False
    late: bool = False
    over: bool = False
    compacted: bool = False
    settle: Callable[[], object] = lambda: None
    ended_at: float = 0.0

    @property
    def uuid(self) -> str:
        """The name by which the CLI reports on it."""
        return command.session_of(self.order)

    def packet(self) -> bytes:
        """As the CLI reads it: one line."""
        said = {"role": "user", "content": self.prompt.decode("utf-8", "replace")}
        return (
            json.dumps({"type": "user", "message": said, "parent_tool_use_id": None, "uuid": self.uuid}).encode()
            + b"\n"
        )

    def take_line(self, line: bytes) -> list[AgentEvent]:
        """Read one line of the process; one of another message is not this one's."""
        if b'"type":"command_lifecycle"' in line:
            self._note(_record(line))
            return []
        if b'"isReplay":true' in line and (record := _record(line)).get("isReplay") is True:
            self.begun = self.begun or record.get("uuid") == self.uuid
            return []
        self.compacted = self.compacted or b'"subtype":"compact_boundary"' in line
        if not self.begun and not self._precedes(line):
            self.late = True
            self.settle()
        if self.late:
            return []
        return self.stream.take_line(line)

    def _precedes(self, line: bytes) -> bool:
        """Return whether a line may come before the CLI repeats this message: its own words, or this one's failure."""
        record = _record(line)
        failed = bool(self.taken_at) and record.get("type") == "result" and record.get("is_error") is True
        return failed or record.get("type") in {"system", "rate_limit_event"}

    def _note(self, record: dict[str, Any]) -> None:
        if record.get("type") != "command_lifecycle" or record.get("command_uuid") != self.uuid:
            return
        match record.get("state"):
            case "queued":
                pass
            case "started":
                self.taken_at = time.monotonic()
            case _:
                self.over = True
                self.settle()


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


class ClaudeLiving:
    """A process of the CLI that takes one message after the other. See ``life.Living``."""

    def __init__(
        self,
        begun: Begun,
        held: contextlib.ExitStack,
        first: Order,
        home: Path,
        fixed: str,
        base: Base,
        bounds: Bounds,
        began: float,
    ) -> None:
        self.session = (first.owner, first.session_id)
        self.fixed = fixed
        self.keepable = False
        self._level, self._process, self._held = begun.level, begun.supervision.process, held
        self._work, self._home, self._bounds = first.directory, home, bounds
        self._mark, self._agent = first.mark, command.session_of(first)
        self._base, self._began = base, began
        self._pids = {self._process.pid}
        self._asked = 0
        self._tip = ""  # the kept transcript that holds all that this process has heard
        self._length = 0  # in its transcript, at the end of the last message
        self._spent = base.spent

    def continues(self, order: Order) -> bool:
        """Return whether it lives, and holds exactly the conversation that the order goes on from. May block."""
        self._base = command.base_of(order)
        transcript = self._base.transcript
        lives = self._process.wait(0) is None and self._process.known_end is None and self._process.silent
        lives = lives and not any(map(is_stopped, self._pids))
        return lives and transcript is not None and transcript.stem == self._tip

    async def ask(self, order: Order, emit: Emit, stop: Stop) -> RunResult | None:
        """One message, to the end; None where it was surely never taken."""
        loop = asyncio.get_running_loop()
        message = Exchange(
            order, self._base, _prompt(order, self._base), time.monotonic() if self._asked else self._began
        )
        self.keepable, self._asked = False, self._asked + 1
        message.begun = self._asked == 1
        self._process.extend(stop.lease_ends)
        footprint = Footprint(self._bounds, [self._work, self._home], boxed=self._boxed)
        supervision = Supervision(self._process, order, stop, hearing(emit, message.take_line), footprint)
        begun = Begun(supervision, self._level)
        message.settle = functools.partial(setattr, supervision, "settled", True)

        def emit_from_thread(event: AgentEvent) -> None:
            loop.call_soon_threadsafe(emit, event)

        if not await asyncio.to_thread(self._send, message) and self._asked > 1:
            return None
        self._look(message)
        try:
            report = await watched(supervision)
        finally:
            message.over = True
        if report is None and message.late:
            return None
        if report is None:
            result = await asyncio.to_thread(self._settled, message, supervision, stop, footprint, emit_from_thread)
            if result is not None:
                return result
            # In doubt it ends, and all it left is judged.
            message.settle, supervision.settled = lambda: None, False
            self._process.close_input()
            report = await watched(supervision)
        return await asyncio.to_thread(self._ended, message, begun, report or Exit(), stop, emit_from_thread)

    def _look(self, message: Exchange) -> None:
        """Give it the end of its input once its message has ended and it does not say so. In the loop."""
        if message.over:
            return
        if self._process.output_ended:
            self._process.close_input()
            return
        if self._asked > 1 and not message.taken_at and time.monotonic() - message.began > _TO_TAKE:
            self._process.terminate(0)
            return
        now, folder = time.monotonic(), self._work / "marks"
        if message.stream.result or any((folder / name).exists() for name in (STOP, STOP_FAILURE)):
            message.ended_at = message.ended_at or now
            if now - message.ended_at >= _TO_END:
                self._process.close_input()
                return
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look, message)

    def _send(self, message: Exchange) -> bool:
        """Hand it to the process; False when that does not read it. May block."""
        for old in (self._work / "marks").iterdir():
            if old.name != START:
                old.unlink()
        return self._process.write(message.packet(), _TO_READ)

    def _settled(
        self, message: Exchange, supervision: Supervision, stop: Stop, footprint: Footprint, emit: Emit
    ) -> RunResult | None:
        """The result of a message that is complete beyond doubt while its process lives; None in doubt."""
        order, stream = message.order, message.stream
        if stop.reason or message.compacted or not stream.whole or not supervision.at_line_end:
            return None
        judged = replace(order, directory=self._work)
        left = left_by(judged, self._agent, message.prompt, message.base, self._home, stream)
        if left.origin == "transcript":
            return None
        ending = Ending(exit=Exit(pid=self._process.pid), bytes=supervision.heard, box=self._level)
        evidence = replace(evidence_of(judged, self._mark, self._agent, ending, stream, left), lives=True)
        facts = {**ending.evidence, **self._facts(message), "text_from": left.origin}
        completion = completion_gate.judge(replace(evidence, unwritable=""), facts)
        if completion.verdict is not Verdict.COMPLETE:
            return None
        try:
            content = content_of(left.transcript, self._agent, self._home)
            earlier = b"" if self._length else before(message.base)
            found = recorded(content[self._length :], self._agent, message.prompt, earlier)
            if problem_of(found, left.marks, stream) or not self._alone() or footprint.folders():
                return None
            self._hand_over(order)
        except (OSError, ValueError, NotReadable):
            return None
        result = self._result(message, completion, left.text, left.origin, left.transcript, emit)
        self._length, self._tip = len(content), result.agent_session
        self._spent = float(stream.result.get("total_cost_usd") or self._spent)
        self.keepable = bool(self._tip)
        return result

    @property
    def _boxed(self) -> bool:
        return self._level.kind != "none"

    def _alone(self) -> bool:
        """Return whether it lives, says nothing more, and no process of it is there but its own. Waits a moment."""
        give_up = time.monotonic() + _TO_BE_ALONE
        while not (alone := self._is_alone()) and time.monotonic() < give_up:
            time.sleep(_TO_BE_ALONE / 5)
        return alone

    def _is_alone(self) -> bool:
        first, own = self._process.pid, box.own_numbers(self._level) if self._boxed else frozenset()
        self._pids = of_agent(first, self._mark)
        others = {pid for pid in self._pids - {first} if number_inside(pid) not in own}
        return first in self._pids and not others and self._process.silent and self._process.known_end is None

    def _ended(self, message: Exchange, begun: Begun, report: Exit, stop: Stop, emit: Emit) -> RunResult | None:
        """The result of a message whose process has ended; None where it never took it."""
        order, stream, ending = message.order, message.stream, begun.ended(report)
        if not message.taken_at and self._asked > 1 and not ending.cause and not stop.reason:
            return None
        judged = replace(order, directory=self._work)
        left = left_by(judged, self._agent, message.prompt, message.base, self._home, stream)
        facts = {**ending.evidence, **self._facts(message), "text_from": left.origin}
        completion = stopped(ending, order, facts) or completion_gate.judge(
            evidence_of(judged, self._mark, self._agent, ending, stream, left), facts
        )
        if completion.kind is ErrorKind.SESSION_LOST:
            command.forget(message.base)
        self._hand_over(order)
        return self._result(message, completion, left.text, left.origin, left.transcript, emit)

    def _result(
        self, message: Exchange, completion: Any, text: str, origin: str, transcript: str, emit: Emit
    ) -> RunResult:
        """The result, with the log made to agree with the answer, and the transcript kept where it is complete."""
        order, stream = message.order, message.stream
        if completion.verdict is not Verdict.CANCELLED:
            for event in stream.replace(text, f"the answer is in the {origin}"):
                emit(event)
        session, kept_now = command.session_of(order), False
        if completion.verdict is Verdict.COMPLETE:
            kept_now = command.keep(order, session, transcript, self._home, of=self._agent)
        said = {"role": "user", "content": message.prompt.decode("utf-8", "replace")}
        return RunResult(
            completion=completion,
            text=stream.text,
            usage=stream.usage(self._spent),
            agent_session=session if kept_now else "",
            sent=Sent(system=instructions(self._home), messages=(said,), continues=message.base.knows),
        )

    def _facts(self, message: Exchange) -> dict[str, Any]:
        """How this message began, and how its stream went."""
        stream, taken = message.stream, message.taken_at
        facts: dict[str, Any] = {"retries": stream.retries, "continued": message.base.knows}
        facts |= {"skipped_lines": stream.skipped} if stream.skipped else {}
        facts["start"] = "warm" if self._asked > 1 else "cold"
        return facts | ({"start_ms": round(1000 * (taken - message.began))} if taken else {})

    def _hand_over(self, order: Order) -> None:
        """Move what a message wrote into its delivery's folder: the next one finds none of it. Raises ``OSError``."""
        own = [path for path in self._work.iterdir() if path.name != "marks"]
        for path in own:
            path.rename(order.directory / path.name)
        (self._work / "output").mkdir()
        (order.directory / "marks").mkdir(exist_ok=True)
        for mark in (self._work / "marks").iterdir():
            shutil.copyfile(mark, order.directory / "marks" / mark.name)

    def rest(self, until: float) -> None:
        """Nothing is asked now: the guard ends it at ``until``."""
        self._process.extend(until)
        self._process.when_ended(functools.partial(idle_agents.shared().forget, self))

    def memory(self) -> int:
        """Return what it holds, in bytes. May block."""
        return memory_of(self._process.pid)

    def close(self) -> None:
        """End it, and remove what it leaves; returns when it is gone."""
        self.keepable = False
        if self._process.wait(0) is None:
            self._process.terminate(0)
            if self._process.wait(_TO_DIE) is None:
                self._process.abandon()
                self._process.wait(_TO_DIE)
        self._process.close()
        self._held.close()


def _prompt(order: Order, base: Base) -> bytes:
    return prompt_for(order.prompt, order.messages, knows=base.knows, so_far=order.so_far, locale=order.locale)
