"""Many questions of the real Claude CLI at once, answered by links, while worker, relay and broker are killed.

``APPROVALS=100`` in the environment asks as many. Each call adds a line to a file of its own, so that the disk says
what ran, and how often.
"""

import asyncio
import contextlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from api_client.client import TurnsClient
from api_client.contract.errors import StoreUnavailable
from api_client.contract.order_log import LINK_HOLDER
from api_client.contract.turn import Outcome, Turn, TurnRequest, TurnState
from api_client.web.relay.question_links import sign_question_link
from tests.claude.stub import Reply, Stub, says
from tests.fault.matrix import Stage
from tests.support import processes_with, wait_until

pytestmark = pytest.mark.long
COUNT = int(os.environ.get("APPROVALS", "12"))
#: What a person does with each question, in turn.
WAYS = ("yes", "no", "expired", "two at once")
#: After so many answers something is killed.
_EVERY = max(2, COUNT // 12)
_NUMBER = re.compile(r"Nummer (\d+)\b")
POLICY = """
rules: []
tools:
  - {tool: Bash, arguments: {command: "echo *"}, do: ask, owners: [hasty], wait_seconds: 5}
  - {tool: Bash, arguments: {command: "echo *"}, do: ask, wait_seconds: 3000}
"""


@dataclass
class Case:
    """One turn: what becomes of its questions, how often one of them got a yes, and the file of its call."""

    number: int
    file: Path
    turn_id: str = ""
    yes: int = 0
    last_is_yes: bool = False
    answered: set[float] = field(default_factory=set)

    @property
    def way(self) -> str:
        return WAYS[self.number % len(WAYS)]

    @property
    def ran(self) -> int:
        """How often its call ran: each run adds a line."""
        return len(self.file.read_text().splitlines()) if self.file.exists() else 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is said at once to the question that waits. One that comes again gets a no where its call has run."""
        if self.ran:
            return ("reject",)
        both = ("approve", "reject") if self.number % 8 < 4 else ("reject", "approve")
        return {"yes": ("approve",), "no": ("reject",), "two at once": both, "expired": ()}[self.way]


@dataclass
class Model(Stub):
    """Calls the tool of the number that the message names; after its result it says that it is done."""

    folder: Path = Path()

    def take(self, request: dict[str, Any]) -> Reply:
        said = json.dumps(request["messages"])
        with self._lock:
            self.requests.append(request)
        if "tool_result" in said:
            return says("Fertig.\n\n<!-- STEP: done -->")
        command = f"echo ran >> {self.folder / _NUMBER.search(said)[1]}"
        return Reply(chunks=("Ich frage.",), tool=("Bash", {"command": command}), stop_reason="tool_use")


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    with Model() as model:
        yield model


@pytest.fixture
def stage(tmp_path: Path, program: Path, model: Model) -> Iterator[Stage]:
    changes: dict[str, Any] = {
        "models": {"helix-consultant": "claude_cli"},
        "claude_path": str(program),
        "claude_api_url": model.url,
        "claude_api_key": "sk-stub",
        "claude_tools": ("Bash",),
        "writable": ("adr",),
        "policy": str(tmp_path / "root" / "policy.yaml"),
        "validators": (),
    }
    model.folder = tmp_path / "root" / "adr"
    model.folder.mkdir(parents=True)
    (tmp_path / "root" / "policy.yaml").write_text(POLICY)
    with Stage(tmp_path, "[]", **changes) as stage:
        stage.start(2, relay=True)
        yield stage


class People:
    """They answer each question by its link, two of them at once where that is asked for; meanwhile somebody kills.

    Each time that so many answers were given, the next of worker, relay and broker dies.
    """

    def __init__(self, stage: Stage, client: TurnsClient, cases: list[Case]) -> None:
        self._stage, self._client, self.cases = stage, client, cases
        self._victims = itertools.cycle(("worker", "relay", "broker"))
        self._alive = stage.workers[-2:]
        self._answers, self._next = 0, _EVERY
        self.seen: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()

    async def answer(self, case: Case, turn: Turn) -> None:
        """Answer the question that waits, once."""
        event = (await self._client.reader.read_events(turn.turn_id))[-1]
        if event.kind != "turn.suspended" or event.at in case.answered or not case.kinds:
            return
        link = await sign_question_link(SimpleNamespace(client=self._client), turn.turn_id, event)
        said = await asyncio.gather(*(self._send(link, kind) for kind in case.kinds))
        self.seen.update(map(str, said))
        # A relay that was killed may have stored an answer that it could not confirm: the record says which counts.
        decided = (await patiently(self._client, case.turn_id)).decision
        if decided and decided.at >= event.at:
            case.answered.add(event.at)
            case.last_is_yes = decided.kind == "approve" and decided.by == LINK_HOLDER
            case.yes += case.last_is_yes
            self._answers += 1
            if self._answers >= self._next:
                self._next += _EVERY
                await self.strike(next(self._victims))

    async def strike(self, victim: str) -> None:
        self.killed[victim] += 1
        if victim == "broker":
            await self._stage.restart_broker()
        elif victim == "relay":
            self._stage.relays[0].kill()
            self._stage.start_relay()
        else:
            self._alive.pop(0).kill()
            self._alive.append(self._stage.worker(wait=False))

    async def _send(self, link: str, kind: str) -> int:
        try:
            async with httpx2.AsyncClient(base_url=self._stage.url, timeout=20) as http:
                return (await http.post(link, data={"decision": kind})).status_code
        except httpx2.HTTPError:
            return 0

    async def all_ended(self) -> bool:
        """Answer whatever waits; True once all turns have ended."""
        ended = 0
        for case in self.cases:
            turn = await patiently(self._client, case.turn_id)
            ended += turn.outcome is not None
            if turn.state is TurnState.SUSPENDED:
                with contextlib.suppress(StoreUnavailable):  # the next look finds it again
                    await self.answer(case, turn)
        return ended == len(self.cases)


async def patiently(client: TurnsClient, turn_id: str) -> Turn:
    for _ in range(100):
        try:
            return await client.reader.read_turn(turn_id)
        except StoreUnavailable:
            await asyncio.sleep(0.1)
    raise AssertionError("the broker did not come back")


async def test_no_question_is_lost_and_no_call_runs_twice_or_unasked(stage: Stage, model: Model) -> None:
    cases = [Case(number, model.folder / str(number)) for number in range(COUNT)]
    async with TurnsClient(stage.settings) as client:
        for case in cases:
            key = "hasty" if case.way == "expired" else ""
            messages = ({"role": "user", "content": f"Nummer {case.number} bitte"},)
            asked = TurnRequest(
                model="helix-consultant", messages=messages, session_id=f"s{case.number}", key=key, locale="de"
            )
            case.turn_id = await client.submitter.submit(client.policies.apply_policy(asked, owner="", named=()))
        waiting = [case for case in cases if case.way != "expired"]

        async def all_wait() -> bool:
            turns = [await client.reader.read_turn(case.turn_id) for case in waiting]
            assert all(turn.outcome is None for turn in turns)
            return all(turn.state is TurnState.SUSPENDED for turn in turns)

        await wait_until(all_wait, 120 + 10 * COUNT)
        held = [await client.reader.read_turn(case.turn_id) for case in waiting]
        assert {(turn.lease_until, turn.next) for turn in held} == {(0, "")}, "no slot is held while people think"
        for case in waiting:
            assert not processes_with(f"HELIX_AGENT_MARK={case.turn_id}."), "and no process"
        # Between question and answer.
        for worker in stage.workers:
            worker.kill()
        stage.relays[0].kill()
        await stage.restart_broker()
        stage.start_relay()
        stage.worker(), stage.worker()
        asking = {turn.turn_id for turn in await client.inbox.list_suspended()}
        hasty = {case.turn_id for case in cases if case.way == "expired"}  # its time may not be over yet
        assert asking - hasty == {case.turn_id for case in waiting}, "no question is lost"
        # And while people answer, and their answers are carried out.
        people = People(stage, client, cases)
        await wait_until(people.all_ended, 120 + 20 * COUNT)
        turns = {case.number: await client.reader.read_turn(case.turn_id) for case in cases}
    outcomes = Counter(str(turn.outcome) for turn in turns.values())
    by_way = {way: [case for case in cases if case.way == way] for way in WAYS}
    counted = {way: {"turns": len(of), "ran": sum(case.ran for case in of)} for way, of in by_way.items()}
    again = sum(len(case.answered) > 1 for case in cases)
    print(json.dumps(counted | {"http": people.seen, "killed": people.killed, "asked again": again}))
    assert set(outcomes) == {Outcome.PASSED}
    for case in cases:
        # A run that is killed before its call asks again, and the answer may be another one.
        assert case.last_is_yes <= case.ran <= bool(case.yes), f"{case}: it ran {case.ran} times"
    assert all(case.yes for case in by_way["yes"]), "no yes is lost"
    assert not any(case.yes for case in [*by_way["no"], *by_way["expired"]])
    assert all(turns[case.number].decision.timed_out for case in by_way["expired"])
    assert set(people.killed) == {"worker", "relay", "broker"}
