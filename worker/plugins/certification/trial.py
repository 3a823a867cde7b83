"""Runs a runner's real program in one situation, and assesses the runner's verdict."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
import os
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from api_client.contract.completion import Verdict
from worker.files.folder_trees import temporary_folder
from worker.plugins.certification.kit_gateway import open_gateway
from worker.plugins.certification.services import StubService
from worker.plugins.certification.situations import Situation
from worker.plugins.certification.stub_reply import LAST_WORDS, PART, QUESTION, SUMMARY
from worker.runners.base import AnyRunner, Order, Runner, RunResult, config_error, reads_files, runs_in_loop
from worker.runners.sandbox.guard_client import FAST_PYTHON
from worker.runners.sandbox.launch import CertificationStage, use_stage
from worker.runners.sandbox.process_tags import process_tags

_AROUND = Path(__file__).with_name("wrapper.py")
#: Default time limits of a situation, in seconds; some agents need 40 s to start.
_SECONDS, _IDLE = 120.0, 90.0
_NOBODY = "http://127.0.0.1:9"


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of testing a runner in one situation.

    Attributes:
        left: number of processes left behind.
        calls: number of answered calls of the agent's loop.
        applies: True if the agent did what the situation needs.
    """

    situation: Situation
    result: RunResult
    left: int
    calls: int
    seconds: float
    applies: bool = True
    repaired: bool = False

    @property
    def reason(self) -> str:
        """Return the reason for the runner's verdict, or a note that the tested situation did not arise in this run."""
        ended = self.result.completion
        skipped = not self.applies and ended.verdict is Verdict.COMPLETE
        return f"not seen: {self.situation.needs}" if skipped else ended.reason

    @property
    def evidence(self) -> dict[str, Any]:
        """Return the facts that the runner recorded with its verdict."""
        return self.result.completion.evidence

    @property
    def is_whole(self) -> bool:
        """Return True if the agent's answer contains the complete text."""
        part = PART in " ".join(self.result.text.split()) and not self.repaired
        return LAST_WORDS in self.result.text and not part and SUMMARY not in self.result.text

    @property
    def judged_complete(self) -> bool:
        return self.result.completion.verdict is Verdict.COMPLETE

    @property
    def complete_without_log(self) -> bool:
        """Return True if the runner would have judged the answer as complete without the model proxy's call log."""
        return self.judged_complete or self.evidence.get("overruled") == Verdict.COMPLETE

    @property
    def reported_success(self) -> bool:
        """Return True if the agent itself reported success, for example by exit code 0."""
        return bool(self.evidence.get("agent_complete", self.evidence.get("exit_code") == 0))

    @property
    def agent_says(self) -> str:
        """Return the agent's own report of how it ended, or its exit code."""
        return str(self.evidence.get("agent_says") or f"exit {self.evidence.get('exit_code')}")

    @property
    def verdict_word(self) -> str:
        """Return the runner's verdict, or the kind of error, as one word."""
        completion = self.result.completion
        return completion.kind.value if completion.kind else completion.verdict.value

    def is_falsely_complete(self, complete: bool) -> bool:
        """Return True if the verdict is ``complete`` although the answer is damaged or truncated."""
        return complete and (self.situation.truth == "broken" or not self.is_whole)

    def is_lost(self, complete: bool) -> bool:
        """Return True if the verdict is not ``complete`` although the agent gave its whole answer."""
        return self.situation.truth == "whole" and self.applies and not complete

    @property
    def has_true_end(self) -> bool:
        """Return True if the agent is known to have ended normally, after its whole answer."""
        here = self.situation
        return self.applies and (here.truth == "whole" or (here.truth == "open" and self.is_whole and not here.around))

    @property
    def certifiable(self) -> bool:
        """Return True if the trial may count, because the model proxy saw every model call that the agent made."""
        return not self.calls or bool((self.evidence.get("model_calls") or {}).get("certifiable"))

    @property
    def problem(self) -> str:
        """Describe what went wrong in this trial, or return an empty string if the trial succeeded."""
        if self.is_falsely_complete(self.judged_complete):
            return "taken for complete falsely"
        if self.is_lost(self.judged_complete):
            return "a whole answer thrown away"
        if self.left:
            return f"{self.left} processes left behind"
        return "" if self.certifiable else "its model calls bypassed the model proxy"

    def to_dict(self) -> dict[str, Any]:
        return {
            "situation": self.situation.name,
            "truth": self.situation.truth,
            "verdict": self.verdict_word,
            "complete": self.judged_complete,
            "complete_without_call_log": self.complete_without_log,
            "agent_says": self.agent_says,
            "agent_complete": self.reported_success,
            "whole_text": self.is_whole,
            "applies": self.applies,
            "reason": self.reason,
            "problem": self.problem,
            "calls": self.calls,
            "seconds": round(self.seconds, 1),
        }


@dataclass
class _StopRequest:
    reason: str = ""
    lease_ends: float = field(default=math.inf)


def run_situations(
    runner: AnyRunner, option: str, model: str, situations: list[Situation], jobs: int
) -> Iterator[Trial]:
    """Test a runner in each situation, ``jobs`` at a time, and yield the outcomes in order."""

    def run_situation(situation: Situation) -> Trial:
        with temporary_folder("helix-certify-") as root:
            return _run_trial(runner, option, model, situation, root)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(run_situation, situations)


def _run_trial(runner: AnyRunner, option: str, model: str, situation: Situation, root: Path) -> Trial:
    # Each call of a Python agent or command may contribute to the answer, even a call without tools or a failed one.
    own = getattr(runner, "needs_every_call", False)
    if own and situation.needs == "sub-agent":
        situation = replace(situation, truth="open")
    order, stop = _build_order(option, model, situation, root), _StopRequest()
    with StubService(situation.replies, tools=reads_files(runner) and not own) as service:
        around = (*FAST_PYTHON[:1], "-I", "-S", str(_AROUND), situation.around) if situation.around else ()
        url = _NOBODY if situation.unreachable else service.url
        disturb = threading.Thread(
            target=_disturb_agent, args=(situation, service, order.process_tag, stop), daemon=True
        )
        disturb.start()
        with use_stage(CertificationStage(service=url, around=around, seen=(_AROUND,))):
            began = time.monotonic()
            result = asyncio.run(_run_agent(runner, order, stop, situation.server))
            seconds = time.monotonic() - began
        service.spoke.set()
        disturb.join()
    left = sum(mark == order.process_tag for _, mark in process_tags())
    applies = situation.needs is None or situation.needs in service.met
    return Trial(situation, result, left, service.calls, seconds, applies, service.is_repaired)


async def _run_agent(runner: AnyRunner, order: Order, stop: _StopRequest, server: str) -> RunResult:
    if server and importlib.util.find_spec("mcp") is None:
        return config_error("the MCP SDK is not installed: pip install 'helix-turns[mcp]'")
    async with open_gateway(order, server) if server else contextlib.nullcontext(order) as equipped:
        if runs_in_loop(runner):
            return await runner.run_async(equipped, lambda _: None, stop)
        return await asyncio.to_thread(cast("Runner", runner).run, equipped, lambda _: None, stop)


def _build_order(option: str, model: str, situation: Situation, root: Path) -> Order:
    directory = root / "attempts" / "1-1"
    (directory / "output").mkdir(parents=True)
    return Order(
        turn_id=f"certify-{uuid.uuid4().hex}",
        session_id="certify",
        attempt=1,
        delivery=1,
        prompt=QUESTION,
        messages=({"role": "user", "content": QUESTION},),
        workdir=root,
        directory=directory,
        agent_session=str(uuid.uuid4()) if situation.unknown_session else "",
        model=model,
        option=option,
        deadline=time.monotonic() + (situation.seconds or _SECONDS),
        idle_seconds=situation.idle or _IDLE,
        kill_grace_seconds=2.0,
    )


def _disturb_agent(situation: Situation, service: StubService, mark: str, stop: _StopRequest) -> None:
    if not (situation.signal or situation.stops):
        return
    service.spoke.wait()
    service.over.wait(1.0)  # let the agent read the piece
    if situation.stops:
        stop.reason = "cancelled"
    elif situation.signal:
        for pid in [pid for pid, found in process_tags() if found == mark]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, situation.signal)
