"""An agent without a process that lives from one message of its session to the next (``worker.runners.warm``).

A file in the folder ``kept`` stands for its process: it is there as long as the agent lives, and names the engine's.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from api_client.contract.completion import Verdict
from tests.inline.runner import InlineRunner
from worker.runners.base import Emit, Order, RunResult, Stop
from worker.runners.warm import idle_agents
from worker.runners.warm.agent_lifecycle import WarmLimits


class LivingRunner(InlineRunner):
    """Plays scripts; who plays them is kept."""

    name = "inline_living"
    needs_folder = True

    async def run_async(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        limits = WarmLimits.from_settings(self._settings)
        if not limits.seconds:
            return await super().run_async(order, emit, stop)
        return await idle_agents.shared_idle_agents().run_message(self, limits, order, emit, stop)

    async def run_alone(self, order: Order, emit: Emit, stop: Stop) -> RunResult:
        return await super().run_async(order, emit, stop)

    def compute_launch_key(self, order: Order) -> str:
        return order.session_id

    def open_agent(self, order: Order, fixed: str, stop: Stop) -> InlineLiving:
        return InlineLiving(order, fixed, self._settings.root / "kept")


class InlineLiving:
    """Its conversation is as long as what it was told and what it answered; a longer one is not its own."""

    def __init__(self, order: Order, fixed: str, kept: Path) -> None:
        self.session, self.launch_key, self.can_be_kept = (order.owner, order.session_id), fixed, False
        self._length, self._asked = -1, 0
        kept.mkdir(exist_ok=True)
        self._file = kept / f"{order.session_id}-{os.getpid()}"
        self._file.touch()

    def continues(self, order: Order) -> bool:
        return len(order.messages) == self._length + 1

    async def answer_message(self, order: Order, emit: Emit, stop: Stop) -> RunResult | None:
        result = await InlineRunner().run_async(order, emit, stop)
        evidence = {**result.completion.evidence, "start": "warm" if self._asked else "cold"}
        self._asked, self._length = self._asked + 1, len(order.messages) + 1
        self.can_be_kept = result.completion.verdict is Verdict.COMPLETE
        return replace(result, completion=replace(result.completion, evidence=evidence))

    def mark_idle(self, until: float) -> None:
        """It never ends by itself."""

    def measure_memory(self) -> int:
        return 0

    def close(self) -> None:
        self._file.unlink(missing_ok=True)
