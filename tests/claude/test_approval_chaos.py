"""Many questions of the real Claude CLI at once, answered by links, while worker, relay and broker are killed.

``APPROVALS=100`` in the environment asks as many. Each call writes one letter into a file of its own, so that
the disk says what ran, and how often.
"""

from __future__ import annotations

import asyncio
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
from api_client.contract.issues import StoreUnavailable
from api_client.contract.turn import Outcome, Turn, TurnRequest, TurnState
from api_client.web.relay.question_links import question_link
from tests.claude.stub import Reply, Stub, says
from tests.fault.matrix import Stage
from tests.support import processes_with, wait_until

pytestmark = pytest.mark.long
COUNT = int(os.environ.get("APPROVALS", "12"))
#: What a person does with each question, in turn.
WAYS = ("yes", "no", "expired", "two at once")
_NUMBER = re.compile(r"Nummer (\d+)\b")
POLICY = """
rules: []
tools:
  - {tool: Bash, arguments: {command: "printf *"}, do: ask, owners: [hasty], wait_seconds: 5}
  - {tool: Bash, arguments: {command: "printf *"}, do: ask, wait_seconds: 3000}
"""


@dataclass
class Case:
    """One turn: what becomes of its questions, how often it was answered yes, and the file of its call."""

    number: int
    file: Path
    turn_id: str = ""
    yes: int = 0
    answered: set[float] = field(default_factory=set)

    @property
    def way(self) -> str:
        return WAYS[self.number % len(WAYS)]

    @property
    def ran(self) -> int:
        """How often its call ran."""
        return len(self.file.read_text()) if self.file.exists() else 0


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
        command = f"printf x >> {self.folder / _NUMBER.search(said)[1]}"
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
    """They answer each question by its link, two of them at once where that is asked for."""

    def __init__(self, stage: Stage, client: TurnsClient, cases: list[Case]) -> None:
        self._stage, self._client, self.cases = stage, client, cases
        self.seen: Counter[str] = Counter()

    async def answer(self, case: Case, turn: Turn) -> None:
        """The first question of a case gets its way; one that comes again, since a worker died, gets a no."""
        if case.way == "expired":
            return
        first = not case.answered
        event = (await self._client.reader.events(turn.turn_id))[-1]
        if event.kind != "turn.parked" or round(event.at, 3) in case.answered:
            return
        link = await question_link(SimpleNamespace(client=self._client), turn.turn_id, event)
        kinds = {"yes": ["approve"], "no": ["reject"], "two at once": ["approve", "reject"]}[case.way]
        said = await asyncio.gather(*(self._send(link, kind) for kind in (kinds if first else ["reject"])))
        self.seen.update(str(status) for status in said)
        if 200 in said or 409 in said:
            case.answered.add(round(event.at, 3))
        decided = await self._client.reader.get(turn.turn_id)
        # A relay that was killed may have stored an answer that it could not confirm: the record says which counts.
        won = decided.decision and decided.decision.kind == "approve" and decided.decision.by == "chat link"
        case.yes += bool(won) if first else 0

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
            if turn.state is TurnState.PARKED:
                await self.answer(case, turn)
        return ended == len(self.cases)


async def patiently(client: TurnsClient, turn_id: str) -> Turn:
    for _ in range(100):
        try:
            return await client.reader.get(turn_id)
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
            case.turn_id = await client.submitter.submit(client.policies.apply(asked, owner="", named=()))
        waiting = [case for case in cases if case.way != "expired"]

        async def all_wait() -> bool:
            turns = [await client.reader.get(case.turn_id) for case in waiting]
            assert all(turn.outcome is None for turn in turns)
            return all(turn.state is TurnState.PARKED for turn in turns)

        await wait_until(all_wait, 120 + 10 * COUNT)
        held = [await client.reader.get(case.turn_id) for case in waiting]
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
        assert sorted(turn.turn_id for turn in await client.inbox.parked()) == sorted(
            case.turn_id for case in waiting
        ), "no question is lost"
        people = People(stage, client, cases)
        await people.all_ended()
        # And while answers are carried out.
        stage.workers[-1].kill()
        stage.relays[0].kill()
        stage.start_relay()
        stage.worker()
        await wait_until(people.all_ended, 120 + 15 * COUNT)
        turns = {case.number: await client.reader.get(case.turn_id) for case in cases}
    outcomes = Counter(str(turn.outcome) for turn in turns.values())
    ran = {way: [case.ran for case in cases if case.way == way] for way in WAYS}
    print(json.dumps({"turns": COUNT, "outcomes": outcomes, "http": people.seen, "ran": ran}))
    assert set(outcomes) == {Outcome.PASSED}
    for case in cases:
        assert case.ran <= case.yes, f"{case}: ran twice, or unasked"
    assert sum(ran["no"]) == sum(ran["expired"]) == 0
    # A yes whose worker was killed before the call ran is asked again, and then it is no.
    late = sum(len(case.answered) > 1 for case in cases)
    assert sum(ran["yes"]) >= len(ran["yes"]) - late
