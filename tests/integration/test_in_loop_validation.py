"""A run whose answer is judged in the loop is stored together with the verdict on it: nothing else changes."""

import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.events import Event
from api_client.contract.keys import Keys
from api_client.contract.session_paths import delivery_name
from api_client.contract.settings import Settings
from api_client.contract.tasks import VALIDATE, ChainTask
from api_client.contract.turn import Outcome, TurnState
from api_client.pauses.pause import Pause
from tests.accounts import disagreements
from tests.integration.test_engine import FIRST, GOOD, JUDGE, NO_MARKER, Bench, Play, says
from tests.records import counters
from tests.support import wait_until
from worker.enforcement.attempt import Attempt
from worker.enforcement.validator_process import MOST_CHARACTERS
from worker.files.workspace import read_answer_files
from worker.runners.base import Emit, Order, RunResult, Stop
from worker.turns import folders, publisher
from worker.turns.loops.threads import Threads
from worker.turns.validation_pool import ValidationCase

CHECKS = Pause(what="queue", name="check", reason="new rules", by="ops")
LONG = "x" * MOST_CHARACTERS + GOOD


@pytest.fixture
async def in_files(settings: Settings) -> AsyncIterator[Bench]:
    """A bench whose agents work in files."""
    async with TurnsClient(settings) as client:
        made = Bench(settings, client)
        yield made
        made.close()
        assert disagreements(settings) == {}


@pytest.fixture(params=[False, True], ids=["no folder", "folder"])
def bench(in_files: Bench, request: pytest.FixtureRequest) -> Bench:
    in_files.runner.needs_folder = request.param
    return in_files


def entries(settings: Settings, turn_id: str) -> list[list[str]]:
    """The kinds of the events that each command wrote."""
    with redis.Redis.from_url(settings.redis_url) as store:
        log = store.xrange(Keys(settings.namespace).log(turn_id))
    return [[event.kind for event in Event.decode_entry(fields[b"e"])] for _, fields in log]


async def test_a_run_and_the_verdict_on_its_answer_are_one_command(bench: Bench) -> None:
    turn = await bench.outcome(says(NO_MARKER), says(GOOD))
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    ended = [entry for entry in entries(bench.settings, turn.turn_id) if "attempt.completed" in entry]
    assert [entry[entry.index("attempt.completed") + 1 :] for entry in ended] == [
        ["attempt.rejected", "turn.retrying", "attempt.started"],
        ["attempt.accepted", "turn.finished"],
    ]


def in_session(name: str, text: str) -> Play:
    return lambda order, emit, stop: replace(says(text)(order, emit, stop), agent_session=name)


async def test_the_next_turn_goes_on_in_the_agent_session_of_the_accepted_answer(in_files: Bench) -> None:
    turn = await in_files.outcome(in_session("one", NO_MARKER), in_session("two", GOOD))
    status = json.loads((in_files.settings.sessions_dir / "s" / "status.json").read_text())
    assert (turn.outcome, status["agent_session"]) == (Outcome.PASSED_AFTER_RETRY, "two")


@pytest.mark.parametrize("text", [LONG, GOOD], ids=["too long for the loop", "no slot here"])
async def test_an_answer_that_is_judged_apart_is_stored_before(bench: Bench, text: str) -> None:
    turn_id = await bench.submit(says(text))
    if text is LONG:
        bench.carry_out(turn_id)
    else:
        bench.loop.run_and_wait(bench.service.carry_out_task(FIRST, turn_id, "s"))
        bench.carry_out(turn_id, JUDGE)
    assert "attempt.completed" in [entry[-1] for entry in entries(bench.settings, turn_id)]
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.PASSED


@pytest.mark.parametrize("text", [NO_MARKER, GOOD], ids=["to be rejected", "to be accepted"])
async def test_a_pause_of_judging_keeps_the_answer_and_judges_it_afterwards(bench: Bench, text: str) -> None:
    turn_id = await bench.submit(says(text), says(GOOD))
    await bench.client.pauses.set_pause(CHECKS)
    bench.carry_out(turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    [attempt] = await bench.client.reader.read_attempts(turn_id)
    assert (turn.state, turn.next, attempt.text, attempt.decision) == (TurnState.RAN, str(JUDGE), text, "")
    assert ["turn.paused"] in [entry[-1:] for entry in entries(bench.settings, turn_id)]
    await bench.client.pauses.end_pause("queue", "check", by="ops")
    await wait_until(lambda: bench.ledger.reap_turn(turn_id, may_take=True).what == "announce")
    bench.carry_out(turn_id, JUDGE)
    turn = await bench.client.reader.read_turn(turn_id)
    assert turn.outcome is (Outcome.PASSED if text is GOOD else Outcome.PASSED_AFTER_RETRY)
    assert len(bench.runner.orders) == turn.delivery == turn.attempt


async def test_the_time_of_judging_is_counted_and_the_runs_events_bear_the_time_of_its_end(bench: Bench) -> None:
    pool: Any = bench.service.parts.validation_pool
    judge = pool.validate_answer

    def slowly(case: ValidationCase) -> Attempt:
        time.sleep(0.03)
        return judge(case)

    pool.validate_answer = slowly
    turn = await bench.outcome(says(NO_MARKER), says(GOOD))
    events = await bench.client.reader.read_events(turn.turn_id)
    ended = {(event.kind, event.data["attempt"]): event.at_ms for event in events if "attempt" in event.data}
    took = [ended["attempt.rejected", 1] - ended["attempt.completed", 1]]
    took.append(ended["attempt.accepted", 2] - ended["attempt.completed", 2])
    assert min(took) >= 30
    assert [event.at_ms for event in events] == sorted(event.at_ms for event in events)
    with redis.Redis.from_url(bench.settings.redis_url) as store:
        assert counters(store, Keys(bench.settings.namespace))["time.validation.ms"] == sum(took)
    assert [round(each.finished_at * 1000) for each in await bench.client.reader.read_attempts(turn.turn_id)] == [
        ended["attempt.completed", number] for number in (1, 2)
    ]


async def test_an_answer_that_was_sealed_with_its_run_is_finished_by_the_next_holder(bench: Bench) -> None:
    """The one that judged it dies between the seal and the commit: its run is not stored yet."""
    commit = bench.on_loop.commit_transition

    async def dies(*_: object, **_more: object) -> None:
        raise OSError("killed")

    bench.on_loop.commit_transition = dies  # type: ignore[method-assign, assignment]
    turn_id = await bench.submit(says(GOOD))
    with pytest.raises(OSError, match="killed"):
        bench.carry_out_one(FIRST, turn_id)
    bench.on_loop.commit_transition = commit  # type: ignore[method-assign]
    with redis.Redis.from_url(bench.settings.redis_url) as store:
        keys = Keys(bench.settings.namespace)
        store.hset(keys.turn(turn_id), "lease_until", 1)
        store.zadd(keys.due, {turn_id: 1})
    reaped = bench.ledger.reap_turn(turn_id, may_take=True)
    assert (reaped.what, reaped.chain_task) == ("announce", str(ChainTask(VALIDATE, 1)))
    bench.carry_out(turn_id, JUDGE)
    turn = await bench.client.reader.read_turn(turn_id)
    [attempt] = await bench.client.reader.read_attempts(turn_id)
    assert (turn.outcome, turn.response, turn.delivery) == (Outcome.PASSED, GOOD, 1)
    assert (attempt.text, attempt.decision, attempt.completion["verdict"]) == (GOOD, "accept", "complete")
    assert len(bench.runner.orders) == 1, "nobody pays twice"


async def test_a_machine_that_gets_sick_while_it_publishes_leaves_the_judging_to_another_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sick(*_: object) -> None:
        bench.trouble = "no space left"
        raise OSError("no space left")

    turn_id = await bench.submit(says(GOOD))
    with monkeypatch.context() as sickly:
        sickly.setattr(publisher, "publish_answer", sick)
        bench.carry_out_one(FIRST, turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, turn.next, bench.announced) == (TurnState.RAN, str(JUDGE), [(JUDGE, turn_id, "s")])
    bench.trouble = ""
    bench.host.probe_now()
    bench.carry_out(*reversed(bench.announced.pop()[:2]))
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.PASSED
    assert len(bench.runner.orders) == 1


def writes(name: str, content: str, answer: str = GOOD) -> Play:
    """An agent that writes a file of its answer."""

    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        (order.directory / "output" / name).write_text(content)
        return says(answer)(order, emit, stop)

    return play


@pytest.mark.parametrize("validators", [("step_marker",), ("step_marker", "file_existence")], ids=["loop", "child"])
async def test_files_of_an_answer_are_judged_and_published_with_it(
    in_files: Bench, validators: tuple[str, ...]
) -> None:
    """A text that could make a rule look at the file system is not judged in the loop."""
    note = "# Notiz zu ADR-001: files\n"
    turn = await in_files.outcome(writes("ADR-001-a.md", note, NO_MARKER), says(GOOD), validators=validators)
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    at_once = all(entry[-1] != "attempt.completed" for entry in entries(in_files.settings, turn.turn_id))
    assert at_once == (len(validators) == 1)
    output = in_files.settings.sessions_dir / "s" / "output"
    published = {path.name: path.read_text() for path in output.glob("*.md")}
    assert published == {"ADR-001-a.md": note, "response.md": GOOD}


async def test_a_turn_with_a_folder_hands_five_things_to_threads_and_lists_each_delivery_once(
    in_files: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed, listed, hand = list[str](), list[str](), Threads.do_file_work

    async def counted(threads: Threads, work: Callable[..., object], *rest: object) -> object:
        handed.append(work.__name__)
        return await hand(threads, work, *rest)

    monkeypatch.setattr(Threads, "do_file_work", counted)
    monkeypatch.setattr(
        folders, "read_answer_files", lambda path: listed.append(Path(path).name) or read_answer_files(path)
    )
    turn = await in_files.outcome(says(NO_MARKER), says(GOOD))
    assert handed == ["_prepare_run", "collect_answer_files", "_prepare_run", "collect_answer_files", "_write_files"]
    assert listed == [delivery_name(turn.turn_id, 1, 1), delivery_name(turn.turn_id, 2, 2)]


async def test_what_was_recorded_of_a_run_goes_with_the_next_run_or_with_the_answer(in_files: Bench) -> None:
    left = []

    def recorded(text: str) -> Play:
        def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
            left.append(recordings(in_files))
            order.directory.with_name(f"{order.directory.name}.finished").write_text("{}")
            return says(text)(order, emit, stop)

        return play

    in_files.runner.adopt = lambda _order: None  # type: ignore[attr-defined]
    turn = await in_files.outcome(recorded(NO_MARKER), recorded(NO_MARKER), recorded(GOOD))
    assert turn.outcome is Outcome.PASSED_AFTER_RETRY
    assert (left, recordings(in_files)) == ([[], [], []], [])
    await in_files.outcome(*[recorded(NO_MARKER)] * 3)
    assert recordings(in_files) == [], "a turn that ends in another way leaves none either"


def recordings(bench: Bench) -> list[str]:
    attempts = bench.settings.sessions_dir / "s" / "attempts"
    return [path.name for path in attempts.iterdir() if not path.is_dir()]
