"""An order that was refused or failed, or had nothing to do, is never in the audit log as accepted."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.settings import Settings
from api_client.contract.worker_order import WorkerOrder
from api_client.operator_actions import carry_out_action, order_worker
from api_client.pauses.pause import Pause
from api_client.turn_actions.registry import ACTIONS
from tests.installation import Installation, asked

ROOT = Path(__file__).parents[2]
Try = Callable[[TurnsClient, str], Awaitable[object]]

#: Every order, in a case in which it is not done. Each gets a turn that waits in the queue.
TRIES: dict[str, Try] = {
    "replay: it goes on": lambda client, turn_id: carry_out_action(client, ACTIONS["replay"], turn_id, by="me"),
    "drop: no dead letter": lambda client, turn_id: carry_out_action(client, ACTIONS["drop"], turn_id, by="me"),
    "cancel: no such turn": lambda client, _: carry_out_action(client, ACTIONS["cancel"], "turn-" + "0" * 32, by="me"),
    "cancel: another owner's": lambda client, turn_id: carry_out_action(
        client, ACTIONS["cancel"], turn_id, by="me", owner="o"
    ),
    **{
        f"{kind}: it waits for nobody": lambda client, turn_id, kind=kind: client.inbox.decide_turn(
            turn_id, kind, by="me"
        )
        for kind in ("approve", "retry", "reject")
    },
    "edit: without a text": lambda client, turn_id: client.inbox.decide_turn(turn_id, "edit", by="me"),
    "pause: no such model": lambda client, _: client.pauses.set_pause(Pause(what="model", name="nobody", by="me")),
    "pause: a reason of two lines": lambda client, _: client.pauses.set_pause(
        Pause(what="all", reason="a\nb", by="me")
    ),
    "pause: into the past": lambda client, _: client.pauses.set_pause(Pause(what="all", until=1.0, by="me")),
    "resume: no such thing": lambda client, _: client.pauses.end_pause("weather", by="me"),
    "resume: it was not paused": lambda client, _: client.pauses.end_pause("model", "scripted", by="me"),
    **{
        f"worker {order.value}: no such worker": lambda client, _, order=order: order_worker(
            client, "w", order, by="me"
        )
        for order in WorkerOrder
    },
    "resend notifications: unknown": lambda client, _: client.notifications.send_again(["n-1"], by="me"),
    "drop notifications: unknown": lambda client, _: client.notifications.drop(["n-1"], by="me"),
}


@pytest.mark.parametrize("what", TRIES)
async def test_an_order_that_is_not_done_is_not_in_the_log_as_accepted(settings: Settings, what: str) -> None:
    async with TurnsClient(settings) as client:
        turn_id = await client.submitter.submit(asked("s"))
        raised = False
        try:
            await TRIES[what](client, turn_id)
        except HelixError:
            raised = True
        assert raised != (what == "resume: it was not paused")
        lines = await client.audit.read_lines()
        assert all(line.refused for line in lines), lines
        assert {line.action for line in lines} <= {what.partition(":")[0]}


async def test_a_second_cancel_says_that_there_was_nothing_to_do(settings: Settings) -> None:
    async with TurnsClient(settings) as client:
        turn_id = await client.submitter.submit(asked("s"))
        await carry_out_action(client, ACTIONS["cancel"], turn_id, by="me")
        await carry_out_action(client, ACTIONS["cancel"], turn_id, by="me")
        assert [line.refused for line in await client.audit.read_lines()] == ["", "was already finished: cancelled"]


def test_orders_of_the_command_line_that_fail_say_so(installation: Installation, tmp_path: Path) -> None:
    taken = tmp_path / "archive"
    taken.touch()
    for order in (
        ("policy", "rollback", "v9"),
        ("policy", "resume", "v9"),
        ("worker", "close-agent", "nobody"),
        ("data", "backup", str(taken)),
    ):
        assert installation.command(*order).returncode != 0
    shown = installation.command("data", "audit").stdout.splitlines()[-4:]
    assert len(shown) == 4
    assert all("refused: " in line for line in shown), shown


class Odd(RuntimeError):
    """Nothing of ours."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HelixError("no"), "no"),
        (Odd("why"), "Odd: why"),
        (OSError(28, "No space left"), "OSError: [Errno 28] No space left"),
        (StoreUnavailable("gone"), ""),  # whether it was done, nobody knows
        (asyncio.CancelledError(), ""),
    ],
)
async def test_whatever_ends_an_order_is_noted_with_it(settings: Settings, error: BaseException, said: str) -> None:
    async with TurnsClient(settings) as client:

        async def fails() -> None:
            async with client.orders.place_order("gc", by="me"):
                raise error

        with pytest.raises(type(error)):
            await fails()
        [line] = await client.audit.read_lines()
        assert line.refused == said


def test_no_order_writes_a_line_that_nothing_can_be_added_to() -> None:
    """``place`` goes around the action. A backup is no coroutine, and adds what went wrong by itself."""
    found = {
        path.name
        for folder in ("api_client", "worker")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"orders\.write_line\(", path.read_text(encoding="utf-8"))
    }
    assert found == {"backup_commands.py"}
