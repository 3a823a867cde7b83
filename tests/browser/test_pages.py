"""Our pages and Flower in a real browser, over a whole installation. ``make test-pages`` runs this."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from api_client.api_keys import ApiKey, add_key
from api_client.client import TurnsClient
from tests.browser.browsing import browse, installation, missing, store_of, submitted, suspended

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(300)]

RETRIED = "Warum gehen uns bei einem Neustart Nachrichten verloren?"
LONG = "Erkläre ausführlich, wie ein Lease einen abgestürzten Worker erkennt."


#: Pages for operators, each with its heading.
OPERATORS = {
    "/workers": "Workers",
    "/audit": "Audit",
    "/paused": "Paused",
    "/budgets": "Budgets",
    "/notifications": "Notifications",
}


def test_an_operator_signs_in_watches_a_turn_and_cancels_it(tmp_path: Path) -> None:
    key = add_key(tmp_path / ".helix/keys.json", ApiKey(name="ops", hash="", owner="ops", right="operator"))
    with installation(tmp_path, "--no-flower") as told:
        web = told["web_url"]
        turn_id = submitted(told["environ"], LONG)
        seen = browse(
            ["new", {}],
            ["goto", f"{web}/turns/{turn_id}"],
            ["text", "h1"],
            ["fill", "input[name=key]", key],
            ["press", "Enter"],
            ["wait", ".pill:has-text('passed')"],  # without a click: the page refreshes itself
            ["text", ".head .buttons"],
            ["click", "button:has-text('Copy id')"],
            ["wait", "button:has-text('Copied'), button:has-text('Selected')"],
            ["click", "button:has-text('Replay')"],
            ["wait", "button:has-text('Cancel')"],
            ["click", "button:has-text('Cancel')"],
            ["wait", ".pill:has-text('cancelled')"],
            ["goto", f"{web}/overview?span=1h"],
            ["text", ".tiles dt"],
            ["count", ".plot rect"],
            ["click", "nav a:has-text('Turns')"],
            ["wait", ".turns .pill"],
            ["text", ".turns .pill"],
            ["problems"],
        )
        assert seen[2] == ["Sign in"]
        assert seen[6] == ["Replay"]
        assert seen[14] == ["At work", "Waiting", "Workers", "Dead letters", "Passed", "Asked again", "Cost", "Lost"]
        assert seen[15] > 0
        assert sorted(seen[18]) == ["cancelled", "passed"]
        assert seen[-1] == []  # no error in the console, no request to anybody else


def test_the_pages_work_without_javascript_and_on_a_phone(tmp_path: Path) -> None:
    with installation(tmp_path, "--no-flower") as told:
        turn_id = submitted(told["environ"], "--wait", RETRIED)
        phone = {"java_script_enabled": False, "viewport": {"width": 390, "height": 800}}
        steps = [["new", phone]]
        for address in ("/overview", "/turns", f"/turns/{turn_id}", *OPERATORS):
            steps += [["goto", told["web_url"] + address], ["text", "main"]]
        steps += [
            ["goto", f"{told['web_url']}/turns/{turn_id}"],
            ["count", "button.copy:visible"],
            ["text", "#turn-id"],
        ]
        seen = browse(*steps)
        overview, listed, turn, *others = (texts[0] for texts in seen[2:-2:2])
        assert "Asked again" in overview
        assert "nothing is stuck" in overview
        assert RETRIED in listed
        assert "MISSING_STEP_MARKER" in turn
        assert [text.split("\n")[0] for text in others] == list(OPERATORS.values())
        assert seen[-2:] == [0, [turn_id]], "the id is there to be marked, and no button that does nothing"


def test_nothing_keeps_people_from_using_the_pages_and_a_person_decides_on_one(tmp_path: Path) -> None:
    key = add_key(tmp_path / ".helix/keys.json", ApiKey(name="ops", hash="", owner="ops", right="operator"))
    with installation(tmp_path, "--no-flower") as told:
        web, retried, waiting = (
            told["web_url"],
            submitted(told["environ"], "--wait", RETRIED),
            asyncio.run(suspend(told)),
        )
        sign_in = [["fill", "input[name=key]", key], ["press", "Enter"], ["wait", "nav"]]
        addresses = (
            "/overview",
            "/turns",
            "/turns?status=failed",
            f"/turns/{retried}",
            f"/turns/{waiting}",
            "/turns/none",
            "/turns/bulk?action=cancel",
            "/workers",
            "/audit",
            "/paused",
            "/budgets",
            "/notifications",
            "/policies",
            "/turns?status=unsuccessful&since=8h",
            "/nowhere",
        )
        for scheme, width in [("light", 1000), ("dark", 390)]:
            steps = [["new", {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}]]
            steps += [["goto", f"{web}/sign-in"], ["faults"], *sign_in]
            for address in addresses:
                steps += [["goto", web + address], ["faults"], ["eval", "document.documentElement.scrollWidth"]]
            seen = browse(*steps)
            assert [seen[2], *seen[7::3]] == [[]] * (1 + len(addresses)), scheme
            assert seen[8::3] == [width] * len(addresses)  # nothing to be pushed sideways
        decided = browse(
            ["new", {}],
            ["goto", f"{web}/turns/{waiting}"],
            *sign_in,
            ["fill", "textarea[name=note]", "Nimm es, wie es ist."],
            ["click", "button:has-text('Accept as it is')"],
            ["wait", ".pill:has-text('passed by human')"],
            ["text", "main"],
            ["problems"],
        )
        assert "Nimm es, wie es ist." in decided[-2][0]
        assert decided[-1] == []


def test_every_page_and_turn_is_reached_by_the_keyboard_alone(tmp_path: Path) -> None:
    with installation(tmp_path, "--no-flower") as told:
        web, turn_id = told["web_url"], submitted(told["environ"], "--wait", RETRIED)
        chosen = "#found [aria-selected=true]"
        steps = []
        for typed, expected in (("neustart", "passed after retry"), (turn_id[:14], "turn"), ("budg", "go to")):
            steps += [
                ["goto", f"{web}/overview"],
                ["wait", "button.find:visible"],
                ["press", "/"],
                ["wait", "dialog[open] #found li"],
                ["faults"],
                ["type", typed],
                ["wait", f"#found li:has-text('{expected}')"],
                ["text", chosen],
                ["press", "Enter"],
                ["wait", "h1"],
                ["wait", "main"],
                ["url"],
            ]
        seen = browse(
            ["new", {}],
            *steps,
            ["goto", f"{web}/turns"],
            ["wait", "button.find:visible"],
            ["press", "j"],
            ["press", "Enter"],
            ["wait", "#turn-id"],
            ["press", "/"],
            ["wait", "dialog[open] li:has-text('Replay')"],
            ["press", "Escape"],
            ["wait", "dialog:not([open])", "hidden"],
            ["text", "#turn-id"],
            ["problems"],
        )
        assert [seen[5 + 12 * number] for number in range(3)] == [[]] * 3
        assert [seen[12 * number] for number in (1, 2)] == [f"{web}/turns/{turn_id}"] * 2
        assert seen[36] == f"{web}/budgets"
        assert seen[-2:] == [[turn_id], []]


async def suspend(told: dict[str, Any]) -> str:
    async with TurnsClient(store_of(told)) as client:
        return await suspended(client)


def test_flower_finds_all_stages_of_a_turn_and_says_what_came_of_each(tmp_path: Path) -> None:
    with installation(tmp_path) as told:
        flower = told["flower_url"]
        turn_id = submitted(told["environ"], "--wait", RETRIED)
        other = submitted(told["environ"], "--wait", "Welche Datenbank passt zu unserem Auftragsarchiv?")
        login = {"http_credentials": {"username": "turns", "password": told["flower_password"]}}
        seen = browse(
            ["new", {**login, "viewport": {"width": 1600, "height": 800}}],
            ["goto", f"{flower}/tasks"],
            ["fill", "input[type=search]", turn_id],
            ["wait", "td:has-text('accepted; turn passed_after_retry')"],
            ["wait", "text=filtered from"],
            ["text", "#tasks-table tbody tr"],
            ["click", "a:has-text('turn.retry')"],
            ["wait", f"text={turn_id}"],
            ["count", "button:has-text('Revoke'), button:has-text('Terminate')"],
        )
        rows = " ".join(seen[5])
        assert len(seen[5]) == 4
        assert "rejected, MISSING_STEP_MARKER" in rows
        assert other not in rows
        assert seen[-1] == 0  # a revoke that does nothing is not offered
