"""Flow versions over real workers: shares, a rollback by command and by the guard, and the comparison (ADR-034)."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.errors import SettingsError
from api_client.contract.settings import load_settings
from api_client.contract.turn import Outcome, Turn
from api_client.index.search import Search
from api_client.policies.flows import GUARD, choose_flow
from tests.hooks import HookReceiver
from tests.installation import Installation, environ_of
from tests.installation import asked as message
from tests.replays import replay_turn
from tests.support import wait_until
from worker.enforcement.policies import read_policy
from worker.plugins.analysis.flow_guard import count_finished, lower_failure_bound

SCRIPT = '- attempts: [[{say: "Dies ist eine Antwort mit vielen Worten.\\n\\n<!-- STEP: done -->"}]]\n'
BAD = "rules:\n  - {rule: length, name: short, reactions: [fail], options: {max_words: 3}}\n"
FILE = """
[flow.v2]
policy = "good.yaml"

[flow.v3]
policy = "bad.yaml"
"""
BOUND = "max_failure_rate = 0.2\n"


@pytest.fixture
def scripted(installation: Installation) -> Installation:
    """Two versions, half and half; all answers of v3 are rejected. Of every process: the settings file says so."""
    made = installation.play(SCRIPT, flow_version={"v2": 1, "v3": 1})
    folder = made.root / ".helix"
    folder.mkdir(exist_ok=True)
    (folder / "good.yaml").write_text("rules: [step_marker]")
    (folder / "bad.yaml").write_text(BAD)
    (folder / "helix.toml").write_text(FILE)
    installation.settings = load_settings(environ_of(made))
    return installation


@pytest.fixture
def receiver() -> Iterator[HookReceiver]:
    with HookReceiver() as found:
        yield found


@pytest.fixture
def turns_command(scripted: Installation) -> Callable[..., str]:
    def run(*arguments: str, code: int = 0) -> str:
        said = scripted.command(*arguments)
        assert said.returncode == code, said.stderr
        return said.stderr if code else said.stdout.splitlines()[-1]

    return run


async def answered(client: TurnsClient, sessions: list[str]) -> list[Turn]:
    ids = [await client.submitter.submit(message("frage", session)) for session in sessions]
    return list(await asyncio.gather(*(client.reader.await_result(turn_id, timeout=120) for turn_id in ids)))


async def test_a_session_gets_the_policy_of_its_version_and_keeps_it(scripted: Installation) -> None:
    scripted.worker()
    sessions = [f"s{number}" for number in range(12)]
    client = scripted.client
    turns = await answered(client, [*sessions, *sessions])
    hashes = {flow: read_policy(text).hash for flow, text in (("v2", "rules: [step_marker]"), ("v3", BAD))}
    for turn in turns:
        wanted = choose_flow(turn.request.session_id, {"v2": 1, "v3": 1})
        assert (turn.labels["flow"], turn.to_dict()["policy"]) == (wanted, hashes[wanted])
        assert turn.outcome is (Outcome.FAILED if wanted == "v3" else Outcome.PASSED)
    assert {turn.labels["flow"] for turn in turns} == {"v2", "v3"}
    counted = {row.name: row.turns for row in (await client.figures.read_stats(3600, "flow")).rows}
    assert counted == Counter(turn.labels["flow"] for turn in turns)
    for flow in ("v2", "v3"):
        page = await client.lists.read_page(Search(labels={"flow": flow}, statuses=("finished",)))
        assert {turn.turn_id for turn in page.turns} == {turn.turn_id for turn in turns if turn.labels["flow"] == flow}


async def test_a_bad_version_under_load_is_rolled_back_by_itself_and_its_sessions_go_on_with_the_other(
    scripted: Installation, receiver: HookReceiver
) -> None:
    with Path(scripted.settings.root / ".helix" / "helix.toml").open("a") as file:
        file.write(BOUND)
    for _ in range(2):
        scripted.worker(webhook_urls=(receiver.url,), webhook_internal="allowed")
    client = scripted.client
    number = 0

    async def rolled_back() -> Any:
        nonlocal number
        number += 1
        assert number < 200, "the guard does nothing"
        await answered(client, [f"load-{number}-{place}" for place in range(8)])
        return await client.flows.read_rolled_back()

    note = (await wait_until(rolled_back, 300, tick=0.2))["v3"]
    assert note.by == GUARD
    assert "turns failed; the bound is 20%" in note.why

    async def all_to_v2() -> bool:
        return (await client.flows.read_active()) == {"v2": 1}

    await wait_until(all_to_v2)
    after = await answered(client, [f"after-{place}" for place in range(10)])
    assert {(turn.labels["flow"], turn.outcome) for turn in after} == {("v2", Outcome.PASSED)}
    await wait_until(lambda: receiver.kinds()["flow.rolled_back"])
    [said] = [json.loads(body) for _, body in receiver.taken if "flow.rolled_back" in body]
    assert (said["data"]["flow"], said["data"]["why"]) == ("v3", note.why)


async def test_one_command_rolls_back_without_a_restart_and_another_takes_it_back(
    scripted: Installation, turns_command: Callable[..., str]
) -> None:
    scripted.worker()
    in_v3 = next(name for name in map(str, range(99)) if choose_flow(name, {"v2": 1, "v3": 1}) == "v3")
    relay = scripted.client
    [before] = await answered(relay, [in_v3])
    assert before.labels["flow"] == "v3"
    said = turns_command("policy", "rollback", "v3", "--why", "too strict")
    assert said == "v3 gets no new turns; sessions: v2=1"

    async def flow_now() -> str:
        return choose_flow(in_v3, await relay.flows.read_active())

    await wait_until(lambda: _is(flow_now, "v2"))
    [after] = await answered(relay, [in_v3])
    assert (after.labels["flow"], after.outcome) == ("v2", Outcome.PASSED)
    replayed = await relay.reader.await_result(await replay_turn(relay, before.turn_id), timeout=60)
    assert (replayed.labels["flow"], replayed.outcome) == ("v2", Outcome.PASSED)

    shown = json.loads(turns_command("policy", "versions", "--json"))
    assert [(each["version"], each["share"]) for each in shown] == [("v2", 1.0), ("v3", 0.0)]
    assert shown[1]["rolled_back"]["why"] == "too strict"
    assert "rolled back at" in turns_command("policy", "versions")
    assert "no other version is left" in turns_command("policy", "rollback", "v2", code=2)
    assert "no flow version 'v9'" in turns_command("policy", "rollback", "v9", code=2)
    assert [line.action for line in await relay.audit.read_lines(since=0)][:1] == ["flow.rollback"]

    turns_command("policy", "resume", "v3")
    await wait_until(lambda: _is(flow_now, "v3"))


async def _is(asked: Callable[[], Any], wanted: str) -> bool:
    return bool(await asked() == wanted)


async def test_compare_says_how_versions_differ(scripted: Installation, turns_command: Callable[..., str]) -> None:
    scripted.worker()
    client = scripted.client
    turns = await answered(client, [f"c-{number}" for number in range(90)])
    found = json.loads(turns_command("policy", "compare", "v2", "v3", "--json"))
    assert found["turns"] == [sum(turn.labels["flow"] == flow for turn in turns) for flow in ("v2", "v3")]
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert (figures["failure"]["old"]["value"], figures["failure"]["new"]["value"]) == (0.0, 1.0)
    assert figures["failure"]["real"]
    assert figures["retry"]["change"]["value"] == 0.0
    assert not figures["retry"]["real"]
    said = turns_command("policy", "compare", "v2", "v3")  # its last line
    assert "v3 really differs from v2 in: no accepted answer" in said
    few = turns_command("policy", "compare", "v2", "v4")
    assert "Too few sessions" in few


def test_the_guard_waits_until_the_rate_is_above_the_bound_beyond_doubt() -> None:
    assert lower_failure_bound(2, 2) < 0.2 < lower_failure_bound(4, 4)
    assert lower_failure_bound(30, 100) < 0.2 < lower_failure_bound(40, 100)
    assert lower_failure_bound(0, 0) == 0.0
    counted = {"turn.finished|failed|m|v3|none|0": 3, "turn.finished|passed|m|v3|done|0": 5}
    counted |= {"turn.finished|cancelled|m|v3|none|0": 9, "turn.finished|failed|m|v2|none|0": 7, "turn.submitted": 1}
    assert count_finished(counted, "v3") == (3, 8)


def test_a_block_of_a_version_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "helix.toml"
    file.write_text("[flow.v9]\nmax_failure_rate = 0.2\n")
    with pytest.raises(SettingsError, match=r"flow\.v9.*no such version \(v2\); v9=0 keeps it off"):
        load_settings({"HELIX_CONFIG": str(file), "HELIX_ROOT": str(tmp_path)})


def test_a_block_of_a_version_that_cannot_be_read_is_refused_with_every_reason(tmp_path: Path) -> None:
    file = tmp_path / "helix.toml"
    file.write_text("[flow.v9]\nmax_failure_rate = 2\nretries = 1\n")
    with pytest.raises(SettingsError) as refused:
        load_settings({"HELIX_CONFIG": str(file), "HELIX_ROOT": str(tmp_path)})
    share, retries = refused.value.problems
    assert "flow.v9.max_failure_rate: must be a share of all turns" in share
    assert "flow.v9.retries: no such setting" in retries
