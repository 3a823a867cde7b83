"""Links carried on in place: the same turn as with announcements, by one holder, as long as this process has slots."""

import gc
from dataclasses import replace

from api_client.contract.completion import Verdict
from api_client.contract.tasks import CHECK_QUEUE, RETRY, RUN, RUN_QUEUE, VALIDATE, ChainTask
from api_client.contract.turn import Outcome, TurnState
from api_client.turns.record.claim import LeaseClaim
from tests.integration.engine import GOOD, NO_MARKER, Bench, ends, says
from tests.support import wait_for
from worker.runners.base import Emit, Order, RunResult, Stop
from worker.turns.slots import Slots


async def kinds(bench: Bench, turn_id: str) -> list[str]:
    turn = await bench.client.reader.read_turn(turn_id)
    return [event.kind for event in await bench.events(turn)]


async def test_one_message_is_enough_for_a_turn_that_asks_again(bench: Bench) -> None:
    turn_id = await bench.submit(says(NO_MARKER), says(GOOD))
    bench.carry_out_one(ChainTask(RUN, 1), turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.outcome, turn.attempt, turn.delivery, turn.strikes) == (Outcome.PASSED_AFTER_RETRY, 2, 2, 0)
    assert bench.announced == []


async def test_the_log_is_the_same_whether_links_are_announced_or_carried_on_in_place(bench: Bench) -> None:
    plays = (ends(Verdict.INCOMPLETE), says(NO_MARKER), says(GOOD))
    in_place = await bench.submit(*plays)
    bench.carry_out(in_place)
    bench.slots = Slots({RUN_QUEUE: 0, CHECK_QUEUE: 0})
    announced = await bench.submit(*plays)
    bench.carry_out(announced)
    assert await kinds(bench, in_place) == await kinds(bench, announced)
    first, second = [await bench.client.reader.read_attempts(turn_id) for turn_id in (in_place, announced)]
    assert [(a.number, a.decision, a.deliveries, a.feedback) for a in first] == [
        (a.number, a.decision, a.deliveries, a.feedback) for a in second
    ]


async def test_a_turn_that_was_given_back_is_freed_without_a_garbage_collection(bench: Bench) -> None:
    """The commands of a turn know its claim, and the claim them: in each turn, with all of its texts."""
    gc.disable()
    try:
        turn_id = await bench.submit(says(NO_MARKER), says(GOOD))
        bench.carry_out_one(ChainTask(RUN, 1), turn_id)
        wait_for(lambda: all(kept.turn.turn_id != turn_id for kept in gc.get_objects() if isinstance(kept, LeaseClaim)))
    finally:
        gc.enable()


async def test_a_link_is_announced_when_every_slot_for_it_is_taken(bench: Bench) -> None:
    bench.slots = Slots({RUN_QUEUE: 1, CHECK_QUEUE: 1})
    turn_id = await bench.submit(says(NO_MARKER), says(GOOD))
    bench.loop.run_and_wait(bench.service.carry_out_task(ChainTask(RUN, 1), turn_id, "s"))
    assert bench.announced.pop() == (ChainTask(VALIDATE, 1), turn_id, "s")
    running = bench.slots.force_slot(RUN_QUEUE)
    bench.carry_out_one(ChainTask(VALIDATE, 1), turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, bench.announced) == (TurnState.QUEUED, [(ChainTask(RETRY, 2), turn_id, "s")])
    running.release_all()
    bench.carry_out_one(ChainTask(RETRY, 2), turn_id)
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.PASSED_AFTER_RETRY


async def test_slots_are_given_back_however_a_turn_ends(bench: Bench) -> None:
    for plays in [(says(NO_MARKER), says(GOOD)), (ends(Verdict.ERROR),), (says(NO_MARKER),) * 3]:
        turn_id = await bench.submit(*plays)
        bench.carry_out(turn_id)
        assert [bench.slots.count_free(queue) for queue in (RUN_QUEUE, CHECK_QUEUE)] == [4, 2]


async def test_a_process_that_ends_hands_over_instead_of_going_on(bench: Bench) -> None:
    def asked_to_end(order: Order, emit: Emit, stop: Stop) -> RunResult:
        bench.leases.stop_all("shutdown")
        return says(GOOD)(order, emit, stop)

    turn_id = await bench.submit(asked_to_end)
    bench.carry_out_one(ChainTask(RUN, 1), turn_id)
    assert [(link, turn) for link, turn, _ in bench.announced] == [(ChainTask(VALIDATE, 1), turn_id)]


async def test_the_delivery_before_the_last_strike_is_left_to_a_process_that_does_nothing_else(bench: Bench) -> None:
    bench.service.parts = replace(bench.service.parts, settings=replace(bench.settings, strikes=1))
    turn_id = await bench.submit(says(NO_MARKER), says(GOOD))
    bench.carry_out_one(ChainTask(RUN, 1), turn_id)
    assert bench.announced == [(ChainTask(VALIDATE, 1), turn_id, "s")]


async def test_a_cancel_that_comes_while_an_agent_runs_ends_the_turn_instead_of_the_next_link(bench: Bench) -> None:
    def cancelled_meanwhile(order: Order, emit: Emit, stop: Stop) -> RunResult:
        bench.ledger.cancel_turn(order.turn_id, "s")
        return says(NO_MARKER)(order, emit, stop)

    turn_id = await bench.submit(cancelled_meanwhile)
    bench.carry_out_one(ChainTask(RUN, 1), turn_id)
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.CANCELLED
    assert (len(bench.runner.orders), bench.announced) == (1, [])


async def test_each_link_in_place_is_told_as_the_child_of_the_one_before(bench: Bench) -> None:
    class Told:
        task_id = ""

        def __init__(self) -> None:
            self.said: list[str] = []

        def start_task(self, _words: str) -> None:
            self.said.append("started")

        def end_task(self, words: str, *, failed: bool = False) -> None:
            self.said.append("failed" if failed else "ended")

        def next_task_id(self, link: ChainTask | None) -> str:
            return f"task of {link}"

        def start_next(self, link: ChainTask) -> None:
            self.said.append(str(link))

    told = Told()
    turn_id = await bench.submit(says(NO_MARKER), says(GOOD))
    seat = bench.slots.force_slot(RUN_QUEUE)
    bench.loop.run_and_wait(bench.service.carry_out_task(ChainTask(RUN, 1), turn_id, "s", slot_hold=seat, report=told))
    seat.release_all()
    assert told.said == [
        *("started", "ended", str(ChainTask(VALIDATE, 1)), "started", "ended"),
        *(str(ChainTask(RETRY, 2)), "started", "ended", str(ChainTask(VALIDATE, 2)), "started", "ended"),
    ]
