"""What a turn costs the store: ``python -m tests.lab.bench.store_cost``.

Server CPU of each command (INFO) with a message or an answer of several sizes, and the commands of a turn whose first
answer is rejected: sent, and inside Lua (MONITOR). No worker and no agent: one process claims, advances and commits.
A server for this run alone.
"""

import asyncio
import logging
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import redis
import structlog

from api_client.client import TurnsClient
from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.keys import keys_for_turn
from api_client.contract.settings import Settings
from api_client.contract.tasks import RETRY, RUN, VALIDATE, ChainTask
from api_client.contract.turn import Outcome, TurnRequest, TurnState
from api_client.turns.record.accepted import AcceptedAnswer
from api_client.turns.record.claim import CommitResult, LeaseClaim
from api_client.turns.record.transition import Answer, Transition, attempt_facts, progress
from tests.on_loop import Ledger
from worker.processes.embedded_broker import EmbeddedBroker

#: Sizes in bytes, and how many turns of each.
_SIZES = {100: 30, 10_000: 20, 100_000: 10, 1_000_000: 6}
_DELTAS = 40
_PIECE = AttemptOutput(attempt=1, text="twenty characters ab")


def _run(text: str) -> Transition:
    return Transition(
        attempt=1, next=ChainTask(VALIDATE, 1), facts=attempt_facts(text=text, prompt="p"), run_ended=True
    )


def _passed(text: str) -> Transition:
    answer = Answer(response=text, step="what", step_source="marker")
    facts = attempt_facts(answer=text, decision="accept")
    return Transition(attempt=1, outcome=Outcome.PASSED, answer=answer, facts=facts, validated=True)


class Cost:
    """Server CPU of steps, in ms: the median of what each took."""

    def __init__(self, store: redis.Redis, namespace: str = "") -> None:
        self._store = store
        self._namespace = namespace
        self.spent: dict[str, list[float]] = {}

    def _cpu(self) -> float:
        info: Any = self._store.info("cpu")
        return float(info["used_cpu_user"] + info["used_cpu_sys"]) * 1e3

    def of(self, name: str, step: Callable[[], Any], times: int = 1) -> Any:
        """Do a step, and note what the server spent on each of its ``times`` commands."""
        before = self._cpu()
        result = step()
        self.spent.setdefault(name, []).append((self._cpu() - before) / times)
        return result

    def lua_of(self, name: str, step: Callable[[], Any]) -> Any:
        """Do a step, and note how long its Lua commands took by the server's clock, with all that they call."""
        before = self._lua()
        result = step()
        self.spent.setdefault(name, []).append(self._lua() - before)
        return result

    def _lua(self) -> float:
        info: Any = self._store.info("commandstats")
        return float(info.get("cmdstat_evalsha", {"usec": 0})["usec"]) / 1e3

    def reading(self, turn_id: str) -> None:
        """What of a claim is the reading of a conversation that lies apart: as many bytes leave the server again."""
        texts = keys_for_turn(self._namespace, turn_id).texts(turn_id)
        if self._store.exists(texts):
            self.of("of it reading", lambda: self._store.hmget(texts, ["request", "accepted"]))
        else:
            self.spent.setdefault("of it reading", []).append(0.0)

    def medians(self) -> dict[str, float]:
        """Name -> ms."""
        return {name: statistics.median(spent) for name, spent in self.spent.items()}


async def cost(settings: Settings, store: redis.Redis, message: int, answer: int, turns: int) -> dict[str, float]:
    """ms of the server's CPU for each command of a turn, first try."""
    ledger, spent = Ledger(settings, "bench"), Cost(store, settings.namespace)
    text = "y" * answer
    async with TurnsClient(settings) as client:
        for number in range(turns):
            session = f"s-{message}-{answer}-{number}"
            messages = ({"role": "user", "content": "x" * message},)
            turn_id = await client.submitter.submit(
                TurnRequest(model="scripted", messages=messages, session_id=session)
            )
            _play(ledger, spent, turn_id, session, text)
    return spent.medians()


def _play(ledger: Ledger, spent: Cost, turn_id: str, session: str, text: str) -> None:
    take = partial(ledger.claim_turn, turn_id, session, ChainTask(RUN, 1))
    claim = spent.lua_of("of it Lua", lambda: spent.of("claim", take))
    assert isinstance(claim, LeaseClaim)
    spent.reading(turn_id)
    spent.of("delta", lambda: [ledger.append_events(claim, [_PIECE]) for _ in range(_DELTAS)], _DELTAS)
    judging = _end_of_run(ledger, spent, claim, text)
    assert isinstance(judging, LeaseClaim)
    sealed = AcceptedAnswer(transition=_passed(text), delivery="d").to_json(judging.known_facts(1))
    spent.of("seal", lambda: ledger.seal_answer(judging, sealed))
    spent.of("end", lambda: ledger.commit_transition(judging, _passed(text)))


def _end_of_run(ledger: Ledger, spent: Cost, claim: LeaseClaim, text: str) -> LeaseClaim | CommitResult:
    """A very long text is a command of its own: the server does something else between it and the end of the run."""
    steps = ledger._changes.commit_transition(claim, _run(text), time.monotonic(), keep=True)
    command, ahead = next(steps), "its text"
    if command.script:
        spent.spent.setdefault(ahead, []).append(0.0)
    try:
        while True:
            name = "end of run" if command.script else ahead
            command = steps.send(spent.of(name, partial(ledger._send_command, command)))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def commands(settings: Settings, store: redis.Redis) -> dict[str, Counter[str]]:
    """The commands of one turn that is rejected once: by where they come from, sent or inside Lua."""
    ledger = Ledger(settings, "bench")
    seen: dict[str, Counter[str]] = {"sent": Counter(), "in Lua": Counter()}
    async with TurnsClient(settings) as client:
        for number in range(2):  # the first makes the server know the scripts
            for counter in seen.values():
                counter.clear()
            with store.monitor() as monitor:
                reading = threading.Thread(target=_read, args=(monitor, seen))
                reading.start()
                await _rejected_once(client, ledger, f"commands-{number}")
                store.execute_command("ECHO", "the end")
                reading.join()
    return seen


def _read(monitor: Any, seen: dict[str, Counter[str]]) -> None:
    for command in monitor.listen():
        words = command["command"].split()
        if words[0] == "ECHO":
            return
        seen["in Lua" if command["client_type"] == "lua" else "sent"][words[0].upper()] += 1


async def _rejected_once(client: TurnsClient, ledger: Ledger, session: str) -> None:
    messages = ({"role": "user", "content": "?"},)
    turn_id = await client.submitter.submit(TurnRequest(model="scripted", messages=messages, session_id=session))
    claim: object = ledger.claim_turn(turn_id, session, ChainTask(RUN, 1))
    again = Transition(
        attempt=1, next=ChainTask(RETRY, 2), state=TurnState.QUEUED, fields=progress(retries=1), validated=True
    )
    for transition in (_run("no"), again, replace(_run("yes"), attempt=2, next=ChainTask(VALIDATE, 2))):
        assert isinstance(claim, LeaseClaim)
        claim = ledger.commit_transition(claim, transition, keep=True)
    assert isinstance(claim, LeaseClaim)
    ledger.seal_answer(claim, "{}")
    ledger.commit_transition(claim, replace(_passed("yes"), attempt=2, outcome=Outcome.PASSED_AFTER_RETRY))


async def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as server:
        url = f"unix://{server.socket}"
        settings = Settings(root=Path(folder), broker_url=url, store_url=url)
        with redis.Redis.from_url(url) as store:
            await cost(settings, store, 100, 100, 5)  # warm
            rows = {
                f"message {size:,} B": await cost(settings, store, size, 100, turns) for size, turns in _SIZES.items()
            }
            rows["answer 1,000,000 B"] = await cost(settings, store, 100, 1_000_000, 6)
            small = rows["message 100 B"]
            print(f"{'ms of server CPU':22}" + "".join(f"{name:>15}" for name in small))
            for title, row in rows.items():
                print(f"{title:22}" + "".join(f"{row[name]:15.3f}" for name in small))
            large = rows["message 1,000,000 B"]
            told = [name for name in small if small[name]]
            print("message 1 MB / 100 B: " + ", ".join(f"{name} {large[name] / small[name]:.2f}" for name in told))
            alone = large["claim"] - large["of it reading"]
            print(f"claim without reading the conversation: {alone / small['claim']:.2f}")
            bare, text = Cost(store), "y" * 1_000_000
            for number in range(6):
                bare.of("SET", partial(store.set, f"bare-{number}", text))
            print(f"a bare SET of 1,000,000 B: {bare.medians()['SET']:.3f}")
            counted = await commands(settings, store)
            for where, names in counted.items():
                listed = ", ".join(f"{name} {count}" for name, count in names.most_common())
                print(f"{where}: {sum(names.values())} ({listed})")
            print(f"commands of a turn rejected once: {sum(sum(names.values()) for names in counted.values())}")


if __name__ == "__main__":
    asyncio.run(main())
