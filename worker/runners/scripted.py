"""The scripted runner: a real agent process that plays a script instead of thinking. For demos, tests and faults."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from api_client.contract.failpoints import reach
from worker.runners import processes, script
from worker.runners.base import Completion, Emit, ErrorKind, Order, RunResult, Stop, Verdict
from worker.runners.processes import FAST_PYTHON, SOURCE_ROOT, Processes
from worker.runners.supervision import LimitReached, Supervision, stopped
from worker.runners.transcript import MAX_ANSWER, AnswerTooLong, Transcript, judge


class ScriptedRunner:
    """Plays the script named by ``order.option``, or the built-in demo script, in a process of its own."""

    name = "scripted"

    def __init__(self, agents: Processes | None = None) -> None:
        self._agents = agents or processes.shared()

    def run(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        """Play the script once. Every failure is a verdict; a bad script is a configuration error."""
        try:
            steps = steps_of(order)
        except script.ScriptError as error:
            return config_error(str(error))
        transcript = Transcript()

        def hear(line: bytes) -> None:
            try:
                event = transcript.take_line(line)
            except AnswerTooLong as error:
                raise LimitReached(f"an answer of more than {MAX_ANSWER} characters") from error
            if event:
                emit(event)

        try:
            agent = self._agents.spawn(
                [*FAST_PYTHON, "worker.runners.scripted_agent"],
                mark=mark_of(order),
                env=_environment(order),
                cwd=order.directory,
                stdin=json.dumps(_payload(order, steps)).encode(),
                lease_ends=stop.lease_ends,
            )
        except OSError as error:
            return _error(ErrorKind.TRANSIENT, f"the agent could not be started: {error}")
        reach("B6")
        ending = Supervision(agent, order, stop, hear).run()
        reach("B8")
        evidence = {**ending.evidence, **transcript.evidence}
        completion = stopped(ending, order, evidence) or judge(transcript, ending.exit.code, evidence)
        return RunResult(completion=completion, text=transcript.text, usage=transcript.usage)


def mark_of(order: Order) -> str:
    """The mark of a run: ``<turn>.<attempt>.<delivery>``."""
    return f"{order.turn_id}.{order.attempt}.{order.delivery}"


def steps_of(order: Order) -> tuple[script.Step, ...]:
    """What the script has this run play.

    Raises:
        ScriptError: the script is wrong or has nothing for this message.
    """
    path = Path(order.option).expanduser() if order.option else script.DEMO
    asked = (message.get("content", "") for message in reversed(order.messages) if message.get("role") == "user")
    return script.steps_for(script.load(path), next(asked, order.prompt), order.attempt, order.delivery)


def config_error(reason: str) -> RunResult:
    """The result when the installation or the script is wrong."""
    return _error(ErrorKind.CONFIG, reason)


def _error(kind: ErrorKind, reason: str) -> RunResult:
    return RunResult(completion=Completion(verdict=Verdict.ERROR, kind=kind, reason=reason))


def _environment(order: Order) -> dict[str, str]:
    """Built from scratch: what the worker knows, such as the broker's address, is none of an agent's business."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(order.directory),
        "LANG": "C.UTF-8",
        "PYTHONPATH": SOURCE_ROOT,
        "HELIX_AGENT_TURN": order.turn_id,
        "HELIX_AGENT_SESSION": order.session_id,
        "HELIX_AGENT_ATTEMPT": str(order.attempt),
        "HELIX_AGENT_DELIVERY": str(order.delivery),
    }


def _payload(order: Order, steps: tuple[script.Step, ...]) -> dict[str, Any]:
    return {
        "turn": order.turn_id,
        "attempt": order.attempt,
        "delivery": order.delivery,
        "mark": mark_of(order),
        "directory": str(order.directory),
        "prompt": order.prompt,
        "witness": order.witness,
        "worker": os.getpid(),
        "steps": steps,
    }
