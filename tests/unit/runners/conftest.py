from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.inline.runner import InlineRunner
from worker.runners.base import AgentEvent, Order, RunResult


@dataclass
class Asked:
    """A stop request that a test sets."""

    reason: str = ""
    lease_ends: float = math.inf


@dataclass
class Played:
    result: RunResult
    events: list[AgentEvent] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return self.result.completion.verdict.value

    @property
    def reason(self) -> str:
        return self.result.completion.reason


@pytest.fixture
def order(tmp_path: Path) -> Callable[..., Order]:
    def make(script: object = None, message: str = "Hallo", **values: Any) -> Order:
        option = ""
        if script is not None:
            path = tmp_path / "script.yaml"
            path.write_text(script if isinstance(script, str) else yaml.safe_dump(script), encoding="utf-8")
            option = str(path)
        directory = tmp_path / "delivery"
        directory.mkdir(exist_ok=True)
        defaults: dict[str, Any] = {
            "turn_id": "t0-1",
            "session_id": "s",
            "attempt": 1,
            "delivery": 1,
            "prompt": message,
            "messages": ({"role": "user", "content": message},),
            "workdir": tmp_path,
            "directory": directory,
            "option": option,
            "deadline": time.monotonic() + 30,
        }
        return Order(**(defaults | values))

    return make


@pytest.fixture
def play(order: Callable[..., Order]) -> Callable[..., Played]:
    """Play steps with the inline runner."""

    def run(*steps: object, stop: Asked | None = None, emit: Any = None, **values: Any) -> Played:
        events: list[AgentEvent] = []
        script = [{"attempts": [list(steps)]}]
        result = InlineRunner().run(order(script, **values), emit or events.append, stop or Asked())
        return Played(result, events)

    return run
