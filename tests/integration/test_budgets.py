"""A budget's hard stop with two real relays and a real worker, and where people see what was spent."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import replace

import httpx2

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from tests.conftest import WorkerProcess
from tests.integration.test_engine import GOOD
from tests.integration.test_pauses import run
from tests.integration.test_web_pages import HI
from tests.relay import RelayProcess
from tests.support import playing

CENT = 0.01
LIMIT, EACH, CALLERS = 20 * CENT, 3 * CENT, 4
SCRIPT = f"- attempts: [[say: {json.dumps(GOOD)}, usage: {{input_tokens: 10, output_tokens: 5, cost_usd: {EACH}}}]]\n"


async def test_two_relays_overshoot_a_budget_by_the_turns_in_flight_at_most(
    settings: Settings, worker_process: Callable[..., WorkerProcess]
) -> None:
    used = playing(settings, SCRIPT, budgets={"all": LIMIT}, locale="en")
    worker_process(settings=used)
    relays = [RelayProcess(replace(used, web_host="127.0.0.1")) for _ in range(2)]
    for relay in relays:
        relay.start()
    passed, refused = [], list[httpx2.Response]()

    async def ask(number: int) -> None:
        """One after the other, until the budget is spent."""
        async with httpx2.AsyncClient(base_url=relays[number % 2].url, timeout=120) as http:
            for asked in itertools.count():
                key = {"idempotency-key": f"{number} {asked}"}
                body = {"model": "scripted", "messages": HI}
                while (answer := await http.post("/v1/chat/completions", json=body, headers=key)).status_code == 503:
                    await asyncio.sleep(0.2)  # a busy machine's: asked again, as OpenAI's clients do
                if answer.status_code != 200:
                    refused.append(answer)
                    return
                passed.append(answer.headers["x-turn-id"])

    try:
        await asyncio.gather(*map(ask, range(CALLERS)))
        if passed:  # a relay dies: what was spent is in the store
            relays[0].kill()
        async with TurnsClient(used) as client:
            [budget] = await client.spending.today()
        bodies = [answer.json()["error"] for answer in refused]
        assert {(answer.status_code, body["code"]) for answer, body in zip(refused, bodies, strict=True)} == {
            (429, "budget_exceeded")
        }
        assert "until" in bodies[0]["message"]
        assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
        assert round(budget.spent_usd, 6) == round(len(passed) * EACH, 6), "each turn is charged, once"
        assert LIMIT - EACH < budget.spent_usd <= LIMIT + CALLERS * EACH
    finally:
        for relay in relays:
            relay.kill()
    [told] = json.loads(run(used, "budgets", "--json").stdout)
    assert (told["scope"], told["state"]) == ("all", "spent")
    assert "spent" in run(used, "budgets").stdout
    [row] = json.loads(run(used, "stats", "--by", "owner", "--json").stdout)["rows"]
    assert (row["turns"], round(row["cost_usd"], 6)) == (len(passed), round(budget.spent_usd, 6))


def test_budgets_that_make_no_sense_are_refused_with_an_example(settings: Settings) -> None:
    done = run(replace(settings, budgets={"team:x": 5.0}), "budgets")
    assert done.returncode == 2
    assert "owner:*=5" in done.stderr
    assert run(settings, "budgets").stdout == "no budgets: HELIX_BUDGETS is not set\n"
