"""A process of the Claude CLI that answers several messages of a session (``--input-format stream-json``).

A message is complete while its process lives only if result, Stop mark and transcript agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path

from api_client.contract.completion import ErrorKind
from api_client.contract.failpoints import pass_failpoint
from api_client.contract.settings import Settings
from worker.files.folder_trees import remove_tree
from worker.files.safe_io import SHORT_OF
from worker.files.session import KEPT
from worker.runners.agent_sessions import TRANSCRIPTS, agent_session_id
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop, find_stop_reason, not_begun
from worker.runners.claude import cli_launch, cli_sessions, hooks
from worker.runners.claude.claude_models import model_prices
from worker.runners.claude.cli_launch import (
    READING_TOOLS,
    allowed_destinations,
    build_cli_arguments,
    build_cli_environment,
    build_settings,
    prepare_files,
    sandbox_binds,
)
from worker.runners.claude.cli_sessions import BaseSession
from worker.runners.claude.exchange import Exchange, ProcessFiles, build_message_prompt
from worker.runners.claude.hooks import START, STOP, STOP_FAILURE
from worker.runners.guidance import identify_skills, read_instructions
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.agent_process import AgentExit
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.sandbox.launch import StartedAgent, line_callback, start_agent
from worker.runners.sandbox.loop_watch import watch_in_loop
from worker.runners.sandbox.process_tags import find_agent_processes, inner_process_id, is_stopped
from worker.runners.sandbox.resource_usage import MemoryMeter, ResourceLimits, ResourceUsage
from worker.runners.sandbox.supervision import RunEnding, Supervision
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


def compute_launch_key(settings: Settings, program: str, order: Order) -> str:
    """Return a digest of all options that are fixed when a CLI process starts.

    The digest is empty if a process must end with its message: for read-only runs, tool rules, tools that start
    processes, or if a required sandbox cannot be made.

    Raises:
        OSError, SettingsError: an input file cannot be read.
    """
    if order.read_only or order.tools or not set(settings.claude_tools) <= _STARTING_NOTHING:
        return ""
    try:
        level = bubblewrap.choose_isolation(settings.sandbox, wanted=True)
    except bubblewrap.SandboxError:
        return ""
    home, file = Path("/home"), Path(program).resolve().stat()
    own = replace(order, directory=Path("/work"))
    seen = sandbox_binds(settings, own, Path(program), home / "settings", BaseSession()) if level.kind != "none" else []
    parts = [
        [order.owner, order.session_id, str(order.workdir), program, file.st_ino, file.st_size, file.st_mtime_ns],
        build_cli_arguments(settings, order, home / "settings", "", BaseSession()),
        build_cli_environment(settings, home),
        build_settings(own, home, settings),
        [read_instructions(order, settings), identify_skills(settings)],
        repr((level, ResourceLimits.from_settings(settings), allowed_destinations(settings, order.option))),
        [[str(bind.path), bind.writable, *_file_identity(bind.path)] for bind in seen],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _file_identity(path: Path) -> tuple[int, int]:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return 0, 0
    return facts.st_dev, facts.st_ino


def open_agent(
    agents: AgentProcesses, settings: Settings, program: str, order: Order, launch_key: str, stop: Stop
) -> ClaudeAgent | RunResult:
    """Start an agent process for this run's session and return it, or return an error result. May block."""
    began, top, base = time.monotonic(), new_process_folder(order), cli_sessions.find_base(order)
    held = contextlib.ExitStack()
    held.callback(remove_tree, top, ignore_errors=True)
    files, inner = (
        ProcessFiles(top=top, mark=order.process_tag, agent=agent_session_id(order)),
        order_inside(order, top),
    )
    try:
        begun = start_process(agents, settings, program, inner, files, base, stop, held, noted=order.recorded)
    except OSError as error:
        held.close()
        return not_begun(f"the run's folders could not be made: {error}", host=error.errno in SHORT_OF)
    except BaseException:
        held.close()
        raise
    if isinstance(begun, RunEnding):
        held.close()
        return not_begun(begun.exit.error, host=False)
    files.level, files.spent, files.prices = begun.level, base.spent, model_prices(settings.prices)
    living = ClaudeAgent(begun, held, files, ResourceLimits.from_settings(settings))
    living.assign_session(order, launch_key, base, began)
    return living


def new_process_folder(order: Order) -> Path:
    """Delete the folders of the session's earlier processes, and return the path of a new process's folder."""
    top = order.workdir / TRANSCRIPTS / KEPT / order.directory.name
    remove_tree(top.parent, ignore_errors=True)
    return top


def order_inside(order: Order, top: Path) -> Order:
    """Return a copy of a run's order in which the agent works in ``top/work`` and its output is not recorded."""
    return replace(order, directory=top / "work", recorded=False)


def start_process(
    agents: AgentProcesses,
    settings: Settings,
    program: str,
    inner: Order,
    files: ProcessFiles,
    base: BaseSession,
    stop: Stop,
    held: contextlib.ExitStack,
    *more: str,
    noted: bool,
) -> StartedAgent | RunEnding:
    """Start a CLI process that accepts several messages, in its own folder.

    ``held`` is closed after its end, and ``noted`` keeps a log of its model calls. Raises ``OSError``.
    """
    files.output_folder.mkdir(parents=True)
    prepare_files(inner, files.home_folder, settings)
    launch = cli_launch.build_launch(
        settings, program, inner, files.home_folder, files.agent, base, None, (*_STREAMING, *more)
    )
    return start_agent(agents, launch, inner, stop, lambda _: None, lambda _: (), held, noted=noted)


class ClaudeAgent:
    """A process of the Claude CLI that answers several messages one after the other."""

    def __init__(
        self, begun: StartedAgent, held: contextlib.ExitStack, files: ProcessFiles, bounds: ResourceLimits
    ) -> None:
        self.session, self.launch_key = ("", files.mark), ""
        self.can_be_kept = False
        self._process, self._held, self._files, self._bounds = begun.supervision.process, held, files, bounds
        self._door, self._base, self._began = begun.proxy, BaseSession(), 0.0
        self._pids, self._weight = {self._process.pid}, MemoryMeter()
        self._tip = ""  # id of the kept transcript that matches the process's conversation
        self._sent = 0.0

    def assign_session(self, order: Order, launch_key: str, base: BaseSession, began: float) -> None:
        """Assign the process to the session of its first message. ``began`` is the start time of the run."""
        self.session, self.launch_key = (order.owner, order.session_id), launch_key
        self._base, self._began = base, began

    def continues(self, order: Order) -> bool:
        self._base = cli_sessions.find_base(order)
        transcript = self._base.transcript
        return self._is_alive and self._process.is_silent and transcript is not None and transcript.stem == self._tip

    async def answer_message(self, order: Order, emit: Emit, stop: Stop) -> RunResult | None:
        """Answer this run's message and return the result, or None if the process certainly did not read it."""
        loop, files = asyncio.get_running_loop(), self._files
        began = time.monotonic() if files.asked else self._began
        message = Exchange(order, self._base, build_message_prompt(order, self._base), began, begun=not files.asked)
        self.can_be_kept, files.asked = False, files.asked + 1
        self._process.extend_lease(stop.lease_ends)
        footprint = ResourceUsage(self._bounds, [files.work_folder, files.home_folder], sandboxed=self._is_sandboxed)
        supervision = Supervision(self._process, order, stop, line_callback(emit, message.take_line), footprint)
        message.settle = functools.partial(setattr, supervision, "settled", True)
        supervision.finished = lambda: bool(message.stream.result) and hooks.has_ended(files.work_folder)
        supervision.failures = self._door.count_failures if self._door else supervision.failures

        def emit_from_thread(event: AgentEvent) -> None:
            loop.call_soon_threadsafe(emit, event)

        if not await asyncio.to_thread(self._send_message, message) and files.was_there:
            return None
        begun = StartedAgent(supervision, files.level, self._door, files.calls)
        self._check_message(message)
        try:
            report = await watch_in_loop(supervision)
        finally:
            message.watched = False
        if report is None and message.late:
            return None
        if report is None:
            result = await asyncio.to_thread(self._settle_message, message, begun, stop, footprint, emit_from_thread)
            if result is not None:
                return result
            message.settle, supervision.settled = lambda: None, False
            self._process.close_input()
            report = await watch_in_loop(supervision)
        return await asyncio.to_thread(
            self._conclude_message, message, begun, report or AgentExit(), stop, emit_from_thread
        )

    def _check_message(self, message: Exchange) -> None:
        if not message.watched:
            return
        if self._process.output_ended:
            self._process.close_input()
            return
        if self._files.was_there and not message.taken_at and time.monotonic() - self._sent > _TO_TAKE:
            self._process.terminate_agent(0)
            return
        now, folder = time.monotonic(), self._files.work_folder / "marks"
        if message.stream.result or any((folder / name).exists() for name in (STOP, STOP_FAILURE)):
            message.ended_at = message.ended_at or now
            if now - message.ended_at >= _TO_END:
                self._process.close_input()
                return
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._check_message, message)

    def _send_message(self, message: Exchange) -> bool:
        """Record and send a message. Return True if the process has read it. May block."""
        if self._door and self._files.was_there:
            try:
                self._files.calls = self._door.count_calls()
            except OSError:
                return False
        # Before the first message, a spare's hook may be writing its mark; no mark is old then.
        for old in (self._files.work_folder / "marks").iterdir() if self._files.asked > 1 else ():
            if old.name != START:
                old.unlink()
        self._process.set_recording(self._files.start_recording(message.order))
        read = self._process.write_input(message.to_packet(), _TO_READ)
        self._sent = time.monotonic()
        return read

    def _settle_message(
        self, message: Exchange, begun: StartedAgent, stop: Stop, footprint: ResourceUsage, emit: Emit
    ) -> RunResult | None:
        pass_failpoint("agent.ended")
        files = self._files
        supervision = begun.supervision
        if find_stop_reason(stop) or not supervision.at_line_end:
            return None
        said = supervision.output_size
        ending = RunEnding(
            exit=AgentExit(pid=self._process.pid), bytes=said, sandbox=files.level, observed_calls=begun.observed_calls
        )
        proven = files.prove_message(files.work_folder, message, ending)
        if proven is None:
            return None
        completion, left, length = proven
        if not self._wait_until_alone(message) or footprint.check_folders():
            return None
        try:
            files.move_to_delivery(message.order)
        except OSError:
            return None
        result = files.build_result(message, completion, left, ending, emit)
        files.length, self._tip = length, result.agent_session
        files.spent = float(message.stream.result.get("total_cost_usd") or files.spent)
        self.can_be_kept = bool(self._tip)
        return result

    @property
    def _is_sandboxed(self) -> bool:
        return self._files.level.kind != "none"

    @property
    def _is_alive(self) -> bool:
        return not self._is_gone and not any(map(is_stopped, self._pids))

    @property
    def _is_gone(self) -> bool:
        return self._process.wait_for_end(0) is not None or self._process.known_end is not None

    def _wait_until_alone(self, message: Exchange) -> bool:
        """Wait up to 0.1 s for the process to be silent and without children. Return True if it is."""
        give_up = time.monotonic() + _TO_BE_ALONE
        while not (alone := self._is_alone(message)) and not self._is_gone and time.monotonic() < give_up:
            time.sleep(_TO_BE_ALONE / 5)
        return alone

    def _is_alone(self, message: Exchange) -> bool:
        first, own = (
            self._process.pid,
            bubblewrap.own_process_ids(self._files.level) if self._is_sandboxed else frozenset(),
        )
        self._pids = find_agent_processes(first, self._files.mark)
        others = {pid for pid in self._pids - {first} if inner_process_id(pid) not in own}
        message.crowded = bool(others) and not self._is_gone
        return first in self._pids and not others and self._process.is_silent and not self._is_gone

    def _conclude_message(
        self, message: Exchange, begun: StartedAgent, report: AgentExit, stop: Stop, emit: Emit
    ) -> RunResult | None:
        files, ending = self._files, begun.build_ending(report)
        if not message.taken_at and files.was_there and not ending.cause and not find_stop_reason(stop):
            return None
        killed = ending.exit.code != 0 and not ending.cause and not message.crowded
        proven = files.prove_message(files.work_folder, message, ending) if killed else None
        completion, left = (
            proven[:2] if proven else files.judge_message(files.work_folder, message, ending, lives=ending.finished)
        )
        if completion.kind is ErrorKind.SESSION_LOST:
            cli_sessions.discard_base(message.base)
        files.move_to_delivery(message.order)
        return files.build_result(message, completion, left, ending, emit)

    def mark_idle(self, until: float) -> None:
        self._process.extend_lease(until)
        self._process.call_at_end(functools.partial(idle_agents.shared_idle_agents().remove_ended, self))

    def measure_memory(self) -> int:
        return self._weight.measure(self._pids)

    def close(self) -> None:
        self.can_be_kept = False
        if self._process.wait_for_end(0) is None:
            self._process.terminate_agent(0)
            if self._process.wait_for_end(_TO_DIE) is None:
                self._process.kill_guard()
                self._process.wait_for_end(_TO_DIE)
        self._process.close()
        self._held.close()
