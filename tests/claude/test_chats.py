"""Chats with the real CLI whose processes are killed: ``make chaos-claude``, for half a minute, and its judge."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.claude.chats import Answered, House, Judge, Judgement, Kill, Plan, Service, carry_out, strike
from tests.support import command_of, wait_for
from worker.runners.sandbox.proxy_client import ProxyProcess

_HEARD = [
    '{"type": "user", "message": {"content": "Message c0m1"}}',
    '{"type": "assistant", "message": {"content": "A"}}',
]
_SAID = ['user "Message CHATm1"', 'assistant "A"']
_START = {"completion": {"evidence": {"start": "warm"}}}


@pytest.mark.timeout(300)
def test_chats_whose_processes_are_killed_lose_nothing_and_are_told_as_those_of_one_process_a_message(
    program: Path, tmp_path: Path
) -> None:
    judgement = carry_out(tmp_path, program.resolve(), Plan(chats=16, every=8.0))
    assert judgement.good, judgement.table()
    assert judgement.counts["messages"] == 80
    assert sum(count for name, count in judgement.counts.items() if name.startswith("killed ")) >= 5, judgement.table()
    assert judgement.counts["attempts warm"] >= 20, judgement.table()


def _judged(
    outcome: str = "passed",
    response: str = "Answer c0m1.",
    served: tuple[float, ...] = (10.0,),
    kills: tuple[float, ...] = (),
    heard: tuple[str, ...] = tuple(_HEARD),
    lost: tuple[str, ...] = (),
    foreign: tuple[str, ...] = (),
) -> Judgement:
    service = Service()
    service.served_at["c0m1", "whole"] = list(served)
    service.foreign = list(foreign)
    turn = {"turn_id": "t", "session_id": "s", "outcome": outcome, "response": response}
    answered = {"c0": [Answered("c0m1", turn, [_START])]}
    killed = [Kill(at, "agent", frozenset({"t"})) for at in kills]
    judge = Judge(answered, list(lost), killed, service, {"s": list(heard)}, messages=1)
    return judge.judge({"ppppp": _SAID})


def test_a_good_chat_has_no_faults() -> None:
    assert _judged().good
    assert _judged().counts["transcripts compared"] == 1


@pytest.mark.parametrize(
    ("fault", "judged"),
    [
        ("lost", lambda: _judged(lost=("c0m1",))),
        ("not passed", lambda: _judged(outcome="error")),
        ("doubled", lambda: _judged(response="Answer c0m1. Answer c0m1.")),
        ("text of another", lambda: _judged(response="Answer c1m1.")),
        ("text of another", lambda: _judged(response="")),
        ("text of another", lambda: _judged(foreign=("c1m1 in c0m1",))),
        ("paid twice", lambda: _judged(served=(10.0, 11.0))),
        ("paid twice", lambda: _judged(served=(10.0, 12.0), kills=(11.0,))),
        ("conversation differs", lambda: _judged(heard=())),
        ("transcript differs", lambda: _judged(heard=(*_HEARD, _HEARD[1]))),
    ],
)
def test_each_fault_is_found(fault: str, judged: Callable[[], Any]) -> None:
    judgement = judged()
    assert judgement.faults[fault]
    assert not judgement.good


def test_an_answer_whose_process_was_killed_as_it_ended_may_be_asked_for_again() -> None:
    judgement = _judged(served=(10.0, 12.0), kills=(10.2,))
    assert judgement.good
    assert judgement.counts["paid again, killed within 0.5 s of the answer"] == 1


def test_who_kills_a_door_meets_the_agents_of_its_worker_process() -> None:
    proxy, below = ProxyProcess(), []
    house = SimpleNamespace(
        roles={"proxy": 1},
        victims=lambda *_: [proxy.pid],
        below=lambda victim: below.append(victim) or set(),
        kill=lambda victim: os.kill(victim, signal.SIGKILL),
    )
    try:
        wait_for(lambda: command_of(proxy.pid).endswith(f"\0{os.getpid()}\0".encode()))
        assert strike(cast("House", house), Path("claude"), random.Random(1))
    finally:
        proxy.close()
    assert below == [os.getpid()]


def test_on_a_busy_machine_it_may_be_asked_for_again_as_long_as_other_turns_take_to_end() -> None:
    service, heard = Service(), {"outcome": "passed", "session_id": "s"}
    service.served_at["c0m1", "whole"], service.served_at["c1m1", "whole"] = [10.0, 14.0], [10.0]
    turns = {word: heard | {"turn_id": word, "response": f"Answer {word}."} for word in ("c0m1", "c1m1")}
    for calm_took, paid_twice in ((0.3, ["c0m1, agent killed +1.0 s after the answer"]), (1.5, [])):
        ends = {"c0m1": 15.0, "c1m1": 10.0 + calm_took}
        answered = {word[:2]: [Answered(word, turn, [_START], ends[word])] for word, turn in turns.items()}
        judge = Judge(answered, [], [Kill(11.0, "agent", frozenset({"c0m1"}))], service, {}, messages=2)
        assert judge.judge({}).faults["paid twice"] == paid_twice


def test_a_call_of_a_tool_ends_no_run_and_may_be_made_again() -> None:
    asked = "c2m2"
    service = Service()
    service.served_at[asked, "call"] = [10.0, 15.0]
    service.served_at[asked, "whole"] = [16.0]
    turn = {"turn_id": "t", "session_id": "s", "outcome": "passed", "response": f"Answer {asked}."}
    answered = {"c2": [Answered(asked, turn, [_START])]}
    judge = Judge(answered, [], [Kill(13.0, "agent", frozenset({"t"}))], service, {}, messages=1)
    assert not judge.judge({}).faults["paid twice"]
