import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.inline.runner import InlineRunner
from tests.runs import Asked, Played, order_in
from worker.runners.base import AgentEvent, Order


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
        asked = {"turn_id": "turn-1", "prompt": message, "messages": ({"role": "user", "content": message},)}
        given = asked | {"directory": directory, "option": option, "deadline": time.monotonic() + 30} | values
        return order_in(tmp_path, given.pop("turn_id"), **given)

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
