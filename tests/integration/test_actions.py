"""Bulk actions and the audit log, against a real store; nobody runs the turns here."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.index.search import Search
from api_client.index.selection import select_turns
from api_client.operator_actions import ActionResult, act_on_all
from api_client.turn_actions.registry import ACTIONS
from tests.installation import Installation, Said

Run = Callable[..., Said]


@pytest.fixture
def run(installation: Installation) -> Run:
    """Runs ``turns`` under the test's settings, with nobody at a terminal."""
    installation.change(models={"scripted": "scripted", "other": "scripted"})
    return installation.command


def submitted(run: Run, session: str, model: str = "scripted") -> str:
    return run("submit", "hello", "--session", session, "--model", model).stdout.strip()


def test_a_filter_counts_first_then_asks_then_acts_with_an_audit_line_each(run: Run) -> None:
    mine = [submitted(run, f"s{number}") for number in range(3)]
    other = submitted(run, "s9", "other")

    dry = json.loads(run("turn", "cancel", "--model", "scripted", "--dry-run", "--json").stdout)
    assert (dry["matched"], dry["counts"]) == (3, [{"status": "queued", "model": "scripted", "turns": 3}])
    refused = run("turn", "cancel", "--model", "scripted")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "3 turns match: add --yes to cancel them, or --dry-run to count them" in refused.stderr
    assert json.loads(run("data", "audit", "--json").stdout) == []  # neither changed anything
    assert json.loads(run("turn", "show", mine[0], "--json").stdout)["state"] == "queued"

    done = json.loads(run("turn", "cancel", "--model", "scripted", "--yes", "--json").stdout)
    assert [turn["turn_id"] for turn in done["turns"]] == mine  # oldest first
    assert {turn["said"] for turn in done["turns"]} == {"cancelled"}
    assert json.loads(run("turn", "show", other, "--json").stdout)["state"] == "queued"
    lines = json.loads(run("data", "audit", "--json").stdout)
    assert [line["turn_id"] for line in lines] == mine
    assert {(line["action"], line["bulk"], line["detail"]) for line in lines} == {
        ("cancel", done["bulk"], "model=scripted")
    }
    assert all("@" in line["by"] and line["at"] > 0 for line in lines)
    assert run("turn", "cancel", "--model", "scripted", "--yes").stdout == "no unfinished turns match\n"


def test_replaying_by_filter_twice_makes_one_new_turn_each(run: Run) -> None:
    turn_id = submitted(run, "s1")
    assert run("turn", "cancel", turn_id).stdout == "cancelled\n"
    replayed = [json.loads(run("turn", "replay", "--outcome", "cancelled", "--yes", "--json").stdout) for _ in range(2)]
    assert replayed[0]["turns"] == replayed[1]["turns"]
    [new] = replayed[0]["turns"]
    assert json.loads(run("turn", "show", new["new_turn_id"], "--json").stdout)["replay_of"] == turn_id
    actions = [line["action"] for line in json.loads(run("data", "audit", "--turn", turn_id, "--json").stdout)]
    assert actions == ["cancel", "replay", "replay"]
    assert [each["new"] for each in replayed] == [1, 0]
    assert (
        run("turn", "replay", "--outcome", "cancelled", "--since", "1h", "--yes")
        .stdout.splitlines()[-1]
        .startswith("0 turns replayed, 1 already were")
    )


def test_one_that_changed_meanwhile_is_passed_over_and_told(settings: Settings, run: Run) -> None:
    first, second = submitted(run, "s1"), submitted(run, "s2")

    async def act() -> list[ActionResult]:
        async with TurnsClient(settings) as client:
            chosen = await select_turns(client.lists, Search())
            await client.canceller.cancel(first)
            return [done async for done in act_on_all(client, ACTIONS["cancel"], chosen, by="me", bulk="b", detail="")]

    results = asyncio.run(act())
    assert [(d.turn_id, d.done, d.said) for d in results] == [
        (first, False, "was already finished: cancelled"),
        (second, True, "cancelled"),
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("turn", "cancel"), "name a turn, a filter, or --all for all unfinished turns"),
        (("turn", "drop", "turn-x", "--all"), "name one turn, or filters, not both"),
        (("turn", "cancel", "--state", "finished"), "Invalid value for '--status'"),
        (("turn", "replay", "--outcome", "fine"), "Invalid value for '--status'"),
    ],
)
def test_unclear_wishes_are_refused(run: Run, arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_a_turn_that_goes_on_is_not_replayed_and_one_that_lives_not_dropped(run: Run) -> None:
    turn_id = submitted(run, "s1")
    for action in ("replay", "drop"):
        done = run("turn", action, turn_id)
        assert done.returncode == 1
        assert done.stderr.endswith("[turn_not_finished]\n")
        assert run("turn", action, "--all", "--yes").stdout.startswith("no ")


async def test_only_what_is_older_than_the_limit_leaves_the_audit_log(settings: Settings) -> None:
    async with TurnsClient(settings) as client:
        key = client.audit._key
        for number in range(300):  # trimming works in whole nodes of a stream, of a hundred entries
            fields: dict[Any, Any] = {"action": "cancel", "by": "old", "turn_id": "", "bulk": "", "detail": ""}
            await client.store.redis.xadd(key, fields, id=f"{number + 1}-0")
        await client.orders.write_line("cancel", by="new")
        lines = await client.audit.read_lines()
        assert lines[-1].by == "new"
        assert len(lines) < 200
