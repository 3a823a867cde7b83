"""An older worker beside a newer one: it leaves what it does not know, and everybody sees who is old."""

import json
import os
from dataclasses import replace
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome
from tests.installation import Installation, asked, web
from tests.integration.engine import FIRST, GOOD, JUDGE, Bench, says
from tests.integration.test_uneven_workers import another_reports
from tests.support import wait_until

_SABOTAGE, _ROOT = Path(__file__).parents[1] / "fault" / "sabotage", Path(__file__).parents[2]
#: The beginning of a worker's command: one without a validator and a step of scripts that this version has.
OLDER = ["env", "HELIX_AGENT_BREAK=older", f"PYTHONPATH={_SABOTAGE}{os.pathsep}{_ROOT}"]
_PLAIN = f"- attempts: [[say: {json.dumps(GOOD)}]]\n"
_LATER = f"- attempts: [[{{note: later}}, {{say: {json.dumps(GOOD)}}}]]\n"


async def test_an_older_worker_leaves_what_it_does_not_know_to_a_newer_one(
    installation: Installation, tmp_path: Path
) -> None:
    script = tmp_path / "later.yaml"
    script.write_text(_PLAIN)
    installation.play(_PLAIN)
    models = installation.settings.models | {"later": f"scripted:{script}"}
    installation.change(models=models, run_slots=4)
    old = installation.worker(within=OLDER)
    script.write_text(_LATER)  # a word that the worker which is up does not know
    turn_ids = {
        kind: [await installation.ask(session=f"{kind}{number}", **more) for number in range(8)]
        for kind, more in {
            "known": {"validators": ("step_marker",)},
            "rule": {"validators": ("step_marker", "file_existence")},
            "step": {"model": "later", "validators": ("step_marker",)},
        }.items()
    }
    client = installation.client
    ended = [await installation.result(turn_id) for turn_id in turn_ids["known"]]
    assert {turn.outcome for turn in ended} == {Outcome.PASSED}, "it does what it knows, while others wait"

    async def lacks() -> bool:
        return all([(await client.reader.read_turn(turn_id)).lacks for turn_id in turn_ids["rule"]])

    await wait_until(lacks)
    assert {(await client.reader.read_turn(each)).outcome for each in (*turn_ids["rule"], *turn_ids["step"])} == {None}
    waits = {each.wait.reason.value: each for each in (await client.workers.read_state()).waits}
    assert "file_existence" in waits["unfit"].wait.said or "no such step 'note'" in waits["unfit"].wait.said
    shown = installation.run("turn", "show", turn_ids["rule"][0])
    assert "file_existence" in shown.stdout
    new = installation.worker(within=["env"])
    ended = [await installation.result(turn_id) for turn_id in (*turn_ids["rule"], *turn_ids["step"])]
    assert {turn.outcome for turn in ended} == {Outcome.PASSED}
    judges = [(await client.reader.read_attempts(turn.turn_id))[-1].worker for turn in ended[8:]]
    assert all(map(new.named, judges))
    listed = json.loads(installation.run("worker", "list", "--json").stdout)["workers"]
    assert len({line["version"] for line in listed}) == 2
    async with web(installation.settings) as http:
        pages = [(await http.get(path)).text for path in ("/overview", "/workers")]
    said = [*pages, installation.run("doctor").stdout]
    assert ["0.1.0+older" in text for text in said] == [True, True, True]
    assert old.process.poll() is None


async def test_a_turn_whose_record_has_a_later_form_is_left_to_later_workers(bench: Bench) -> None:
    turn_id = await bench.submit(says(GOOD))
    bench.store.hset(bench.keys.turn(turn_id), "v", 2)
    bench.carry_out(turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert (turn.state, turn.delivery, turn.outcome) == ("queued", 0, None)
    assert list(turn.lacks.values()) == ["it is older than the turn, whose record has form 2; it knows 1"]
    bench.store.hset(bench.keys.turn(turn_id), "v", 1)
    bench.carry_out(turn_id)
    assert (await bench.client.reader.read_turn(turn_id)).outcome == Outcome.PASSED


async def test_a_rule_that_no_worker_knows_makes_the_turn_wait_and_not_end(bench: Bench) -> None:
    """Where another worker is there, and where none is; a set-up that is wrong ends it as before."""
    for number, others in enumerate((False, True)):
        if others:
            another_reports(bench.settings)
        session = f"s{number}"
        turn_id = await bench.submit(says(GOOD), session_id=session)
        stored = json.loads(bench.store.hget(bench.keys.turn(turn_id), "request"))
        stored["validators"] = ["step_marker", "rule_of_tomorrow"]
        bench.store.hset(bench.keys.turn(turn_id), "request", json.dumps(stored))
        bench.carry_out(turn_id, session_id=session)
        turn = await bench.client.reader.read_turn(turn_id)
        assert (turn.state, turn.outcome) == ("ran", None)
        bench.store.hset(bench.keys.turn(turn_id), "not_before", 0)
        bench.carry_out(turn_id, link=JUDGE, session_id=session)
        turn = await bench.client.reader.read_turn(turn_id)
        assert turn.outcome is None
        assert list(turn.lacks.values()) == ["it has no validator 'rule_of_tomorrow'"]


async def test_a_policy_with_a_word_of_tomorrow_makes_the_turn_wait(bench: Bench, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [step_marker]\n")
    async with TurnsClient(replace(bench.settings, policy=str(policy))) as client:
        bench.runner.plays += [says(GOOD)]
        turn_id = await client.submitter.submit(asked("x", "s"))
    name = (await bench.client.reader.read_turn(turn_id)).labels["policy"]
    bench.store.hset(bench.keys.policies, name, "rules: [step_marker]\ncolour: blue\n")
    bench.carry_out(turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    assert turn.outcome is None
    bench.store.hset(bench.keys.turn(turn_id), "not_before", 0)
    bench.carry_out(turn_id, link=JUDGE if turn.state == "ran" else FIRST)
    [lack] = (await bench.client.reader.read_turn(turn_id)).lacks.values()
    assert "colour" in lack
