"""The admission port: an installed package refuses turns in its own words, and no file of ours names it."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from api_client.budgets.keys import BudgetKeys
from api_client.client import TurnsClient
from api_client.contract.admission import Admission, Submission
from api_client.contract.errors import BadRequest, IdempotencyConflict, NotAdmitted, SettingsError, StoreUnavailable
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.installation import asked, web
from tests.integration.engine import GOOD, Bench, says
from worker.turns.run_admissions import RunAdmissions

#: One turn on a weekday for each owner; the day is what the question says, so that the test has a Saturday.
QUOTA = """
from api_client.contract.admission import Admission
from api_client.contract.errors import NotAdmitted

class WeekdayQuota(Admission):
    def __init__(self, store):
        self._store = store

    async def admit(self, turn):
        if "Saturday" in turn.request.prompt:
            raise NotAdmitted("no questions on a Saturday", seconds=86_400)
        return turn.request

    async def hold(self, turns):
        key = f"{self._store.keys.prefix}weekday-quota"
        for turn in turns:
            await self._store.await_reply(self._store.redis.sadd(key, turn.turn_id))
            if await self._store.await_reply(self._store.redis.scard(key)) > 2:
                raise NotAdmitted("your two questions of this weekday are used up")

    async def admit_run(self, turn_id, request, model):
        if "a costly run" in request.prompt:
            raise NotAdmitted(f"no run of {model} today")

    async def release(self, turn):
        await self._store.await_reply(self._store.redis.srem(f"{self._store.keys.prefix}weekday-quota", turn.turn_id))
"""


def install(folder: Path, names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a package on the path that adds an admission, as pip would leave it."""
    (folder / "weekday_quota.py").write_text(QUOTA)
    info = folder / "weekday_quota-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weekday-quota\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[helix_turns.admissions]\nweekday = {names}\n")
    monkeypatch.syspath_prepend(folder)


@pytest.fixture
def quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path, "weekday_quota:WeekdayQuota", monkeypatch)
    yield
    sys.modules.pop("weekday_quota", None)


def held(settings: Settings) -> int:
    with redis.Redis.from_url(settings.redis_url) as store:
        return int(store.scard(f"{Keys(settings.namespace).prefix}weekday-quota"))  # type: ignore[arg-type]


@pytest.mark.usefixtures("quota")
async def test_an_installed_quota_refuses_a_request_in_its_own_words_and_lets_another_pass(settings: Settings) -> None:
    async with web(settings) as http:

        async def ask(text: str) -> Any:
            return await http.post("/v1/responses", json={"model": "scripted", "input": text, "background": True})

        refused = await ask("May I ask on Saturday?")
        assert refused.status_code == 429, refused.text
        assert refused.json()["error"] == {
            "message": "no questions on a Saturday",
            "type": "rate_limit_error",
            "param": None,
            "code": "not_admitted",
        }
        assert refused.headers["retry-after"] == "86400"
        for number in range(2):
            assert (await ask(f"It is Monday {number}")).status_code == 200
        full = await ask("It is Monday 3")
        assert (full.status_code, full.json()["error"]["message"]) == (
            403,
            "your two questions of this weekday are used up",
        )
        assert full.headers["x-should-retry"] == "false"
    assert held(settings) == 2, "what the refused turn held was released"


@pytest.mark.usefixtures("quota")
async def test_what_an_admission_holds_is_released_when_the_store_refuses_and_kept_when_a_submit_is_repeated(
    settings: Settings,
) -> None:
    async with TurnsClient(settings) as client:
        first = await client.submitter.submit(asked("a"), idempotency_key="k")
        assert await client.submitter.submit(asked("a"), idempotency_key="k") == first
        with pytest.raises(IdempotencyConflict):
            await client.submitter.submit(asked("b"), idempotency_key="k")
        assert held(settings) == 1
        assert await client.submitter.submit(asked("a"), turn_id=first) == first
        assert held(settings) == 1


@pytest.mark.usefixtures("quota")
async def test_a_refusal_never_hides_a_turn_that_was_acknowledged(settings: Settings) -> None:
    """The quota or the budget is used up meanwhile: the same submit finds its turn, any other is refused."""
    dear = replace(settings, budgets={"all": 10.0})
    async with TurnsClient(dear) as client:
        prices = BudgetKeys(client.store.namespace).prices
        await client.store.redis.hset(prices, "scripted", 1000)
        first = await client.submitter.submit(asked("a"), idempotency_key="k")
        await client.submitter.submit(asked("b"), idempotency_key="b")
        for spent in ("quota", "budget"):
            if spent == "budget":  # a turn of an unknown price sets aside all that is left
                await client.store.redis.delete(f"{client.store.keys.prefix}weekday-quota", prices)
                await client.submitter.submit(asked("c"))
            with pytest.raises(NotAdmitted, match="budget" if spent == "budget" else "two questions"):
                await client.submitter.submit(asked("new"))
            with pytest.raises((NotAdmitted, IdempotencyConflict)):
                await client.submitter.submit(asked("another question"), idempotency_key="k")
            assert await client.submitter.submit(asked("a"), idempotency_key="k") == first
            assert await client.submitter.submit(asked("a"), turn_id=first) == first


@pytest.mark.usefixtures("quota")
async def test_a_worker_that_cannot_ask_an_admission_runs_the_agent_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The admission does not reach the store, and then its package does not load."""

    async def stay_away(*_: Any) -> None:
        raise StoreUnavailable("no answer")

    for said in ("run.not_checked", "admission.not_loaded"):
        if said == "run.not_checked":
            monkeypatch.setattr("weekday_quota.WeekdayQuota.admit_run", stay_away)
        else:
            monkeypatch.delattr("weekday_quota.WeekdayQuota")
        with capture_logs() as told:
            admissions = RunAdmissions(bench.settings)
            bench.service.parts = replace(bench.service.parts, admissions=admissions)
            turn_id = await bench.submit(says(GOOD), session_id=said)
            await asyncio.to_thread(bench.carry_out, turn_id, session_id=said)
            bench.loop.run_and_wait(admissions.close())
        assert (await bench.client.reader.read_turn(turn_id)).outcome == Outcome.PASSED
        assert said in [line["event"] for line in told]


@pytest.mark.usefixtures("quota")
async def test_an_installed_quota_refuses_a_run_and_the_turn_ends_with_its_words(bench: Bench) -> None:
    turn_id = await bench.submit(messages=({"role": "user", "content": "a costly run"},))
    await asyncio.to_thread(bench.carry_out, turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, bench.runner.orders) == (Outcome.EXPIRED, [])
    assert turn.error is not None
    assert (turn.error.code, turn.error.reason) == ("not_admitted", "no run of scripted today")
    assert "(no run of scripted today)" in turn.error.message


async def test_a_refusal_after_budgets_gives_back_what_they_set_aside_but_not_what_a_stored_turn_has(
    settings: Settings,
) -> None:
    class Refusing(Admission):
        async def hold(self, turns: Any) -> None:
            raise NotAdmitted("no")

    budgeted = replace(settings, budgets={"all": 10.0})
    async with TurnsClient(budgeted) as client:
        await client.store.redis.hset(BudgetKeys(client.store.namespace).prices, "scripted", 1000)
        stored = await client.submitter.submit(asked("a"))
        client.submitter._admissions = [*client.submitter._admissions, Refusing()]
        assert await client.submitter.submit(asked("a"), turn_id=stored) == stored
        with pytest.raises(NotAdmitted):
            await client.submitter.submit(asked("a"))
        assert await client.store.redis.hkeys(BudgetKeys(client.store.namespace).reservations) == [stored.encode()]


async def test_nothing_is_admitted_further_after_a_refusal(settings: Settings) -> None:
    seen: list[Submission] = []

    class Seeing(Admission):
        async def admit(self, turn: Submission) -> Any:
            seen.append(turn)
            return turn.request

    async with TurnsClient(settings) as client:
        client.submitter._admissions = [*client.submitter._admissions, Seeing()]
        with pytest.raises(BadRequest):
            await client.submitter.submit(asked(""))
    assert not seen


async def test_an_admission_that_does_not_load_keeps_the_client_from_starting(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "weekday_quota:Missing", monkeypatch)
    with pytest.raises(SettingsError, match=r"the admission 'weekday' .* does not load"):
        TurnsClient(settings)
