"""The runner of the scripted agent."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

from worker.runners.base import Emit, Order, RunResult, config_error
from worker.runners.event_reader import EventReader, judge_transcript
from worker.runners.sandbox.bubblewrap import SandboxMount
from worker.runners.sandbox.guard_client import FAST_PYTHON, SOURCE_ROOT
from worker.runners.sandbox.launch import OUR_CODE, Launch
from worker.runners.sandbox.process_runner import PreparedRun, ProcessRunner
from worker.runners.sandbox.resource_usage import ResourceLimits
from worker.runners.sandbox.supervision import RunEnding, explain_own_stop
from worker.runners.scripted.script import ScriptError, Step, find_steps, load_built_in, load_script


class ScriptedRunner(ProcessRunner):
    """Plays a script in an agent process: a file that the settings name, or a built-in demo script."""

    name = "scripted"

    def prepare_run(self, order: Order) -> PreparedRun | RunResult:
        try:
            steps = choose_steps(order, self._settings.root)
        except ScriptError as error:
            return config_error(str(error))
        transcript, settings = EventReader(), self._settings.for_model(order.model)

        def conclude(ending: RunEnding, _emit: Emit) -> RunResult:
            evidence = {**ending.evidence, **transcript.evidence}
            completion = explain_own_stop(ending, order, evidence) or judge_transcript(
                transcript, ending.exit.code, evidence
            )
            return RunResult(
                completion=completion, text=transcript.text, usage=transcript.usage, tool_calls=transcript.tool_calls
            )

        said = {
            "turn": order.turn_id,
            "attempt": order.attempt,
            "delivery": order.delivery,
            "mark": order.process_tag,
            "directory": str(order.directory),
            "prompt": order.prompt,
            "action_log": order.action_log,
            "worker": os.getpid(),
            "steps": steps,
        }
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
            binds=[*OUR_CODE, *([SandboxMount(Path(order.action_log), writable=True)] if order.action_log else [])],
            sandbox=settings.sandbox,
            bounds=ResourceLimits.from_settings(settings),
        )
        return PreparedRun(launch=launch, take_line=transcript.take_line, conclude=conclude)


def choose_steps(order: Order, root: Path) -> tuple[Step, ...]:
    """Return the steps of the script that the agent plays in this run. Raises ``ScriptError``."""
    rules = load_script(_script_path(root, order.option)) if order.option else load_built_in()
    asked = (message.get("content", "") for message in reversed(order.messages) if message.get("role") == "user")
    return find_steps(rules, next(asked, order.prompt), order.attempt, order.delivery)


@functools.lru_cache(maxsize=32)
def _script_path(root: Path, option: str) -> Path:
    return root / Path(option).expanduser()
