"""The runner of the scripted agent."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

from worker.runners.base import Emit, Order, RunResult, config_error
from worker.runners.guard.box import Bind
from worker.runners.guard.footprint import Bounds
from worker.runners.guard.launch import OUR_CODE, Launch
from worker.runners.guard.process_runner import Play, ProcessRunner
from worker.runners.guard.processes import FAST_PYTHON, SOURCE_ROOT
from worker.runners.guard.supervision import Ending, stopped
from worker.runners.scripted.script import ScriptError, Step, built_in, load, steps_for
from worker.runners.transcript import Transcript, judge

PROCESS_STEPS = frozenset({"die", "hang", "ignore_sigterm", "fork", "kill_parent"})


class ScriptedRunner(ProcessRunner):
    """Plays the script ``order.option``, or the built-in demo, in an agent process."""

    name = "scripted"

    def prepare(self, order: Order) -> Play | RunResult:
        """Read the script; an invalid script is a configuration error."""
        try:
            steps = steps_of(order, self._settings.root)
        except ScriptError as error:
            return config_error(str(error))
        transcript, settings = Transcript(), self._settings.of_model(order.model)

        def conclude(ending: Ending, _emit: Emit) -> RunResult:
            evidence = {**ending.evidence, **transcript.evidence}
            completion = stopped(ending, order, evidence) or judge(transcript, ending.exit.code, evidence)
            return RunResult(
                completion=completion, text=transcript.text, usage=transcript.usage, tool_calls=transcript.tool_calls
            )

        said = {
            "turn": order.turn_id,
            "attempt": order.attempt,
            "delivery": order.delivery,
            "mark": order.mark,
            "directory": str(order.directory),
            "prompt": order.prompt,
            "witness": order.witness,
            "worker": os.getpid(),
            "steps": steps,
        }
        # Agents must not see the worker's environment, such as the broker's address.
        launch = Launch(
            argv=[*FAST_PYTHON, "worker.runners.scripted.agent"],
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": str(order.directory),
                "LANG": "C.UTF-8",
                "PYTHONPATH": SOURCE_ROOT,
                "HELIX_AGENT_TURN": order.turn_id,
                "HELIX_AGENT_SESSION": order.session_id,
                "HELIX_AGENT_ATTEMPT": str(order.attempt),
                "HELIX_AGENT_DELIVERY": str(order.delivery),
            },
            stdin=json.dumps(said).encode(),
            binds=[*OUR_CODE, *([Bind(Path(order.witness), writable=True)] if order.witness else [])],
            box=settings.box,
            bounds=Bounds.of(settings),
        )
        return Play(launch=launch, take_line=transcript.take_line, conclude=conclude)


def steps_of(order: Order, root: Path) -> tuple[Step, ...]:
    """Return the steps that the script plays in this run; relative script paths start at ``root``.

    Raises:
        ScriptError: the script is invalid or has no steps for this message.
    """
    rules = load(_script(root, order.option)) if order.option else built_in()
    asked = (message.get("content", "") for message in reversed(order.messages) if message.get("role") == "user")
    return steps_for(rules, next(asked, order.prompt), order.attempt, order.delivery)


@functools.lru_cache(maxsize=32)
def _script(root: Path, option: str) -> Path:
    return root / Path(option).expanduser()
