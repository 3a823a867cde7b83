"""How cost grows with size: ``python -m tests.lab.bench.growth [--quick] [--only NAME] [--plots FOLDER]``.

One store for each curve and no worker: this process submits, claims and ends turns, and counts what the server
executes, sends and keeps. Counts and bytes do not depend on how busy the machine is; the times of searches (ms) do.
Prints a table and draws a plot of each curve. Ends with code 1 if a figure grows faster than its size.
"""

import argparse
import asyncio
import json
import logging
import math
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import redis
import structlog

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, RUN_QUEUE, ChainTask
from api_client.contract.turn import Outcome, TurnRequest, new_turn_id
from api_client.index.search import Search
from api_client.index.text_indexer import TextIndexer
from api_client.turns.record.backlog import _parse_turn_id
from api_client.turns.record.claim import LeaseClaim
from api_client.turns.record.transition import Answer, Transition, attempt_facts
from api_client.workers.installation_state import LOOK_AT_MOST
from tests.lab.bench.plots import IMAGES, Line, plot
from tests.on_loop import Ledger
from worker.cli.checks.workers import LOOK_AT_MOST as DOCTOR_LOOKS_AT
from worker.processes.embedded_broker import EmbeddedBroker

#: Highest power of the size with which a figure may grow between two sizes: a little above a straight line.
STEEPEST = 1.15
_DOCS = Path(__file__).parents[3] / "docs"
_FIRST = ChainTask(RUN, 1)
_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Curve:
    """Figures of one kind of size: figure -> its value at each size."""

    title: str
    across: str
    figures: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def note(self, size: float, **figures: float) -> None:
        for name, value in figures.items():
            self.figures.setdefault(name.replace("_", " "), []).append((size, max(value, 1.0)))

    def steepness(self, name: str) -> float:
        """Return the power of the size with which a figure grew at the end: 0 is flat, 1 a straight line."""
        (x1, y1), (x2, y2) = self.figures[name][-2:]
        return math.log(y2 / y1) / math.log(x2 / x1)

    def rows(self) -> list[str]:
        sizes = [size for size, _ in next(iter(self.figures.values()))]
        head = f"| {self.across} | " + " | ".join(f"{size:,.0f}" for size in sizes) + " | grows |"
        rows = [f"\n{self.title}\n", head, "|---" * (len(sizes) + 2) + "|"]
        for name, points in self.figures.items():
            values = " | ".join(f"{value:,.0f}" for _, value in points)
            rows.append(f"| {name} | {values} | {_word(self.steepness(name))} |")
        return rows


def _word(power: float) -> str:
    return "flat" if power < 0.2 else "below a line" if power < 0.85 else "a line" if power <= STEEPEST else "STEEPER"


class Bench:
    """A store of its own with a client and a worker's ledger."""

    def __init__(self, client: TurnsClient, store: redis.Redis) -> None:
        self.client, self.store = client, store
        self.keys = Keys(client.settings.namespace)
        self.ledger = Ledger(replace(client.settings, lease_seconds=600.0), "bench")
        self.last = ""
        self.ledger.release_turns()  # it knows the fair queue

    async def count(self, work: Coroutine[Any, Any, object]) -> dict[str, float]:
        """Return what the server executed, calls inside Lua included, and sent for some work."""
        self.store.config_resetstat()
        await work
        stats: Any = self.store.info("everything")
        calls = sum(each["calls"] for name, each in stats.items() if name.startswith("cmdstat_"))
        return {"commands": calls - 2, "sent": stats["total_net_output_bytes"]}

    def memory(self) -> int:
        """Return the bytes of the store's data."""
        info: Any = self.store.info("memory")
        return int(info["used_memory_dataset"])

    async def submit(self, **more: Any) -> str:
        messages = ({"role": "user", "content": "What is a lease?"},)
        wanted: dict[str, Any] = {"model": "scripted", "messages": messages} | more
        self.last = await self.client.submitter.submit(TurnRequest(**wanted))
        return self.last

    async def submit_many(self, first: int, last: int, **more: Callable[[int], Any]) -> None:
        for start in range(first, last, _AT_ONCE):
            numbers = range(start, min(last, start + _AT_ONCE))
            requests = ({name: make(number) for name, make in more.items()} for number in numbers)
            await asyncio.gather(*(self.submit(**each) for each in requests))

    def carry_out(self, turn_id: str, session: str, answer: str = "A lease runs out.") -> LeaseClaim:
        claim = self.ledger.claim_turn(turn_id, session, _FIRST)
        assert isinstance(claim, LeaseClaim), claim
        facts = attempt_facts(text=answer, answer=answer, decision="accept")
        ending = Answer(response=answer, step="done", step_source="marker")
        self.ledger.commit_transition(claim, Transition(attempt=1, outcome=Outcome.PASSED, answer=ending, facts=facts))
        return claim

    def take_message(self) -> str:
        """Return the turn of the next message."""
        raw: Any = self.store.rpop(f"{self.client.settings.namespace}:celery:{RUN_QUEUE}")
        return _parse_turn_id(raw)

    async def next_turn(self) -> None:
        """Carry out the turn whose message is next, and submit another one."""
        turn_id = self.take_message()
        session: Any = self.store.hget(self.keys.turn(turn_id), "session_id")
        self.carry_out(turn_id, session.decode())
        await self.submit(session_id=f"next-{turn_id}", owner="next")


@asynccontextmanager
async def started() -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as server:
        url = f"unix://{server.socket}"
        with redis.Redis.from_url(url, socket_timeout=60) as store:
            store.config_set("appendonly", "no")
            async with TurnsClient(Settings(root=Path(folder), broker_url=url, store_url=url)) as client:
                bench = Bench(client, store)
                bench.carry_out(await bench.submit(session_id="first"), "first")  # the server knows the scripts
                bench.take_message()
                yield bench


async def measure_waiting(sizes: list[int]) -> Curve:
    """Turns of one owner that wait: the next turn, the state of the installation, and doctor's look at it."""
    curve = Curve("Turns waiting, of one owner", "turns waiting")
    async with started() as bench:
        done, empty = 0, bench.memory()
        for size in sizes:
            await bench.submit_many(done, size, session_id=lambda number: f"s-{number}")
            kept, done = bench.memory() - empty, size
            await bench.next_turn()
            turn = await bench.count(bench.next_turn())
            state = await bench.count(bench.client.workers.read_state())
            doctor = await bench.count(bench.client.workers.read_state(DOCTOR_LOOKS_AT))
            curve.note(
                size,
                commands_of_the_next_turn=turn["commands"],
                commands_of_the_overview=state["commands"],
                commands_of_doctor=doctor["commands"],
                bytes_kept=kept,
            )
    return curve


async def measure_owners(sizes: list[int]) -> Curve:
    """Owners of one waiting and one finished turn each."""
    curve = Curve("Owners, each with a turn that waits and one that ended", "owners")
    async with started() as bench:
        done = 0
        for size in sizes:
            await bench.submit_many(
                done, size, session_id=lambda number: f"s-{number}", owner=lambda number: f"owner-{number}"
            )
            _store_finished(bench, done, size, owners=size)
            done = size
            await bench.next_turn()
            turn = await bench.count(bench.next_turn())
            stats = await bench.count(bench.client.figures.read_stats(86_400, "owner"))
            curve.note(
                size,
                commands_of_the_next_turn=turn["commands"],
                commands_of_figures_by_owner=stats["commands"],
                bytes_of_figures_by_owner=stats["sent"],
            )
    return curve


def _store_finished(
    bench: Bench,
    first: int,
    last: int,
    owners: int = 100,
    say: Callable[[], str] = lambda: "about leases",
    now: int = 0,
) -> None:
    """Store records of finished turns as they are kept, without their logs and attempts."""
    now = now or int(time.time() * 1000)
    for start in range(first, last, 1000):
        pipe = bench.store.pipeline(transaction=False)
        for number in range(start, min(last, start + 1000)):
            turn_id, owner = new_turn_id(), f"owner-{number % owners}"
            said = ({"role": "user", "content": f"Question number {number} {say()}"},)
            request = TurnRequest(model="scripted", messages=said, session_id=f"f-{number}", owner=owner).to_json()
            record: dict[str, str | int] = {"id": turn_id, "epoch": "e", "state": "finished", "outcome": "passed"}
            counts: dict[str, str | int] = {
                "created_at": now,
                "finished_at": now,
                "attempt": 1,
                "tokens_used": 10,
                "seq": 5,
            }
            names: dict[str, str | int] = {
                "owner": owner,
                "session_id": f"f-{number}",
                "model": "scripted",
                "request": request,
            }
            pipe.hset(bench.keys.turn(turn_id), mapping=record | counts | names)
            pipe.zadd(bench.keys.finished, {turn_id: now - number})
        pipe.execute()


async def measure_finished(sizes: list[int]) -> Curve:
    """Finished turns: the first page of a list, a page of a text search that finds nothing, figures by owner."""
    curve = Curve("Finished turns in the store", "finished turns")
    async with started() as bench:
        done = 0
        for size in sizes:
            _store_finished(bench, done, size)
            done = size
            lists = bench.client.lists
            page = await bench.count(lists.read_page(Search()))
            search = await bench.count(lists.read_page(Search(text="no such text"), seconds=600))
            stats = await bench.count(bench.client.figures.read_stats(86_400, "owner"))
            curve.note(
                size,
                commands_of_a_page=page["commands"],
                commands_of_a_text_search=search["commands"],
                bytes_of_a_text_search=search["sent"],
                bytes_of_figures_by_owner=stats["sent"],
            )
    return curve


async def measure_search(sizes: list[int]) -> Curve:
    """Finished turns of thirty words of our docs each: the first page of a search for text, by the index."""
    curve = Curve("Finished turns of thirty words each, and an index of texts", "finished turns")
    words = " ".join(page.read_text() for page in sorted(_DOCS.glob("*.md"))).split()
    chosen, asked = random.Random(7), {"common word": "turn", "rare word": "cylinder", "no match": "xylophone"}

    def say() -> str:
        start = chosen.randrange(len(words) - 30)
        return " ".join(words[start : start + 30])

    async with started() as bench:
        done, now = 0, int(time.time() * 1000) - 2000
        for size in sizes:
            _store_finished(bench, done, size - 1, say=say, now=now)
            _store_finished(bench, size - 1, size, say=lambda: "cylinder", now=now)
            done, before = size, bench.memory()
            await TextIndexer(bench.client.store).extend()
            curve.note(size, bytes_of_the_index=bench.memory() - before)
            for kind, text in asked.items():
                began = time.perf_counter()
                cost = await bench.count(bench.client.lists.read_page(Search(text=text), seconds=600))
                ms = (time.perf_counter() - began) * 1000
                curve.note(size, **{f"commands,_{kind}": cost["commands"], f"ms,_{kind}": ms})
    return curve


async def measure_conversation(sizes: list[int]) -> Curve:
    """A chat that sends all its messages with each turn: what the store keeps, and what the last turn costs."""
    curve = Curve("Turns of one conversation, 300 characters a message", "turns")
    async with started() as bench:
        messages: list[dict[str, str]] = []
        empty = bench.memory()
        for number in range(1, sizes[-1] + 1):
            messages.append({"role": "user", "content": f"{number} {'q' * 300}"})
            turn_id = await bench.submit(messages=tuple(messages), session_id="chat")
            bench.carry_out(turn_id, "chat", answer := f"{number} {'a' * 300}")
            messages.append({"role": "assistant", "content": answer})
            if number in sizes:
                kept = bench.memory() - empty
                read = await bench.count(bench.client.reader.read_turn(turn_id))
                listed = await bench.count(bench.client.lists.read_page(Search(session_id="chat"), count=10))
                curve.note(
                    number,
                    bytes_kept=kept,
                    bytes_to_read_the_last_turn=read["sent"],
                    bytes_to_list_ten=listed["sent"],
                )
    return curve


async def measure_texts(sizes: list[int]) -> Curve:
    """A message and an answer of one size: what the store keeps and sends for one turn."""
    curve = Curve("Message and answer, each of this size", "bytes")
    async with started() as bench:
        for size in sizes:

            async def carry_out(size: int = size) -> None:
                turn_id = await bench.submit(
                    messages=({"role": "user", "content": "q" * size},), session_id=f"text-{size}"
                )
                bench.carry_out(turn_id, f"text-{size}", "a" * size)

            cost = await bench.count(carry_out())
            keys: Any = bench.store.scan_iter(f"*{bench.last}*")
            kept = sum(int(bench.store.memory_usage(key, samples=0) or 0) for key in keys)  # type: ignore[arg-type]
            curve.note(size, bytes_kept=kept, bytes_sent=cost["sent"], commands=cost["commands"])
    return curve


async def measure_readers(sizes: list[int]) -> Curve:
    """Readers of one turn in one process, from before its start to its end."""
    curve = Curve("Readers of one turn in one process", "readers")
    async with started() as bench:
        for size in sizes:

            async def follow(size: int = size) -> None:
                session = f"read-{size}"
                turn_id = await bench.submit(session_id=session)

                async def read() -> int:
                    return len([event async for event in bench.client.reader.follow_turn(turn_id) if event])

                readers = [asyncio.create_task(read()) for _ in range(size)]
                await asyncio.sleep(0)
                await asyncio.to_thread(bench.carry_out, turn_id, session)
                assert len(set(await asyncio.gather(*readers))) == 1

            cost = await bench.count(follow())
            info: Any = bench.store.info("clients")
            curve.note(size, commands=cost["commands"], bytes_sent=cost["sent"], connections=info["connected_clients"])
    return curve


CURVES: dict[str, tuple[Callable[[list[int]], Coroutine[Any, Any, Curve]], list[int], list[int]]] = {
    "waiting": (measure_waiting, [10, 100, 1000], [10, 100, 1000, 10_000, 100_000]),
    "finished": (measure_finished, [1000, 2000, 4000], [1000, 10_000, 100_000, 1_000_000]),
    "search": (measure_search, [1900, 4900, 16_900], [1900, 10_900, 100_900]),  # 900 are not indexed
    "conversation": (measure_conversation, [20, 100, 200], [10, 100, 500, 1000]),
    "texts": (measure_texts, [10_000, 100_000, 1_000_000], [10_000, 100_000, 1_000_000, 8_000_000]),
    "readers": (measure_readers, [1, 10, 100], [1, 10, 100, 1000]),
    "owners": (measure_owners, [10, 100, 1000], [10, 100, 1000, 10_000, 100_000]),
}


def main(arguments: list[str]) -> int:
    """Measure the curves, print and draw them; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: a minute")
    parser.add_argument("--only", choices=CURVES, action="append", help="this curve; may be repeated")
    parser.add_argument("--plots", type=Path, help="folder for the plots (docs/images; none with --quick)")
    asked = parser.parse_args(arguments)
    folder = asked.plots or (None if asked.quick else IMAGES)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    steep = []
    for name in asked.only or CURVES:
        measure, quick, full = CURVES[name]
        curve = asyncio.run(measure(quick if asked.quick else full))
        print("\n".join(curve.rows()), flush=True)
        if folder:
            lines = [Line(figure, points) for figure, points in curve.figures.items()]
            (folder / f"growth-{name}.svg").write_text(plot(curve.title, curve.across, "", lines))
        counted = [figure for figure in curve.figures if not figure.startswith("ms")]
        steep += [f"{name}: {figure}" for figure in counted if curve.steepness(figure) > STEEPEST]
    limits = {"overview": LOOK_AT_MOST, "doctor": DOCTOR_LOOKS_AT}
    print(f"\nunfinished turns looked at, at most: {json.dumps(limits)}")
    if steep:
        print(f"grows faster than its size: {'; '.join(steep)}")
    return 1 if steep else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
