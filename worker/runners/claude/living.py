"""One process of the Claude CLI for several messages of a session (``--input-format stream-json``).

A message is complete while its process lives only if result, Stop mark and transcript agree (``exchange.py``).
Otherwise the input is closed, and the completion gate judges what the process left.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

from api_client.contract.completion import ErrorKind
from api_client.contract.failpoints import reach
from api_client.contract.settings import Settings
from worker.files.safe_io import SHORT_OF
from worker.files.session import KEPT
from worker.runners.agent_sessions import TRANSCRIPTS, session_of
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop, not_begun, stop_reason
from worker.runners.claude import cli_sessions, command, hooks
from worker.runners.claude.claude_models import model_prices
from worker.runners.claude.cli_sessions import Base
from worker.runners.claude.command import (
    READING_TOOLS,
    arguments,
    binds,
    environment,
    outbound,
    prepare,
    settings_content,
)
from worker.runners.claude.exchange import Exchange, ProcessFiles, prompt_of
from worker.runners.claude.hooks import START, STOP, STOP_FAILURE
from worker.runners.guard import box
from worker.runners.guard.agent_process import Exit
from worker.runners.guard.footprint import Bounds, Footprint, Weight
from worker.runners.guard.launch import Begun, begin, hearing
from worker.runners.guard.marks import is_stopped, number_inside, of_agent
from worker.runners.guard.processes import Processes
from worker.runners.guard.supervision import Ending, Supervision
from worker.runners.guard.watch import watched
from worker.runners.warm import idle_agents

#: Tools that start no processes, so that none can stay behind.
_STARTING_NOTHING = frozenset({*READING_TOOLS, "Write", "Edit"})
_STREAMING = ("--input-format", "stream-json", "--replay-user-messages")
#: Seconds to read a message, to confirm it, and to confirm its end after the result.
_TO_READ, _TO_TAKE, _TO_END = 30.0, 5.0, 3.0
_LOOK_SECONDS = 0.25
#: Seconds in which processes started by a message must end.
_TO_BE_ALONE = 0.1
#: Seconds that the guard needs at most to end a process.
_TO_DIE = 12.0


def fixed_part(settings: Settings, program: str, order: Order) -> str:
    """Return a digest of everything that is fixed when a kept process starts.

    Empty if a process must end with its message: for read-only runs, tool rules, tools that start processes, or if a
    required sandbox cannot be made.

    Raises:
        OSError: an input file cannot be read.
    """
    if order.read_only or order.tools or not set(settings.claude_tools) <= _STARTING_NOTHING:
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
        repr((level, Bounds.of(settings), outbound(settings, order.option))),
        # A running sandbox does not see files that were replaced after its start.
        [[str(bind.path), bind.writable, *_placed(bind.path)] for bind in seen],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _placed(path: Path) -> tuple[int, int]:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return 0, 0
    return facts.st_dev, facts.st_ino


def opened(
    agents: Processes, settings: Settings, program: str, order: Order, fixed: str, stop: Stop
) -> ClaudeLiving | RunResult:
    """Start a process for an order's session, or return a result that explains the failure. May block."""
    began, top, base = time.monotonic(), place_of(order), cli_sessions.base_of(order)
    held = contextlib.ExitStack()
    held.callback(shutil.rmtree, top, ignore_errors=True)
    files, inner = ProcessFiles(top=top, mark=order.mark, agent=session_of(order)), inside(order, top)
    try:
        begun = started(agents, settings, program, inner, files, base, stop, held, noted=order.recorded)
    except OSError as error:
        held.close()
        return not_begun(f"the run's folders could not be made: {error}", host=error.errno in SHORT_OF)
    except BaseException:
        held.close()
        raise
    if isinstance(begun, Ending):
        held.close()
        return not_begun(begun.exit.error, host=False)
    files.level, files.spent, files.prices = begun.level, base.spent, model_prices(settings.prices)
    living = ClaudeLiving(begun, held, files, Bounds.of(settings))
    living.belongs(order, fixed, base, began)
    return living


def place_of(order: Order) -> Path:
    """Return the folder for a new process, and delete leftovers of the session's earlier processes."""
    top = order.workdir / TRANSCRIPTS / KEPT / order.directory.name
    shutil.rmtree(top.parent, ignore_errors=True)
    return top


def inside(order: Order, top: Path) -> Order:
    """Return a copy of the order with the kept process's own folder."""
    return replace(order, directory=top / "work", recorded=False)


def started(
    agents: Processes,
    settings: Settings,
    program: str,
    inner: Order,
    files: ProcessFiles,
    base: Base,
    stop: Stop,
    held: contextlib.ExitStack,
    *more: str,
    noted: bool,
) -> Begun | Ending:
    """Start the CLI for several messages, in its own folder. Raises ``OSError``."""
    files.output.mkdir(parents=True)
    prepare(inner, files.home, settings)
    launch = command.launch_of(settings, program, inner, files.home, files.agent, base, None, (*_STREAMING, *more))
    return begin(agents, launch, inner, stop, lambda _: None, lambda _: (), held, noted=noted)


class ClaudeLiving:
    """A process of the CLI that answers one message after the other."""

    def __init__(self, begun: Begun, held: contextlib.ExitStack, files: ProcessFiles, bounds: Bounds) -> None:
        self.session, self.fixed = ("", files.mark), ""
        self.keepable = False
        self._process, self._held, self._files, self._bounds = begun.supervision.process, held, files, bounds
        self._door, self._base, self._began = begun.door, Base(), 0.0
        self._pids, self._weight = {self._process.pid}, Weight()
        self._tip = ""  # id of the kept transcript that matches the process's conversation
        self._sent = 0.0

    def belongs(self, order: Order, fixed: str, base: Base, began: float) -> None:
        """Assign the process to the session of its first message."""
        self.session, self.fixed = (order.owner, order.session_id), fixed
        self._base, self._began = base, began

    def continues(self, order: Order) -> bool:
        """Return whether the process is alive and holds exactly the order's conversation. May block."""
        self._base = cli_sessions.base_of(order)
        transcript = self._base.transcript
        return self._lives and self._process.silent and transcript is not None and transcript.stem == self._tip

    async def ask(self, order: Order, emit: Emit, stop: Stop) -> RunResult | None:
        """Answer one message; None if the process certainly never read the message."""
        loop, files = asyncio.get_running_loop(), self._files
        began = time.monotonic() if files.asked else self._began
        message = Exchange(order, self._base, prompt_of(order, self._base), began, begun=not files.asked)
        self.keepable, files.asked = False, files.asked + 1
        self._process.extend(stop.lease_ends)
        footprint = Footprint(self._bounds, [files.work, files.home], boxed=self._boxed)
        supervision = Supervision(self._process, order, stop, hearing(emit, message.take_line), footprint)
        message.settle = functools.partial(setattr, supervision, "settled", True)
        supervision.finished = lambda: bool(message.stream.result) and hooks.is_over(files.work)
        supervision.failures = self._door.failures if self._door else supervision.failures

        def emit_from_thread(event: AgentEvent) -> None:
            loop.call_soon_threadsafe(emit, event)

        if not await asyncio.to_thread(self._send, message) and files.was_there:
            return None
        begun = Begun(supervision, files.level, self._door, files.calls)
        self._look(message)
        try:
            report = await watched(supervision)
        finally:
            message.watched = False
        if report is None and message.late:
            return None
        if report is None:
            result = await asyncio.to_thread(self._settled, message, begun, stop, footprint, emit_from_thread)
            if result is not None:
                return result
            # In doubt, end the process and judge what it left.
            message.settle, supervision.settled = lambda: None, False
            self._process.close_input()
            report = await watched(supervision)
        return await asyncio.to_thread(self._ended, message, begun, report or Exit(), stop, emit_from_thread)

    def _look(self, message: Exchange) -> None:
        """Close the input once the message has ended without confirmation."""
        if not message.watched:
            return
        if self._process.output_ended:
            self._process.close_input()
            return
        if self._files.was_there and not message.taken_at and time.monotonic() - self._sent > _TO_TAKE:
            self._process.terminate(0)
            return
        now, folder = time.monotonic(), self._files.work / "marks"
        if message.stream.result or any((folder / name).exists() for name in (STOP, STOP_FAILURE)):
            message.ended_at = message.ended_at or now
            if now - message.ended_at >= _TO_END:
                self._process.close_input()
                return
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look, message)

    def _send(self, message: Exchange) -> bool:
        """Record and send a message; False if the process does not read the message. May block."""
        if self._door and self._files.was_there:
            try:
                self._files.calls = self._door.count()
            except OSError:
                return False
        # Before the first message, a spare's hook may be writing its mark; no mark is old then.
        for old in (self._files.work / "marks").iterdir() if self._files.asked > 1 else ():
            if old.name != START:
                old.unlink()
        self._process.record(self._files.recording(message.order))
        read = self._process.write(message.packet(), _TO_READ)
        self._sent = time.monotonic()
        return read

    def _settled(
        self, message: Exchange, begun: Begun, stop: Stop, footprint: Footprint, emit: Emit
    ) -> RunResult | None:
        """Return the result of a complete message while its process lives; None in doubt."""
        reach("agent.ended")
        files = self._files
        supervision = begun.supervision
        if stop_reason(stop) or not supervision.at_line_end:
            return None
        said = supervision.heard
        ending = Ending(exit=Exit(pid=self._process.pid), bytes=said, box=files.level, witnessed=begun.witnessed)
        proven = files.proven(files.work, message, ending)
        if proven is None:
            return None
        completion, left, length = proven
        if not self._alone(message) or footprint.folders():
            return None
        try:
            files.hand_over(message.order)
        except OSError:
            return None
        result = files.result(message, completion, left, ending, emit)
        files.length, self._tip = length, result.agent_session
        files.spent = float(message.stream.result.get("total_cost_usd") or files.spent)
        self.keepable = bool(self._tip)
        return result

    @property
    def _boxed(self) -> bool:
        return self._files.level.kind != "none"

    @property
    def _lives(self) -> bool:
        return not self._gone and not any(map(is_stopped, self._pids))

    @property
    def _gone(self) -> bool:
        return self._process.wait(0) is not None or self._process.known_end is not None

    def _alone(self, message: Exchange) -> bool:
        """Return whether the process is alive, silent and without children. Waits up to 0.1 s."""
        give_up = time.monotonic() + _TO_BE_ALONE
        while not (alone := self._is_alone(message)) and not self._gone and time.monotonic() < give_up:
            time.sleep(_TO_BE_ALONE / 5)
        return alone

    def _is_alone(self, message: Exchange) -> bool:
        first, own = self._process.pid, box.own_numbers(self._files.level) if self._boxed else frozenset()
        self._pids = of_agent(first, self._files.mark)
        others = {pid for pid in self._pids - {first} if number_inside(pid) not in own}
        message.crowded = bool(others) and not self._gone
        return first in self._pids and not others and self._process.silent and not self._gone

    def _ended(self, message: Exchange, begun: Begun, report: Exit, stop: Stop, emit: Emit) -> RunResult | None:
        """Return the result of a message whose process has ended; None for a message that was never read."""
        files, ending = self._files, begun.ended(report)
        if not message.taken_at and files.was_there and not ending.cause and not stop_reason(stop):
            return None
        killed = ending.exit.code != 0 and not ending.cause and not message.crowded
        proven = files.proven(files.work, message, ending) if killed else None
        completion, left = proven[:2] if proven else files.judged(files.work, message, ending, lives=ending.finished)
        if completion.kind is ErrorKind.SESSION_LOST:
            cli_sessions.forget(message.base)
        files.hand_over(message.order)
        return files.result(message, completion, left, ending, emit)

    def rest(self, until: float) -> None:
        """Mark the process idle; the guard kills an idle process at ``until``."""
        self._process.extend(until)
        self._process.when_ended(functools.partial(idle_agents.shared().forget, self))

    def memory(self) -> int:
        """Return the bytes that ending the process would free. May block."""
        return self._weight.of(self._pids)

    def close(self) -> None:
        """End the process, remove its files, and wait until it is gone."""
        self.keepable = False
        if self._process.wait(0) is None:
            self._process.terminate(0)
            if self._process.wait(_TO_DIE) is None:
                self._process.abandon()
                self._process.wait(_TO_DIE)
        self._process.close()
        self._held.close()
