"""The line: owners take turns. Played by hand: the test takes messages from Celery's queue, as a worker does."""

from collections import Counter, deque
from dataclasses import replace
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import PREFERRED_QUEUE, RUN_QUEUE
from api_client.store import commands
from api_client.turns.record.backlog import _parse_turn_id
from api_client.turns.record.claim import ClaimRefusal, LeaseClaim
from tests.integration.lua.by_hand import FIRST, PASSED, request
from tests.on_loop import Ledger

#: Messages that may wait in the queue: they went before who comes then.
AHEAD = 2


class Line:
    """An installation with no worker: ``next`` takes a message, and claims the turn that it names."""

    def __init__(self, client: TurnsClient, ledger: Ledger, store: redis.Redis) -> None:
        self.client, self.ledger, self.store = client, ledger, store
        self.owners: dict[str, str] = {}
        self.queue = f"{client.settings.namespace}:celery:{RUN_QUEUE}"
        self.keys = Keys(client.settings.namespace)

    async def submit(self, owner: str, number: int = 1, **more: Any) -> list[str]:
        ids = []
        for _ in range(number):
            session = more.pop("session_id", "") or f"s-{len(self.owners)}"
            turn_id = await self.client.submitter.submit(request(owner=owner, session_id=session, **more))
            self.owners[turn_id] = owner
            ids.append(turn_id)
        return ids

    def taken(self) -> str:
        """The turn of the next message; empty without one."""
        raw: Any = self.store.rpop(self.queue)
        return _parse_turn_id(raw) if raw else ""

    def claim(self, turn_id: str) -> LeaseClaim:
        session: Any = self.store.hget(self.keys.turn(turn_id), "session_id")
        claim = self.ledger.claim_turn(turn_id, session.decode(), FIRST)
        assert isinstance(claim, LeaseClaim), claim
        return claim

    def next(self) -> str:
        """The owner whose turn is next; that turn ends at once."""
        turn_id = self.taken()
        if not turn_id:
            return ""
        self.ledger.commit_transition(self.claim(turn_id), PASSED)
        return self.owners[turn_id]

    def order(self, number: int = 10_000) -> list[str]:
        found = []
        while len(found) < number and (owner := self.next()):
            found.append(owner)
        return found

    @property
    def waiting(self) -> int:
        return int(self.store.zcard(self.keys.waiting))


@pytest.fixture
async def line(client: TurnsClient, settings: Settings, store: redis.Redis) -> Line:
    ledger = Ledger(replace(settings, lease_seconds=60.0), "worker-1")
    ledger.release_turns()  # it knows the line
    return Line(client, ledger, store)


async def test_who_comes_behind_another_owners_five_hundred_is_next(line: Line) -> None:
    await line.submit("a", 500)
    assert line.order(16) == ["a"] * 16
    await line.submit("b")
    assert line.order(AHEAD + 1)[-1] == "b"
    assert len(line.order()) == 500 - 16 - AHEAD
    assert (line.waiting, line.store.llen(line.queue)) == (0, 0)


async def test_an_owner_who_comes_back_after_another_had_the_queue_alone_is_one_turn_behind_at_most(line: Line) -> None:
    await line.submit("a", 50)
    await line.submit("b")
    while line.next() != "b":
        pass
    line.order(20)
    await line.submit("b")
    assert "b" in line.order(AHEAD + 2)


@pytest.mark.parametrize("weight", [10, 100])
async def test_who_comes_back_beside_a_heavier_owner_that_had_the_queue_alone_is_next(line: Line, weight: int) -> None:
    await line.submit("a", 3 * weight + 30, weight=weight)
    await line.submit("b")
    while line.next() != "b":
        pass
    line.order(2 * weight + 10)
    await line.submit("b")
    assert line.order(400).index("b") <= AHEAD + 1


@pytest.mark.parametrize("slots", [2, 4])
async def test_an_owner_with_one_slot_gets_its_share_beside_a_heavier_one_without_limit(line: Line, slots: int) -> None:
    await line.submit("a", 160, weight=5)
    await line.submit("c", 60, at_once=1)
    running, went = deque[Any](), list[str]()
    while len(went) < 150 and (turn_id := line.taken()):
        went.append(line.owners[turn_id])
        running.append(line.claim(turn_id))
        if len(running) >= slots:
            line.ledger.commit_transition(running.popleft(), PASSED)
    assert went[10:].count("c") / len(went[10:]) >= 0.12, "one of six"


async def test_messages_that_are_lost_one_by_one_stop_nobody(line: Line) -> None:
    await line.submit("a", 10)
    line.taken()  # its worker died before the claim
    assert line.next() == "a"
    await line.client.canceller.cancel(line.taken())  # revoked: Celery drops the message
    assert line.next() == "a"


async def test_weights_of_three_to_one_give_shares_of_three_to_one(line: Line) -> None:
    await line.submit("a", 120, weight=3)
    await line.submit("b", 120, weight=1)
    shares = Counter(line.order(120 + AHEAD)[AHEAD:])
    assert 2.7 <= shares["a"] / shares["b"] <= 3.3, shares


async def test_a_thousand_owners_with_one_turn_are_not_behind_one_with_five_thousand(line: Line) -> None:
    await line.submit("many", 2_000)
    for number in range(300):
        await line.submit(f"o{number}")
    first = line.order(310 + AHEAD)
    assert len([owner for owner in first if owner != "many"]) == 300, "each before the second next of the other"


async def test_turns_of_people_go_first_and_background_turns_go_on(line: Line) -> None:
    await line.submit("b", 40, priority="background")
    await line.submit("a", 40)
    order = line.order()[AHEAD:]
    assert Counter(order[:32]) == {"a": 28, "b": 4}, "one of eight"
    assert Counter(order) == {"a": 40, "b": 40 - AHEAD}


async def test_within_an_owner_the_oldest_turn_goes_first(line: Line) -> None:
    ids = await line.submit("a", 12)
    order = []
    while turn_id := line.taken():
        order.append(turn_id)
        line.claim(turn_id)
    assert order == ids


async def test_an_owner_has_no_more_agents_at_once_than_its_limit_and_another_is_not_held_up(line: Line) -> None:
    await line.submit("a", 10, at_once=2)
    await line.submit("b", 3)
    held = [line.taken() for _ in range(2)]
    claims = [line.claim(turn_id) for turn_id in held]
    assert [line.owners[each] for each in held] == ["a", "a"]
    assert line.order() == ["b"] * 3
    assert line.waiting == 8
    line.ledger.commit_transition(claims[0], PASSED)
    assert line.order(1) == ["a"], "its place is free again: it went with the command that freed it"
    assert len(line.order()) == 7, "the other one is still at work"
    assert line.store.zcard(line.keys.at_work) == 1
    line.ledger.commit_transition(claims[1], PASSED)
    assert line.store.zcard(line.keys.at_work) == 0


async def test_a_limit_that_was_raised_holds_for_turns_that_wait_already(line: Line) -> None:
    ids = await line.submit("a", 3, at_once=1)
    line.claim(line.taken())
    ids += await line.submit("a", at_once=4)
    started = []
    while turn_id := line.taken():
        line.claim(turn_id)
        started.append(turn_id)
    assert started == ids[1:], "none waits until another ends"


async def test_a_limit_that_was_lowered_holds_for_turns_that_wait_already(line: Line) -> None:
    await line.submit("a", 4, at_once=3)
    claims = [line.claim(line.taken()) for _ in range(3)]
    await line.submit("a", at_once=1)
    for claim in claims:
        assert not line.taken(), "as many as one are at work"
        line.ledger.commit_transition(claim, PASSED)
    assert len(line.order()) == 2


async def test_a_message_that_was_given_up_takes_no_place_beyond_its_owners_limit(line: Line) -> None:
    await line.submit("a", 4, at_once=2)
    held = [line.taken() for _ in range(2)]
    await line.submit("b", AHEAD)  # the queue is full
    assert line.ledger.queue_turn(held[0], "s-0", FIRST) == "lined_up", "a reaper took its message for lost"
    claim = line.claim(held[1])
    line.store.zadd(line.keys.at_work, {"a|another of its turns": 0})
    assert isinstance(line.ledger.claim_turn(held[0], "s-0", FIRST), ClaimRefusal), "two of its owner are at work"
    line.store.zrem(line.keys.at_work, "a|another of its turns")
    line.ledger.commit_transition(claim, PASSED)
    assert sorted(line.order()) == ["a"] * 3 + ["b"] * AHEAD
    assert (line.waiting, line.store.zcard(line.keys.at_work)) == (0, 0)


async def test_a_turn_whose_message_was_lost_is_not_kept_back_by_its_own_place(line: Line) -> None:
    [turn_id] = await line.submit("a", at_once=1)
    line.store.delete(line.queue)
    assert line.ledger.queue_turn(turn_id, "s-0", FIRST) == "lined_up"
    assert line.taken() == turn_id


async def test_a_turn_that_is_claimed_by_a_message_that_was_given_up_leaves_the_line(line: Line) -> None:
    ids = await line.submit("a", 4)
    held = [line.taken() for _ in range(2)]
    line.ledger.release_turns()  # the queue is full
    assert line.ledger.queue_turn(held[0], "s-0", FIRST) == "lined_up"
    assert line.waiting == 1
    line.claim(held[0])
    assert line.waiting == 0
    assert line.order() == ["a"] * 2
    assert line.owners.keys() == set(ids)


async def test_a_chat_sees_how_many_go_before_its_turn_as_owners_take_turns(line: Line) -> None:
    async def before(turn_id: str) -> int:
        place = await line.client.sessions.find_position(turn_id, "s-none")
        assert place.before == 0
        return place.waiting - 1

    many = await line.submit("a", 60)
    one, second = await line.submit("b", 2)
    heavy = (await line.submit("c", 40, weight=4))[-1]
    later = await line.submit("d", 1)
    quiet = (await line.submit("e", 3, priority="background"))[-1]
    told = {name: await before(name) for name in (one, second, heavy, *later, many[-1], quiet)}
    went = []
    while turn_id := line.taken():
        went.append(turn_id)
        line.ledger.commit_transition(line.claim(turn_id), PASSED)
    found = {name: went.index(name) for name in told}
    assert {name: abs(told[name] - found[name]) <= 4 for name in told} == dict.fromkeys(told, True), (told, found)
    assert told[one] <= AHEAD + 3, "one of each other owner"
    assert told[many[-1]] >= 60
    assert await before(one) <= 0, "it is not in the line any more"


async def test_cancelled_turns_leave_the_line_and_cost_their_owner_nothing(line: Line) -> None:
    ids = await line.submit("a", 50)
    await line.submit("b", 20)
    for turn_id in ids[AHEAD:]:
        await line.client.canceller.cancel(turn_id)
    await line.submit("a")
    assert sorted(line.order(AHEAD + 2)[AHEAD:]) == ["a", "b"]
    assert line.order() == ["b"] * 19


async def test_the_last_turn_that_leaves_the_line_leaves_nothing_of_it(line: Line) -> None:
    ids = await line.submit("a", AHEAD + 1)
    await line.client.canceller.cancel(ids[-1])
    assert line.order() == ["a"] * AHEAD
    assert not line.store.exists(line.keys.shares, line.keys.turns_of("interactive"))


async def test_a_cancelled_turn_whose_message_waits_lets_the_next_one_go(line: Line) -> None:
    ids = await line.submit("a", 5)
    for turn_id in ids[:AHEAD]:
        await line.client.canceller.cancel(turn_id)
    seen = []
    while turn_id := line.taken():
        seen.append(turn_id)
        line.ledger.claim_turn(turn_id, f"s-{ids.index(turn_id)}", FIRST)
    assert seen == ids


async def test_the_next_turn_of_a_session_takes_its_owners_turn(line: Line) -> None:
    await line.submit("a", 2, session_id="")
    session: list[str] = []
    for _ in range(3):
        session += await line.submit("a", session_id="one")
    await line.submit("b", 4)
    order = line.order()
    assert order.index("b") <= AHEAD + 1
    await line.client.canceller.cancel(session[0])
    assert line.store.llen(f"{line.client.settings.namespace}:celery:{PREFERRED_QUEUE}") == 0


async def test_what_was_lost_with_the_queue_is_let_go_again(line: Line, settings: Settings) -> None:
    await line.submit("a", 6)
    line.store.delete(line.queue)
    found = line.ledger.release_turns()
    assert (found.left, line.store.llen(line.queue)) == ((), AHEAD)
    assert len(line.order()) == 4, "the two that were lost are announced when they are due"


async def test_places_of_turns_that_are_gone_are_found(line: Line) -> None:
    await line.submit("a", 3, at_once=1)
    stale = "a|turn-" + "0" * 32
    line.store.zadd(line.keys.at_work, {stale: 0})
    [held] = [line.taken()]
    claim = line.claim(held)
    line.ledger.commit_transition(claim, PASSED)
    assert line.taken() == "", "the place that leaked is taken"
    found = line.ledger.release_turns()
    assert found.places == (stale,)
    assert line.ledger.find_ended(found.places) == [stale]
    line.ledger.release_turns("", [stale])
    assert line.owners[line.taken()] == "a"


async def test_a_broken_line_costs_no_turn(line: Line) -> None:
    line.store.set(line.keys.waiting, "not a sorted set")
    [turn_id] = await line.submit("a", at_once=1)
    turn = await line.client.reader.read_turn(turn_id)
    soon = (turn.created_at + line.client.settings.announce_seconds) * 1000
    assert turn.state.value == "queued"
    assert line.store.zscore(line.keys.due, turn_id) == pytest.approx(soon, abs=1), "announced before waiting turns are"
    line.store.delete(line.keys.waiting)
    assert line.ledger.queue_turn(turn_id, "s-0", FIRST) == "lined_up"
    assert line.taken() == turn_id


@pytest.mark.parametrize("entry", ["", "|{broken\nm", "|5\nm", "|{}\nm", '|{"who":"x"}\nm'])
async def test_an_entry_that_cannot_be_read_holds_nobody_up(line: Line, entry: str) -> None:
    await line.submit("a", AHEAD + 3)
    await line.submit("b", 3)
    line.store.zadd(line.keys.waiting, {f"interactive|a|000|turn-x{entry}": 0})
    assert [line.next() for _ in range(AHEAD + 6)].count("") == 0


async def test_a_cancelled_turn_whose_message_was_lost_lets_its_owners_background_turn_go(line: Line) -> None:
    lost, waiting = *await line.submit("b", at_once=1), *await line.submit("b", at_once=1, priority="background")
    assert line.taken() == lost
    await line.submit("o", AHEAD)
    assert line.ledger.queue_turn(lost, "s-0", FIRST) == "lined_up"
    await line.client.canceller.cancel(lost)
    taken = [line.taken() for _ in range(AHEAD)]
    line.ledger.release_turns()
    assert waiting in [*taken, line.taken()]


@pytest.mark.parametrize("owners", [10, 10_000])
async def test_a_claim_costs_the_same_with_many_owners(line: Line, owners: int) -> None:
    """What the store does for one: commands inside of it; each is at worst logarithmic."""
    pipe = line.store.pipeline(transaction=False)
    await line.submit("a", 6)
    for number in range(owners):
        who = f"interactive|o{number:05}"
        pipe.zadd(line.keys.waiting, {f"{who}|{number:015}|turn-{number:032x}": 0})
        pipe.zadd(line.keys.turns_of("interactive"), {who: 10.0 + number})
    pipe.execute()
    line.store.config_resetstat()
    line.claim(line.taken())
    stats: Any = line.store.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
    _COSTS[owners] = {name: number for name, number in calls.items() if name not in {"info", "config|resetstat"}}
    if len(_COSTS) == 2:
        assert _COSTS[10] == _COSTS[10_000]


_COSTS: dict[int, dict[str, int]] = {}


async def test_waiting_costs_a_turn_eight_commands(line: Line) -> None:
    def commands() -> int:
        stats: Any = line.store.info("commandstats")
        return sum(each["calls"] for name, each in stats.items() if name != "cmdstat_info")

    async def cost(turns: int) -> float:
        before = commands()
        await line.submit("a", turns)
        assert len(line.order()) == turns
        return (commands() - before) / turns

    await cost(1)  # the server knows the scripts
    alone = await cost(1)
    assert await cost(60) - alone <= 8


@pytest.fixture
def elsewhere(settings: Settings) -> Settings:
    """Settings with the queues on another server than the turns."""
    url = settings.broker_url.rstrip("0") + "1" if settings.broker_url.endswith("/0") else settings.broker_url + "?"
    found = replace(settings, broker_url=url)
    assert commands.find_queue(found) == ""
    return found


def note_announced(client: TurnsClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the turns which the client announces, instead of a queue."""
    announced: list[str] = []

    async def announce(_link: Any, turn_id: str, _session: str, **_: Any) -> None:
        announced.append(turn_id)

    monkeypatch.setattr(client.submitter._line._announcer, "announce_task", announce)
    return announced


async def test_where_the_queues_are_elsewhere_the_caller_announces_what_may_go(
    elsewhere: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TurnsClient(elsewhere) as client:
        announced = note_announced(client, monkeypatch)
        ledger = Ledger(replace(elsewhere, lease_seconds=60.0), "w")
        ledger.release_turns()
        ids = [await client.submitter.submit(request(session_id=f"s-{n}", owner="a")) for n in range(30)]
        assert announced == ids[:16], "so many may be on their way"
        assert isinstance(ledger.claim_turn(ids[0], "s-0", FIRST), LeaseClaim)
        assert [each[1] for each in ledger.release_turns().left] == [ids[16]]
        for number in range(1, 17):  # their messages are lost
            assert ledger.queue_turn(ids[number], f"s-{number}", FIRST) == "lined_up"
        assert len(ledger.release_turns().left) == 16, "they take no room any longer"


async def test_where_the_queues_are_elsewhere_background_turns_get_one_start_of_eight_too(
    elsewhere: Settings, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TurnsClient(elsewhere) as client:
        announced = note_announced(client, monkeypatch)
        line = Line(client, Ledger(replace(elsewhere, lease_seconds=60.0), "w"), store)
        line.ledger.release_turns()
        await line.submit("b", 40, priority="background")
        await line.submit("a", 60)
        order: list[str] = []
        while len(order) < 16 + 32:
            order.append(line.owners[announced[0]])
            line.ledger.commit_transition(line.claim(announced.pop(0)), PASSED)
            announced += [turn_id for _, turn_id, _ in line.ledger.release_turns().left]
    assert Counter(order[16:]) == {"a": 28, "b": 4}


async def test_before_the_first_worker_reports_the_fair_queue_is_kept(client: TurnsClient, store: redis.Redis) -> None:
    for number in range(5):
        await client.submitter.submit(request(session_id=f"s-{number}"))
    assert store.llen(f"{client.settings.namespace}:celery:{RUN_QUEUE}") == 2
    assert store.zcard(Keys(client.settings.namespace).waiting) == 3
