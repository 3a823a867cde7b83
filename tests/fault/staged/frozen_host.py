"""Whole hosts frozen by SIGSTOP, as a pause of a virtual machine or a closed lid does: what nobody took goes on.

A host is a worker with all its processes: supervisor, engine, guard, proxies, agents. In a round all hosts are frozen,
or all and the store, or one of two. Half of the agents end in the moment of waking, the others later.
"""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome
from tests.fault.matrix import Stage
from tests.fault.staged import Seen
from tests.installation import asked, children_of
from tests.support import json_lines, wait_until
from worker.runners.sandbox.process_tags import is_stopped, process_tags

#: In seconds. A lease is over 4.5 s after the last beat by its holder's clock, and 6 s after it by the store's.
_LENGTHS = (1.0, 2.0, 3.0, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 8.0, 9.0, 10.0, 12.0, 15.0, 20.0, 30.0, 45.0, 60.0)
_ALONE, _WITH_STORE, _ANOTHER = "alone", "with the store", "another host goes on"
_SHORT = ((7.0, _ALONE), (11.0, _WITH_STORE), (9.0, _ANOTHER))
_LONG = tuple(itertools.product(_LENGTHS, (_ALONE, _WITH_STORE, _ANOTHER)))
#: What a worker that was frozen with its supervisor must not say of itself.
_BLAMES = {"lease.loop_stuck", "process.stale", "process.unanswering"}
#: Turns that a host holds; and for so long after a host woke up a turn may have two agents that run, in seconds.
_TURNS, _AT_ONCE = 4, 3.0
_SCRIPT = "".join(
    f"""
- when: "{word}"
  attempts:
    - - say: "Ich fange an ... "
      - wait_for: {{meet}}/{word}
      - say: "und bin fertig.\\n\\n<!-- STEP: done -->"
"""
    for word in ("soon", "later")
)


@dataclass(slots=True)
class _Round:
    wrong: int = 0
    again: int = 0


def stage(long: bool) -> Seen:
    """Freeze hosts; wrong is a turn that did not pass, a run started again though nobody took it, or two at once."""
    with tempfile.TemporaryDirectory() as folder:
        made = Stage(Path(folder), _SCRIPT, lease_seconds=6.0, run_slots=_TURNS)
        with made:
            made.start(2)
            seen = asyncio.run(_frozen(made, _LONG if long else _SHORT))
        said = [line.get("event") for worker in made.workers for line in json_lines(worker.log_file)]
    return replace(seen, wrong=seen.wrong + sum(event in _BLAMES for event in said))


async def _frozen(made: Stage, rounds: Sequence[tuple[float, str]]) -> Seen:
    async with TurnsClient(made.settings) as client:
        seen = [await _round(made, client, number, *each) for number, each in enumerate(rounds)]
    tried = sum(_TURNS * (1 if how == _ANOTHER else 2) for _, how in rounds)
    beside = f"{len(rounds)} freezes; {sum(each.again for each in seen)} taken by another host"
    return Seen(tried, "turns whose host was frozen", sum(each.wrong for each in seen), beside)


async def _round(made: Stage, client: TurnsClient, number: int, seconds: float, how: str) -> _Round:
    """Fill both hosts, freeze, let half of the agents end as they wake up, then the others."""
    for word in ("soon", "later"):
        (made.meet / word).unlink(missing_ok=True)
    orders = [asked(("soon", "later")[each % 2], f"round-{number}-{each}") for each in range(2 * _TURNS)]
    ids = [await client.submitter.submit(order) for order in orders]
    await wait_until(lambda: all(_runs(made, turn_id)["start"] for turn_id in ids))
    hosts = made.workers[:1] if how == _ANOTHER else made.workers
    held = [
        turn_id for turn_id in ids if any([h.named((await client.reader.read_turn(turn_id)).worker) for h in hosts])
    ]
    frozen = [pid for host in hosts for pid in _tree(host.pid)]
    frozen += [made.broker.pid] if how == _WITH_STORE else []
    _signal(frozen, signal.SIGSTOP)
    over = time.monotonic() + seconds
    (made.meet / "soon").touch()
    await wait_until(lambda: time.monotonic() >= over)
    random.Random(number).shuffle(frozen)
    _signal(frozen, signal.SIGCONT)
    at_once = await asyncio.to_thread(_two_at_once, set(held))
    (made.meet / "later").touch()
    found = _Round(wrong=len(at_once))
    for turn_id in ids:
        turn, runs = await client.reader.await_result(turn_id, timeout=120), _runs(made, turn_id)
        taken = turn_id in held and how == _ANOTHER and runs["start"] > 1
        found.again += taken
        found.wrong += turn.outcome is not Outcome.PASSED or runs["start"] > 1 + taken
    return found


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # such as a probe of the machine
            os.kill(pid, number)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for child in children_of(pid):
        yield from _tree(child)


def _two_at_once(turn_ids: set[str]) -> set[str]:
    """The turns of which two agents run for longer than it takes a host that woke up to look."""
    until, found = time.monotonic() + _AT_ONCE, set(turn_ids)
    while found and time.monotonic() < until:
        time.sleep(0.1)
        running = {mark for pid, mark in process_tags() if mark and not is_stopped(pid)}
        count = Counter(mark.partition(".")[0] for mark in running)
        found = {turn_id for turn_id in found if count[turn_id] > 1}
    return found


def _runs(made: Stage, turn_id: str) -> Counter[str]:
    """How many runs of a turn were started, and ended by themselves."""
    return Counter(line["event"] for line in json_lines(made.action_log) if line["turn"] == turn_id)
