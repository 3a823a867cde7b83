"""A budget's hard stop with two real relays and a real worker, and where people see what was spent."""

import asyncio
import itertools
import json
import time
from dataclasses import replace
from typing import Any, cast

import httpx2
import pytest

from api_client import api_keys
from api_client.budgets.keys import BudgetKeys
from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.phase import Phase
from api_client.contract.settings import Settings
from api_client.setting_checks.budgets import find_unmatched_budgets
from tests.installation import Installation, command
from tests.integration.engine import GOOD
from tests.integration.served import HI
from tests.support import playing, wait_until

CENT = 0.01
LIMIT, EACH, CALLERS = 20 * CENT, 3 * CENT, 4
SCRIPT = f"- attempts: [[say: {json.dumps(GOOD)}, usage: {{input_tokens: 10, output_tokens: 5, cost_usd: {EACH}}}]]\n"


async def test_two_relays_overshoot_a_budget_by_the_turns_in_flight_at_most(installation: Installation) -> None:
    used = installation.play(SCRIPT, budgets={"all": LIMIT}, locale="en")
    installation.worker()
    relays = [installation.relay() for _ in range(2)]
    passed, refused = [], list[httpx2.Response]()

    async def ask(number: int) -> None:
        """One after the other, until the budget is spent."""
        async with httpx2.AsyncClient(base_url=relays[number % 2].url, timeout=120) as http:
            for asked in itertools.count():
                key = {"idempotency-key": f"{number} {asked}"}
                body = {"model": "scripted", "messages": HI}
                answer = await _answered(http, "/v1/chat/completions", body, **key)
                if answer.status_code != 200:
                    refused.append(answer)
                    return
                passed.append(answer.headers["x-turn-id"])

    await asyncio.gather(*map(ask, range(CALLERS)))
    if passed:  # a relay dies: what was spent is in the store
        relays[0].kill()
    client = installation.client
    [budget] = await client.spending.read_today()
    bodies = [answer.json()["error"] for answer in refused]
    assert {(answer.status_code, body["code"]) for answer, body in zip(refused, bodies, strict=True)} == {
        (429, "budget_exceeded")
    }
    assert "until" in bodies[0]["message"]
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
    assert round(budget.spent_usd, 6) == round(len(passed) * EACH, 6), "each turn is charged, once"
    assert LIMIT - EACH < budget.spent_usd <= LIMIT + CALLERS * EACH
    [told] = json.loads(command(used, "stats", "budgets", "--json").stdout)
    assert (told["scope"], told["state"]) == ("all", "spent")
    assert "spent" in command(used, "stats", "budgets").stdout
    [row] = json.loads(command(used, "stats", "summary", "--by", "owner", "--json").stdout)["rows"]
    assert (row["turns"], round(row["cost_usd"], 6)) == (len(passed), round(budget.spent_usd, 6))


BURST, RUN, DAILY = 40, 0.5, 2.0


@pytest.mark.parametrize("wishes", [{}, {"cost_limit_usd": 0.000001}, {"cost_limit_usd": 0.000001, "max_attempts": 1}])
async def test_bursts_of_submits_spend_a_budget_and_one_turn_at_most_whatever_a_caller_promises(
    installation: Installation,
    wishes: dict[str, Any],
) -> None:
    """Not even the first burst of an installation, which knows no price: one turn of it is let in."""
    installation.play(SCRIPT.replace(str(EACH), str(RUN)), budgets={"all": DAILY})
    relay = installation.relay()
    taken = list[list[str]]()
    body = {"model": "scripted", "messages": HI, **wishes}
    async with (
        TurnsClient(installation.settings) as client,
        httpx2.AsyncClient(base_url=relay.url, timeout=120) as http,
    ):
        while not taken or taken[-1]:
            answers = await asyncio.gather(*(_answered(http, "/v1/turns", body) for _ in range(BURST)))
            taken.append([answer.json()["turn_id"] for answer in answers if answer.status_code == 202])
            said = {answer.status_code: answer for answer in answers}
            assert set(said) <= {202, 429}
            if len(taken) == 1:  # no turn ends, and tells its price, while the first burst is under way
                installation.worker()
            for turn_id in taken[-1]:
                assert (await client.reader.await_result(turn_id, timeout=120)).outcome == "passed"
        [budget] = await client.spending.read_today()
    assert len(taken[0]) == 1
    turns = sum(map(len, taken))
    assert round(budget.spent_usd, 6) == round(turns * RUN, 6), "what was set aside is given back"
    assert DAILY <= budget.spent_usd <= DAILY + RUN, "one turn more at most: the last one that was let in"
    till_midnight = 86_400 - time.time() % 86_400
    assert int(said[429].headers["retry-after"]) > min(60, till_midnight - 30), "now it is really spent"


async def _answered(http: httpx2.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> httpx2.Response:
    """The answer; a busy machine's 503 is asked again, as OpenAI's clients do."""

    async def asked() -> httpx2.Response | None:
        answer = await http.post(path, json=body, headers=headers)
        return None if answer.status_code == 503 else answer

    return cast("httpx2.Response", await wait_until(lambda: asked(), tick=0.2))


async def test_a_file_of_phases_is_stored_whole_or_not_at_all(
    installation: Installation,
) -> None:
    used = installation.play(SCRIPT, budgets={"all": DAILY})
    (used.root / "work").mkdir(parents=True)
    relay = installation.relay()
    phases = [{"id": f"p{number}", "description": "Write a.txt.", "output_files": ["a.txt"]} for number in range(20)]
    names, store = installation.keys, installation.store
    names_of_budgets = BudgetKeys(names.namespace)
    store.hset(names_of_budgets.prices, "scripted", int(RUN * 1e6))

    async def post(count: int, **headers: str) -> httpx2.Response:
        body = {"phases": [{**each, "max_attempts": 1} for each in phases[:count]], "directory": "work"}
        async with httpx2.AsyncClient(base_url=relay.url, timeout=120) as http:
            return await http.post("/v1/phases", json=body, headers=headers)

    refused = await post(20)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exceeded")
    assert not store.zcard(names.due), "none of them was stored"
    assert not store.hlen(names_of_budgets.reservations)
    first = await post(3, **{"idempotency-key": "k"})
    assert first.status_code == 202, first.text
    again = await post(3, **{"idempotency-key": "k"})
    assert again.json() == first.json(), "nothing is doubled, and what is stored needs no room"
    assert store.zcard(names.due) == 3


async def test_phases_that_were_stored_before_the_store_failed_are_named(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = playing(settings, SCRIPT)
    (used.root / "work").mkdir(parents=True)
    phases = [Phase.from_dict({"id": name, "description": "Write.", "output_files": ["a.txt"]}) for name in "abc"]
    async with TurnsClient(used) as client:
        submit, stored = client.submitter.submit, list[str]()

        async def until_the_third(*given: Any, **more: Any) -> str:
            if len(stored) == 2:
                raise StoreUnavailable("ConnectionError")
            stored.append(await submit(*given, **more))
            return stored[-1]

        monkeypatch.setattr(client.submitter, "submit", until_the_third)
        with pytest.raises(StoreUnavailable) as failed:
            await client.phases.submit_phases(phases, directory="work")
    assert failed.value.turn_ids == tuple(stored)
    assert len(stored) == 2


def test_budgets_that_make_no_sense_are_refused_with_an_example(settings: Settings) -> None:
    done = command(replace(settings, budgets={"team:x": 5.0}), "stats", "budgets")
    assert done.returncode == 2
    assert "owner:*=5" in done.stderr
    for budgets in ({}, {"owner:*": 5.0}):
        said = command(replace(settings, budgets=budgets), "stats", "budgets").stdout
        assert said == "HELIX_BUDGETS has no budget, or only budgets for each one, of which nothing was spent today\n"


def test_a_budget_that_matches_nobody_is_an_error_at_the_start_all_at_once(settings: Settings) -> None:
    right = {"all": 1.0, "owner:paula": 2.0, f"owner:{'0' * 32}": 1.0, "owner:paula/u1": 1.0, "key:paula": 1.0}
    wrong = {"owner:pauls": 1.0, "key:nosuch": 1.0, "model:opos": 1.0}
    used = replace(settings, budgets={**right, "owner:pauls": 1.0})
    assert command(used, "stats", "budgets").returncode == 0, "without keys nobody can tell"
    assert "matches nobody" not in command(used, "stats", "budgets").stdout
    secret = api_keys.add_key(used.keys_path, api_keys.ApiKey(name="k", hash="", owner="paula"))
    used = replace(used, budgets=right | wrong)
    for words in (("run", "worker", "--foreground"), ("run", "relay", "--port", "0"), ("up",)):
        done = command(used, *words)
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        found = [entry for entry in used.budgets if f"{entry!r} matches nobody" in done.stderr]
        assert found == list(wrong), words
    assert "the owners paula" in done.stderr
    shown = {each["budget"]: each["state"] for each in json.loads(command(used, "stats", "budgets", "--json").stdout)}
    assert {entry for entry, state in shown.items() if state == "matches nobody"} == set(wrong)
    rows = {
        line.split()[0]: line
        for line in command(used, "stats", "budgets").stdout.splitlines()
        if ":" in line.split()[0]
    }
    assert "matches nobody" in rows["owner:pauls"]
    assert "owner:paula" in rows, "by the name that it was given"
    api_keys.revoke_key(used.keys_path, "k")
    assert find_unmatched_budgets(replace(used, budgets=right)) == {}, "a restart does not fail for a revoked key"
    assert secret
