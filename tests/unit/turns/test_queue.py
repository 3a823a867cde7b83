"""An announcement that still waits in its queue is not made again, and one that was lost is."""

from collections import deque
from typing import Any
from uuid import UUID

import pytest

from api_client.contract.completion import Completion, ErrorKind, Verdict
from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.settings import Settings
from api_client.contract.tasks import (
    CHECK_QUEUE,
    FAIL,
    PREFERRED_QUEUE,
    RETRY,
    RUN,
    RUN_QUEUE,
    VALIDATE,
    ChainTask,
    build_chain,
    own_queue,
)
from api_client.contract.turn import Outcome, PendingFailure, Turn, TurnRequest, TurnState
from api_client.turns.record.announcements import AnnouncedTurn, QueueHead, find_announcement, next_check_at
from api_client.turns.record.changes import TurnCommands
from api_client.turns.record.claim import LeaseClaim, LostCommands
from api_client.turns.record.store_command import Command
from api_client.turns.record.transition import Transition
from worker.celery.task_events import Task, TaskEventBuffer, TaskEventReport
from worker.runners.base import RunResult
from worker.turns.next_queue import PREFERRED_IN_A_ROW, NextQueue
from worker.turns.slots import Slots
from worker.turns.transitions.after_run import after_run
from worker.turns.transitions.backoff import Delays, delay_after

NOW, DELAY = 1_000_000, 5_000
UNCLAIMED = {"state": "queued", "next": "turn.run/1", "announced": "1"}


def turn(at: int, **more: int) -> AnnouncedTurn:
    return AnnouncedTurn(**{"turn_id": "t", "score": 0.0, "at": at, "queue": RUN_QUEUE, "deadline_at": 0, **more})  # type: ignore[arg-type]


def test_while_the_queues_head_was_announced_earlier_nothing_is_announced() -> None:
    later = next_check_at(turn(NOW - 10_000), QueueHead(NOW - 60_000), NOW, DELAY)
    assert later == NOW + 50_000, "when its message gets to the head, if the queue goes on as it does"


def test_the_head_itself_is_not_announced_again() -> None:
    assert next_check_at(turn(NOW - 10_000), QueueHead(NOW - 10_000), NOW, DELAY) == NOW + DELAY


@pytest.mark.parametrize("head", [None, QueueHead(NOW - 9_999)])
def test_a_message_that_is_not_there_any_more_is_announced_again(head: QueueHead | None) -> None:
    assert next_check_at(turn(NOW - 10_000), head, NOW, DELAY) is None


def test_behind_a_message_that_is_worth_nothing_it_is_looked_at_soon_again() -> None:
    assert next_check_at(turn(NOW - 10_000), QueueHead(None), NOW, DELAY) == NOW + DELAY


def test_it_is_looked_at_again_before_its_deadline_and_within_a_bounded_time() -> None:
    waiting = turn(NOW, deadline_at=NOW + 7_000)
    assert next_check_at(waiting, QueueHead(NOW - 60_000), NOW, DELAY) == NOW + 7_000
    assert next_check_at(turn(NOW), QueueHead(0), NOW, DELAY) == NOW + 64 * DELAY
    assert next_check_at(turn(NOW - 1, deadline_at=NOW - 1), QueueHead(0), NOW, DELAY) is None, "it has expired"


def test_after_the_clock_was_set_back_it_is_announced() -> None:
    assert next_check_at(turn(NOW + 3_600_000), QueueHead(NOW - 60_000), NOW, DELAY) is None


@pytest.mark.parametrize(("times", "delays"), [("1", 1), ("2", 2), ("4", 8), ("20", 64)])
def test_when_it_was_announced_follows_from_when_it_is_due(times: str, delays: int) -> None:
    found = find_announcement("t", float(NOW), UNCLAIMED | {"announced": times}, DELAY)
    assert found is not None
    assert found.at == NOW - delays * DELAY


@pytest.mark.parametrize("put_off", [False, True], ids=["", "put off"])
@pytest.mark.parametrize(("delivery", "queue"), [("", RUN_QUEUE), ("1", PREFERRED_QUEUE)])
def test_what_was_at_work_before_is_in_the_preferred_queue(delivery: str, queue: str, put_off: bool) -> None:
    noted = {"announced": "0", "announced_at": str(NOW - DELAY)} if put_off else {}
    found = find_announcement("t", float(NOW), UNCLAIMED | noted | {"delivery": delivery}, DELAY)
    assert found is not None
    assert found.queue == queue


def test_one_that_was_put_off_remembers_when_it_was_announced() -> None:
    found = find_announcement("t", float(NOW), UNCLAIMED | {"announced": "0", "announced_at": "7"}, DELAY)
    assert found is not None
    assert (found.at, found.queue) == (7, RUN_QUEUE)
    judged = find_announcement("t", float(NOW), {"state": "ran", "next": "turn.validate/1"}, DELAY)
    assert judged is not None
    assert judged.queue == CHECK_QUEUE


@pytest.mark.parametrize(
    "other",
    [
        {"token": "somebody"},
        {"state": "suspended"},
        {"state": "finished", "next": ""},
        {"not_before": str(NOW - 1)},
        {"double_text": "interrupt"},
        {"next": "no link"},
    ],
)
def test_what_is_held_suspended_delayed_or_interrupts_is_left_to_the_reaper(other: dict[str, str]) -> None:
    assert find_announcement("t", float(NOW), UNCLAIMED | other, DELAY) is None


# Which turn comes next: one that has waited before, but only so often in a row while others wait.

QUEUES = (RUN_QUEUE, PREFERRED_QUEUE)


def taken(waiting: dict[str, int], count: int) -> list[str]:
    """From which queues a worker takes its next messages, where so many wait in each."""
    which, left = NextQueue(), {queue: deque(range(waiting.get(queue, 0))) for queue in QUEUES}
    found: list[str] = []
    while len(found) < count:
        order = which.order_queues(QUEUES)
        queue = next(queue for queue in order if left[queue])
        left[queue].pop()
        which.note_taken(queue)
        found.append(queue)
    return found


def test_what_has_waited_before_goes_first() -> None:
    assert taken({RUN_QUEUE: 500, PREFERRED_QUEUE: 2}, 4) == [PREFERRED_QUEUE] * 2 + [RUN_QUEUE] * 2


def test_it_gets_three_of_four_places_while_others_wait() -> None:
    found = taken({RUN_QUEUE: 100, PREFERRED_QUEUE: 100}, 40)
    assert found[:4] == [PREFERRED_QUEUE] * 3 + [RUN_QUEUE]
    assert found.count(PREFERRED_QUEUE) == 30
    assert PREFERRED_IN_A_ROW == 3


def test_it_gets_every_place_while_nobody_else_waits() -> None:
    assert taken({PREFERRED_QUEUE: 20}, 20) == [PREFERRED_QUEUE] * 20


def test_a_worker_that_judges_asks_its_one_queue() -> None:
    assert NextQueue().order_queues([CHECK_QUEUE]) == [CHECK_QUEUE]


def test_preferred_turns_take_the_slots_of_the_other_runs() -> None:
    slots = Slots({RUN_QUEUE: 1, CHECK_QUEUE: 1})
    assert slots.order_queues([RUN_QUEUE, PREFERRED_QUEUE, CHECK_QUEUE]) == [CHECK_QUEUE, PREFERRED_QUEUE, RUN_QUEUE]
    for _ in range(PREFERRED_IN_A_ROW):
        slots.took(PREFERRED_QUEUE)
    assert slots.order_queues([PREFERRED_QUEUE, RUN_QUEUE]) == [RUN_QUEUE, PREFERRED_QUEUE]
    slots.force_slot(RUN_QUEUE)
    assert slots.order_queues([RUN_QUEUE, PREFERRED_QUEUE, CHECK_QUEUE]) == [CHECK_QUEUE]


def test_answers_are_asked_for_alone_once_no_slot_for_agents_was_free_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots, now = Slots({RUN_QUEUE: 1, CHECK_QUEUE: 1}), 100.0
    monkeypatch.setattr("worker.turns.slots.time.monotonic", lambda: now)
    seat = slots.force_slot(RUN_QUEUE)
    assert slots.queues_to_poll([RUN_QUEUE, CHECK_QUEUE]) == []
    assert slots.queues_to_poll([CHECK_QUEUE]) == [CHECK_QUEUE], "a worker that only judges"
    now += 0.3
    assert slots.queues_to_poll([RUN_QUEUE, CHECK_QUEUE]) == [CHECK_QUEUE]
    seat.release_all()
    assert slots.queues_to_poll([RUN_QUEUE, CHECK_QUEUE]) == [CHECK_QUEUE, RUN_QUEUE]
    slots.force_slot(RUN_QUEUE)
    assert slots.queues_to_poll([RUN_QUEUE, CHECK_QUEUE]) == [], "the moment begins anew"


def test_what_its_own_queue_has_comes_first_and_counts_as_no_preferred_turn() -> None:
    which, own = NextQueue(), own_queue("w@h")
    for order in ([PREFERRED_QUEUE, RUN_QUEUE], [PREFERRED_QUEUE, RUN_QUEUE], [RUN_QUEUE, PREFERRED_QUEUE]):
        assert which.order_queues([*QUEUES, own]) == [own, *order]
        which.note_taken(own)
        assert which.order_queues(QUEUES) == order
        which.note_taken(PREFERRED_QUEUE)
        which.note_taken(PREFERRED_QUEUE) if order[0] == PREFERRED_QUEUE else None
    slots = Slots({RUN_QUEUE: 1, CHECK_QUEUE: 1})
    assert slots.order_queues([RUN_QUEUE, own]) == [own, RUN_QUEUE]
    slots.force_slot(RUN_QUEUE)
    assert slots.order_queues([RUN_QUEUE, own]) == []


def test_a_run_of_a_kept_agent_is_announced_to_its_keeper_and_judged_by_anybody() -> None:
    first, second = build_chain(ChainTask(RUN, 1), "t", "s", preferred=True, worker="w@h")
    assert (first["queue"], second["queue"]) == ("helix.run.own.w@h", CHECK_QUEUE)


def test_retries_and_what_a_reaper_announces_are_preferred_and_first_runs_are_not() -> None:
    def queues(link: ChainTask, *, preferred: bool = False) -> list[str]:
        return [item["queue"] for item in build_chain(link, "t", "s", preferred=preferred)]

    assert queues(ChainTask(RUN, 1)) == [RUN_QUEUE, CHECK_QUEUE]
    assert queues(ChainTask(RUN, 1), preferred=True) == [PREFERRED_QUEUE, CHECK_QUEUE]
    assert queues(ChainTask(RETRY, 2)) == [PREFERRED_QUEUE, CHECK_QUEUE]
    assert queues(ChainTask(VALIDATE, 1), preferred=True) == [CHECK_QUEUE]


# How many turns one process works on, and when it takes no more messages.

BOTH = (RUN_QUEUE, CHECK_QUEUE)


def slots(run: int = 2, check: int = 1) -> tuple[Slots, list[str]]:
    woken: list[str] = []
    return Slots({RUN_QUEUE: run, CHECK_QUEUE: check}, lambda: woken.append("woken")), woken


def test_messages_are_taken_from_queues_with_a_free_slot_alone() -> None:
    made, _ = slots(run=1)
    assert made.order_queues(BOTH) == [CHECK_QUEUE, RUN_QUEUE]
    seat = made.force_slot(RUN_QUEUE)
    assert made.order_queues(BOTH) == [CHECK_QUEUE]
    seat.release_all()
    assert made.order_queues(BOTH) == [CHECK_QUEUE, RUN_QUEUE]


def test_the_receiver_is_woken_only_when_a_full_queue_has_a_slot_again() -> None:
    made, woken = slots(run=2)
    seats = [made.force_slot(RUN_QUEUE), made.force_slot(RUN_QUEUE)]
    seats[0].release_all()
    assert woken == ["woken"]
    seats[1].release_all()
    assert woken == ["woken"]


def test_slots_that_are_taken_away_stay_taken_until_their_turns_end_and_new_ones_wake_the_receiver() -> None:
    made, woken = slots(run=2)
    seats = [made.force_slot(RUN_QUEUE), made.force_slot(RUN_QUEUE)]
    made.set_limit(RUN_QUEUE, 1)
    seats[0].release_all()
    assert (made.count_slots(RUN_QUEUE), made.count_free(RUN_QUEUE)) == (1, 0)
    woken.clear()
    made.set_limit(RUN_QUEUE, 2)
    assert (made.count_free(RUN_QUEUE), woken) == (1, ["woken"])


def test_a_message_that_came_too_late_to_be_left_alone_has_a_seat_beyond_the_limit() -> None:
    made, woken = slots(run=1)
    seats = [made.force_slot(RUN_QUEUE), made.force_slot(RUN_QUEUE)]
    seats[0].release_all()
    assert made.count_free(RUN_QUEUE) == 0
    seats[1].release_all()
    assert (made.count_free(RUN_QUEUE), woken) == (1, ["woken", "woken"])


def test_a_turn_that_is_judged_in_place_keeps_its_slot_to_run_again_and_takes_none_from_other_answers() -> None:
    made, _ = slots(run=1, check=1)
    seat = made.force_slot(RUN_QUEUE)
    assert seat.acquire_slot(CHECK_QUEUE)
    seat.keep_needed(CHECK_QUEUE)
    assert made.order_queues(BOTH) == [CHECK_QUEUE]
    assert seat.acquire_slot(RUN_QUEUE)
    seat.keep_needed(RUN_QUEUE)
    assert made.order_queues(BOTH) == [CHECK_QUEUE]


def test_a_turn_that_was_judged_does_not_run_again_in_place_where_no_slot_is_free_for_it() -> None:
    made, _ = slots(run=1)
    running = made.force_slot(RUN_QUEUE)
    assert not made.force_slot(CHECK_QUEUE).acquire_slot(RUN_QUEUE)
    running.release_all()


def test_a_turn_that_was_taken_to_be_judged_gives_that_slot_back_when_it_runs_again() -> None:
    made, _ = slots(run=1, check=1)
    seat = made.force_slot(CHECK_QUEUE)
    assert seat.acquire_slot(RUN_QUEUE)
    seat.keep_needed(RUN_QUEUE)
    assert made.order_queues(BOTH) == [CHECK_QUEUE]
    seat.release_all()
    assert made.order_queues(BOTH) == [CHECK_QUEUE, RUN_QUEUE]


# What a worker sends again when a store has forgotten commands that it had answered.


class ForgetfulStore:
    """Takes a claim's commands in order only, as ``turn.lua`` does; ``known`` says how many it has.

    It answers no more than twenty: a holder that asks for ever is seen at once.
    """

    def __init__(self) -> None:
        self.known = 0
        self.commands: list[Command[Any]] = []
        self.answered = 0

    def carry_out(self, exchange: Any) -> None:
        said: Any = None
        while self.answered < 20:
            try:
                command = exchange.send(said)
            except StopIteration:
                return
            said = self._said(command)
        raise AssertionError("the holder asks again and again")

    def _said(self, command: Command[Any]) -> LostCommands | None:
        self.answered += 1
        if command not in self.commands:
            self.commands.append(command)
        number = self.commands.index(command)
        if number > self.known:
            return LostCommands(self.known)
        self.known = max(self.known, number + 1)
        return None


def test_a_holder_sends_again_what_the_store_forgot_and_then_goes_on() -> None:
    request = TurnRequest(model="scripted", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(turn_id="turn-" + "a" * 32, epoch="e", state=TurnState.RUNNING, request=request)
    claim = LeaseClaim(turn, ChainTask(RUN, 1), "token", 0.0, 60.0)
    changes, store = TurnCommands(Settings(), "w"), ForgetfulStore()
    for text in ("one", "two", "three"):
        store.carry_out(changes.append_events(claim, [AttemptOutput(attempt=1, text=text)]))
    assert (store.known, store.answered) == (3, 3)
    store.known = 1
    store.carry_out(changes.append_events(claim, [AttemptOutput(attempt=1, text="four")]))
    assert (store.known, store.answered) == (4, 3 + 4), "four, which it is not ready for; two, three, four"


# How long a turn waits after a passing error: as the service asks, else longer each time, within the deadline.

DELAYS = Delays(first=1.0, left=3600.0)


def passing(*, busy: bool = False, retry_after: float = 0.0) -> Completion:
    return Completion(verdict=Verdict.ERROR, kind=ErrorKind.TRANSIENT, reason="429", busy=busy, retry_after=retry_after)


def waits(completion: Completion, delays: Delays = DELAYS) -> list[float | None]:
    return [delay_after(completion, number, delays) for number in range(6)]


def test_other_passing_errors_are_tried_again_soon() -> None:
    assert waits(passing()) == [1, 2, 4, 8, 16, 32]


def test_a_wait_the_service_asks_for_is_kept() -> None:
    assert waits(passing(retry_after=7)) == [7] * 6


def test_of_a_service_that_limits_us_the_store_holds_back_all_turns() -> None:
    assert waits(passing(busy=True)) == waits(passing(busy=True, retry_after=90)) == [0] * 6


def test_a_lost_session_is_begun_anew_at_once() -> None:
    lost = Completion(verdict=Verdict.ERROR, kind=ErrorKind.SESSION_LOST, reason="gone")
    assert waits(lost) == [0] * 6


def moved(completion: Completion, left: float, transients: int = 0) -> Transition:
    request = TurnRequest(model="m", messages=({"role": "user", "content": "x"},), session_id="s")
    turn = Turn(
        turn_id="turn-1", epoch="e", state=TurnState.RUNNING, request=request, delivery=1, transients=transients
    )
    return after_run(
        turn,
        ChainTask(RUN, 1),
        RunResult(completion=completion),
        prompt="x",
        transient_retries=4,
        delays=Delays(first=1.0, left=left),
    )


def test_that_a_service_limits_us_burns_no_retry_however_often_it_says_so() -> None:
    transition = moved(passing(busy=True, retry_after=7), 3600.0, transients=4)
    assert (transition.next, transition.delay_ms, transition.fields.values["transients"]) == (ChainTask(RUN, 1), 0, 4)
    assert (transition.service, transition.service_reason, transition.service_wait_ms) == ("limited", "429", 7000)
    assert moved(passing(), 3600.0, transients=4).next == ChainTask(FAIL, 1), "another passing error does"


def test_a_wait_beyond_the_deadline_ends_the_turn_at_once_and_says_so() -> None:
    transition = moved(passing(busy=True, retry_after=18_000), 3000.0)
    assert (transition.next, transition.delay_ms) == (ChainTask(FAIL, 1), 0)
    reason = "429; the service asks to wait 18000 s, and the turn has 3000 s left"
    assert transition.fields.values["failing"] == PendingFailure(outcome=Outcome.ERROR, code="transient", reason=reason)


# A task and those that follow it in place: their ids, as Flower joins them to a chain.

_NAMED = {"task": VALIDATE, "options": {"task_id": "named-by-the-chain"}}


def story() -> TaskEventReport:
    task = Task(name=RUN, task_id="first", kwargs={"turn_id": "turn-1", "attempt": 1}, chain=[_NAMED])
    return TaskEventReport(TaskEventBuffer(lambda: None), task)


def test_the_id_of_the_next_task_is_the_chains_own_where_that_names_one() -> None:
    told = story()
    assert told.next_task_id(ChainTask(VALIDATE, 1)) == "named-by-the-chain"
    told.start_next(ChainTask(VALIDATE, 1))
    assert (told.task_id, told.task.root_id, told.task.parent_id) == ("named-by-the-chain", "first", "first")


def test_the_id_of_the_next_task_stays_the_same_until_that_is_begun() -> None:
    told = story()
    foreseen = told.next_task_id(ChainTask(RETRY, 2))
    assert told.next_task_id(ChainTask(RETRY, 2)) == foreseen == str(UUID(foreseen))
    told.start_next(ChainTask(RETRY, 2))
    assert told.task_id == foreseen


def test_each_task_that_follows_has_another_id() -> None:
    told, seen = story(), {"first"}
    for link in (ChainTask(RETRY, 2), ChainTask(VALIDATE, 2), ChainTask(RETRY, 3), ChainTask(VALIDATE, 3)):
        told.start_next(link)
        seen.add(told.task_id)
    assert len(seen) == 5
