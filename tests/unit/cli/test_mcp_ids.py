"""What a model writes as an id is an id, or refused: no tool of ``turns run mcp`` asks another route of the relay."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("mcp")

from worker.plugins.mcp.mcp_tasks import build_extension
from worker.plugins.mcp.mcp_tools import RelayAccess, RelayError, TurnTools

GOOD = "turn-" + "5" * 32
HOSTILE = [
    *(
        "../workers/w@host:1/quiet?",
        "../inbox?",
        "../stats?",
        "last/attempts",
        "last",
        "",
        ".",
        "..",
        "/",
        "//evil.example",
    ),
    *(
        f"{GOOD}/../../workers/w/stop",
        f"{GOOD}?",
        f"{GOOD}#",
        f"{GOOD}%2f..",
        f"{GOOD}/attempts",
        f"../{GOOD}",
        f"{GOOD}\n",
    ),
    *(f" {GOOD}", f"{GOOD}\\..", f"{GOOD}\0", "%2e%2e%2finbox", "..%2Fworkers", "http://evil.example/", GOOD.upper()),
    *("t\u0660-" + "5" * 32, "turn-" + "\uff15" * 32, "t00000-" + "5" * 32, GOOD[:-1], GOOD + "5"),
]
ROUTES = re.compile(rf"/v1/(turns/{GOOD}|turns/{GOOD}/cancel|inbox/{GOOD}/decision)")


class Relay(RelayAccess):
    """A relay that knows one turn, and what was asked of it."""

    asked: list[str]

    async def send_request(self, method: str, path: str, body: Any = None, name: str = "") -> Any:
        self.asked.append(path)
        return {
            "turn_id": GOOD,
            "session_id": "s",
            "state": "finished",
            "outcome": "cancelled",
            "attempt": 1,
            "created_at": 0,
        }


@pytest.fixture
def relay() -> Relay:
    relay = Relay("http://127.0.0.1:1", "", 0.0)
    object.__setattr__(relay, "asked", [])
    return relay


async def _progress(*_: Any, **__: Any) -> None:
    """Nobody listens."""


TOOLS: dict[str, Callable[[TurnTools, str], Awaitable[Any]]] = {
    "get_turn": lambda tools, turn_id: tools.await_turn(turn_id, _progress, 0),
    "cancel_turn": lambda tools, turn_id: tools.cancel_turn(turn_id),
    "decide": lambda tools, turn_id: tools.submit_decision({"turn_id": turn_id, "suspended_at": 1.0}, "approve"),
}


@pytest.mark.parametrize("turn_id", HOSTILE)
@pytest.mark.parametrize("tool", TOOLS)
async def test_what_is_no_turn_id_is_refused_and_nothing_is_asked(relay: Relay, tool: str, turn_id: str) -> None:
    with pytest.raises(RelayError, match="not a turn id"):
        await TOOLS[tool](TurnTools(relay, "m", 0.0), turn_id)
    assert relay.asked == []


@pytest.mark.parametrize("turn_id", HOSTILE)
async def test_the_tasks_extension_refuses_them_too(relay: Relay, turn_id: str) -> None:
    for method in build_extension(TurnTools(relay, "m", 0.0)).methods():
        with pytest.raises(Exception, match="not a turn id"):
            await method.handler(None, method.params_type(taskId=turn_id))
    assert relay.asked == []


@pytest.mark.parametrize("tool", TOOLS)
async def test_a_turn_id_leads_to_its_own_routes(relay: Relay, tool: str) -> None:
    await TOOLS[tool](TurnTools(relay, "m", 0.0), GOOD)
    assert relay.asked
    assert all(ROUTES.fullmatch(path) for path in relay.asked)
