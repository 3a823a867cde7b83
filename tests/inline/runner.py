"""Plays a script in the worker's own loop, without a process."""

import asyncio
import functools
import time
from typing import Any

from api_client.contract.completion import Completion, ErrorKind, IncompleteReason, Verdict
from api_client.contract.settings import Settings, load_settings
from worker.runners.base import Emit, Order, RunResult, Stop, config_error
from worker.runners.event_reader import AnswerTooLong, EventReader, judge_transcript
from worker.runners.scripted import script
from worker.runners.scripted.runner import choose_steps
from worker.runners.scripted.script_player import ActionLog, ScriptExit, ScriptPlayer, split_text

#: Steps that need a process of their own.
PROCESS_STEPS = frozenset({"die", "hang", "ignore_sigterm", "fork", "kill_parent"})


class InlineRunner:
    """Plays the same scripts as ``scripted``, save the steps that need a process of their own."""

    name = "inline"
    needs_folder = False

    def __init__(self, settings: Settings | None = None) -> None:
        self._given = settings

    @functools.cached_property
    def _settings(self) -> Settings:
        return self._given or load_settings()

    def run(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """As ``run_async``, for callers without a loop."""
        return asyncio.run(self.run_async(order, emit, stop))

    async def run_async(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Play the script once, in the loop. Every failure is a verdict; a bad script is a configuration error."""
        try:
            steps = choose_steps(order, self._settings.root)
        except script.ScriptError as error:
            return config_error(str(error))
        if needy := [name for name, _ in steps if name in PROCESS_STEPS]:
            return config_error(f"the steps {', '.join(needy)} need a process: use the runner 'scripted'")
        transcript = EventReader()

        def tell(event: dict[str, Any]) -> None:
            if heard := transcript.collect_event(event):
                emit(heard)

        action_log = ActionLog(order.action_log, order.turn_id, order.attempt, order.delivery)
        action_log.append_fact("start")
        completion = await _play(_InlinePlayer(tell, order, stop), steps, transcript)
        action_log.append_fact("end", exit=None)
        return RunResult(completion=completion, text=transcript.text, usage=transcript.usage)


class InlineFolderRunner(InlineRunner):
    """The same for scripts that write files: each run gets a folder."""

    name = "inline_folder"
    needs_folder = True


class _Stopped(Exception):
    def __init__(self, verdict: Verdict, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict


class _InlinePlayer(ScriptPlayer):
    """Looks at stop requests and time limits while it waits."""

    def __init__(self, tell: Any, order: Order, stop: Stop) -> None:
        super().__init__(tell, order.directory, order.process_tag, order.prompt)
        self._order = order
        self._stop = stop

    async def play_async(self, steps: tuple[script.Step, ...]) -> int:
        """As ``play``; where a step takes time, the loop goes on."""
        try:
            for name, fields in steps:
                if name == "wait":
                    await self._pause(fields["seconds"])
                elif name == "wait_for":
                    began = time.monotonic()
                    while not (self.directory / fields["path"]).exists():
                        await self._pause(_patience(time.monotonic() - began))
                elif name == "say" and fields.get("seconds"):
                    parts = split_text(fields["text"], fields.get("pieces") or int(fields["seconds"] / 0.04))
                    for number, part in enumerate(parts):
                        if number:
                            await self._pause(fields["seconds"] / (len(parts) - 1))
                        self.emit({"event": "output", "text": part})
                else:
                    getattr(self, name)(**fields)
        except ScriptExit as left:
            return left.code
        self.emit({"event": "result"})
        return 0

    def sleep(self, seconds: float) -> None:
        """For steps that wait for something: short pieces, which look at stop requests."""
        self._check()
        time.sleep(min(seconds, 0.1))

    async def _pause(self, seconds: float) -> None:
        """Let time pass, in pieces: shortly after its begin it hears soon that it is to stop."""
        began = time.monotonic()
        while True:
            self._check()
            passed = time.monotonic() - began
            if passed >= seconds:
                return
            await asyncio.sleep(min(seconds - passed, 2 * _patience(passed)))

    def _check(self) -> None:
        if self._stop.reason:
            raise _Stopped(Verdict.CANCELLED, f"stopped: {self._stop.reason}")
        if time.monotonic() >= self._order.deadline:
            raise _Stopped(Verdict.INCOMPLETE, "the run's time was up")


def _patience(passed: float) -> float:
    """How long an agent that has waited for so long sleeps, in seconds: a thousand that wait must cost little."""
    return min(0.5, max(0.05, passed / 10))


async def _play(player: _InlinePlayer, steps: tuple[script.Step, ...], transcript: EventReader) -> Completion:
    try:
        return judge_transcript(transcript, await player.play_async(steps), {})
    except _Stopped as stopped:
        why = IncompleteReason.DEADLINE if stopped.verdict is Verdict.INCOMPLETE else None
        return Completion(verdict=stopped.verdict, why=why, reason=str(stopped))
    except AnswerTooLong:
        return Completion(verdict=Verdict.ERROR, kind=ErrorKind.LIMIT, reason="the answer is too long")
    except (OSError, ValueError) as error:
        return Completion(verdict=Verdict.INCOMPLETE, why=IncompleteReason.BROKE_OFF, reason=f"a step failed: {error}")
