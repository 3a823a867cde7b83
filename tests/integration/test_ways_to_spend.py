"""Ways to spend more than a budget: by one run beyond it at most. `pytest -s` prints them as a table."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from api_client.budgets.errors import BudgetExceeded
from api_client.budgets.keys import BudgetKeys
from api_client.client import TurnsClient
from api_client.contract.completion import ErrorKind, Verdict
from api_client.contract.errors import TurnNotSuspended
from api_client.contract.escalation import Escalation
from api_client.contract.owners import owner_of_name, owner_of_user
from api_client.contract.settings import Settings
from api_client.contract.tasks import RESUME, RUN, ChainTask
from api_client.contract.tool_calls import WaitingCall
from api_client.contract.turn import Outcome, TurnState
from tests.integration.engine import GOOD, NO_MARKER, Bench, Play, asks, ends, says
from tests.replays import replay_turn
from worker.runners.base import Emit, Order, RunResult, Stop

#: What a run costs, and what may be spent, in US dollars.
RUN_USD, LIMIT = 0.3, 1.0
ANNA = owner_of_name("anna")
CALL = WaitingCall(call="c1", tool="Bash", arguments={"command": "x"}, digest="d1", wait_seconds=600)
ROWS: list[tuple[str, float, str]] = []

Way = Callable[["Spender"], Awaitable[object]]


class Always(list[Play]):
    """Plays the same, however often it is asked."""

    def pop(self, _: object = 0) -> Play:
        return self[0]


class Spender:
    """Somebody who wants as many runs as there are. ``spent``: what they really cost."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.spent, self.number, self.refusals = bench, 0.0, 0, list[str]()
        self.usd = RUN_USD

    def plays(self, play: Play) -> None:
        def paid(order: Order, emit: Emit, stop: Stop) -> RunResult:
            self.spent += self.usd
            usage = {"input_tokens": 1, "output_tokens": 1, "cost_usd": self.usd}
            return replace(play(order, emit, stop), usage=usage)

        self.bench.runner.plays = Always([paid])

    async def submit(self, **more: object) -> str:
        """A new turn in a session of its own; empty when it is refused."""
        self.number += 1
        given: dict[str, object] = {"owner": ANNA, "key": "anna", "max_attempts": 1, "locale": "en", **more}
        try:
            return await self.bench.submit(session_id=f"s{self.number}", **given)
        except BudgetExceeded as error:
            self.refusals.append(str(error))
            return ""

    async def run(self, turn_id: str, link: ChainTask | None = None) -> None:
        turn = await self.bench.client.reader.read_turn(turn_id)
        self.bench.carry_out(turn_id, link or ChainTask(RUN, 1), turn.request.session_id)
        turn = await self.bench.client.reader.read_turn(turn_id)
        if turn.error and turn.error.code == "budget_exceeded":
            assert turn.outcome is Outcome.EXPIRED
            assert "Today's budget is spent" in turn.error.message
            self.refusals.append(turn.error.reason)

    async def turns(self, play: Play, count: int = 12, **more: object) -> None:
        """One turn after the other, each to its end."""
        self.plays(play)
        for _ in range(count):
            if turn_id := await self.submit(**more):
                await self.run(turn_id)

    async def answers(self, turn_id: str, kind: str) -> None:
        turn = await self.bench.client.reader.read_turn(turn_id)
        try:
            await self.bench.client.inbox.decide_turn(turn_id, kind, by="anna", note="again" if kind == "retry" else "")
        except TurnNotSuspended:
            return
        await self.run(turn_id, ChainTask(RESUME, turn.attempt))


async def _answered(who: Spender, kind: str, play: Play, times: int = 12, **more: object) -> None:
    who.plays(play)
    turn_id = await who.submit(**more)
    await who.run(turn_id)
    for _ in range(times):
        await who.answers(turn_id, kind)


async def _answered_together(who: Spender) -> None:
    """Three turns wait for a yes; all get it before one of them goes on."""
    who.plays(asks(CALL))
    ids = [turn_id for _ in range(3) if (turn_id := await who.submit())]
    for turn_id in ids:
        await who.run(turn_id)
    for _ in range(6):
        suspended = [i for i in ids if (await who.bench.client.reader.read_turn(i)).state is TurnState.SUSPENDED]
        for turn_id in suspended:
            await who.bench.client.inbox.decide_turn(turn_id, "approve", by="anna")
        for turn_id in suspended:
            await who.run(turn_id, ChainTask(RESUME, 1))


async def _stored_before_it_was_dear(who: Spender) -> None:
    who.bench.store.hset(BudgetKeys(who.bench.keys.namespace).prices, "scripted", 10_000)
    who.plays(says(GOOD))
    ids = [await who.submit() for _ in range(20)]
    for turn_id in filter(None, ids):
        await who.run(turn_id)


async def _replayed(who: Spender) -> None:
    who.plays(says(GOOD))
    first = await who.submit()
    await who.run(first)
    for number in range(12):
        try:
            turn_id = await replay_turn(who.bench.client, first, prompt=f"again {number}")
        except BudgetExceeded as error:
            who.refusals.append(str(error))
            continue
        await who.run(turn_id)


async def _before_there_was_a_budget(who: Spender) -> None:
    who.plays(says(GOOD))
    async with TurnsClient(replace(who.bench.settings, budgets={})) as free:
        who.bench.client, own = free, who.bench.client
        ids = [await who.submit() for _ in range(12)]
        who.bench.client = own
    for turn_id in ids:
        await who.run(turn_id)


async def _dearer_than_set_aside(who: Spender) -> None:
    who.usd = 0.7
    await who.turns(says(GOOD))


async def _dead_and_delivered_again(who: Spender) -> None:
    """A worker gives the run back, which was paid, again and again."""
    await who.turns(ends(Verdict.CANCELLED), count=4)


FAILS, CUT = says(NO_MARKER), ends(Verdict.INCOMPLETE)
PASSING = ends(Verdict.ERROR, ErrorKind.TRANSIENT)
RETRIES = {"max_attempts": 20, "policy": {"step_marker": ("retry", "fail")}}
HUMAN = {"policy": {"step_marker": ("retry", "escalate")}}
WAYS: dict[str, Way] = {
    "one turn after the other": lambda who: who.turns(says(GOOD)),
    "an answer is rejected and asked for again": lambda who: who.turns(FAILS, 1, **RETRIES),
    "many turns, each asked for again": lambda who: who.turns(FAILS, 6, **RETRIES | {"max_attempts": 2}),
    "a run that breaks off is repeated": lambda who: who.turns(CUT, 1, **RETRIES),
    "a passing error is tried again": lambda who: who.turns(PASSING, 3),
    "a run is given back": _dead_and_delivered_again,
    "a yes to a question, again and again": lambda who: _answered(who, "approve", asks(CALL)),
    "a no to a question, again and again": lambda who: _answered(who, "reject", asks(CALL)),
    "three turns get their yes together": _answered_together,
    "a person has it run again, again and again": lambda who: _answered(who, "retry", FAILS, **HUMAN),
    "another model after an escalation": lambda who: who.turns(
        FAILS, 6, **HUMAN, attached=Escalation(model="expert", human=False).attached
    ),
    "many runs of another model": lambda who: who.turns(
        FAILS, 2, **HUMAN, attached=Escalation(model="expert", runs=9, human=False).attached
    ),
    "turns stored while runs were cheap": _stored_before_it_was_dear,
    "turns stored before there was a budget": _before_there_was_a_budget,
    "a turn is replayed": _replayed,
    "runs that cost more than was set aside": _dearer_than_set_aside,
    "a promise to spend little": lambda who: who.turns(FAILS, 6, **RETRIES | {"cost_limit_usd": 0.000001}),
    "a budget of its own above the owner's": lambda who: who.turns(FAILS, 2, **RETRIES | {"cost_limit_usd": 50.0}),
}
#: The budget, and who spends: each by the names that people use.
SPELLINGS: dict[str, tuple[str, dict[str, object]]] = {
    "owner by name": ("owner:anna", {}),
    "owner by hash": (f"owner:{ANNA}", {}),
    "each owner": ("owner:*", {}),
    "all": ("all", {}),
    "key by its owner": ("key:anna", {}),
    "each key": ("key:*", {}),
    "model": ("model:scripted", {}),
    "each model": ("model:*", {}),
    "user of a key by hash": (f"owner:{owner_of_user(ANNA, 'u1')}", {"owner": owner_of_user(ANNA, "u1")}),
    "user as `turns stats summary` prints it": (
        f"owner:anna/{owner_of_user(ANNA, 'u1')}",
        {"owner": owner_of_user(ANNA, "u1")},
    ),
}


@pytest.fixture(autouse=True, scope="module")
def table() -> Iterator[None]:
    yield
    print(f"\n| a way to spend more than {LIMIT:.2f} $ | spent $ | beyond $ | refused |\n| --- | --- | --- | --- |")
    for way, spent, said in ROWS:
        print(f"| {way} | {spent:.2f} | {max(0.0, spent - LIMIT):.2f} | {said} |")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, budgets={"owner:anna": LIMIT}, models={"scripted": "scripted", "expert": "scripted"})


@pytest.fixture
async def spender(bench: Bench) -> Spender:
    bench.store.hset(BudgetKeys(bench.keys.namespace).prices, "scripted", int(RUN_USD * 1e6))
    return Spender(bench)


def judged(way: str, who: Spender) -> None:
    ROWS.append((way, who.spent, who.refusals[-1] if who.refusals else "it ended"))
    assert who.spent <= LIMIT + who.usd + 1e-9, f"{way}: {who.spent} of {LIMIT}"


@pytest.mark.parametrize("way", WAYS)
async def test_no_way_spends_more_than_one_run_beyond_the_budget(way: str, spender: Spender) -> None:
    await WAYS[way](spender)
    judged(way, spender)
    assert spender.spent >= LIMIT - 2 * spender.usd, "what there is may be spent"
    charged = {each.budget: each for each in await spender.bench.client.spending.read_today()}["owner:anna"]
    assert charged.spent_usd >= spender.spent - 1e-6, "and all of it is charged"


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_budget_counts_by_every_name_of_whom_it_is_about(settings: Settings, spelling: str) -> None:
    entry, given = SPELLINGS[spelling]
    used = replace(settings, budgets={entry: LIMIT, "owner:nobody": 0.0, "model:expert": 0.0})
    async with TurnsClient(used) as client:
        bench = Bench(used, client)
        bench.store.hset(BudgetKeys(bench.keys.namespace).prices, "scripted", int(RUN_USD * 1e6))
        who = Spender(bench)
        await who.turns(says(GOOD), **given)
        judged(f"budget named: {spelling}", who)
        assert who.refusals
        charged = {each.budget: each.charged_usd for each in await client.spending.read_today()}
        assert charged[entry] == pytest.approx(who.spent)
        bench.close()


async def test_turns_that_go_on_at_the_same_moment_share_what_is_left(spender: Spender) -> None:
    spender.plays(asks(CALL))
    ids = [await spender.submit() for _ in range(3)]
    for turn_id in ids:
        await spender.run(turn_id)
    client = spender.bench.client
    requests = {turn_id: (await client.reader.read_turn(turn_id)).request for turn_id in ids}
    checks = (client.spending.admit_run(turn_id, request, "scripted") for turn_id, request in requests.items())
    found = await asyncio.gather(*checks, return_exceptions=True)
    assert [type(each) for each in found].count(BudgetExceeded) >= 2, "one more run fits, not three"
    assert spender.spent == pytest.approx(3 * RUN_USD)
