"""Turns obey the policy file: a relay that reads it, real workers that read it from the store."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api_client.client import TurnsClient
from api_client.contract.errors import SettingsError
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, Turn
from api_client.policies.stored_policies import clear_policies
from api_client.web.app.relay_server import create_app
from tests.installation import Installation, environ_of, turns, web
from tests.installation import asked as message
from tests.replays import replay_turn
from tests.support import playing
from worker.cli import main
from worker.enforcement.policies import read_policy

SHORT = "Kurz.\n\n<!-- STEP: done -->"
SCRIPT = """
- when: words
  attempts:
    - [{say: "Diese Antwort hat viel zu viele Worte.\\n\\n<!-- STEP: done -->"}]
    - [{say: "Noch immer sind es viel zu viele Worte.\\n\\n<!-- STEP: done -->"}]
    - [{say: "Kurz.\\n\\n<!-- STEP: done -->"}]
- when: always
  attempts: [[{say: "Diese Antwort hat viel zu viele Worte.\\n\\n<!-- STEP: done -->"}]]
- when: german
  attempts:
    - - say: "Das ist nicht gut, weil es so viele Worte sind und niemand sie liest, der nicht muss.\\n\\n"
      - say: "Das ist so, und es bleibt auch so.\\n\\n<!-- STEP: done -->"
- when: no block
  attempts: [[{say: "There is no block here."}]]
- attempts: [[{say: "Kurz.\\n\\n<!-- STEP: done -->"}]]
"""
RULE = "rules:\n  - {rule: length, name: short, options: {max_words: 3}, "


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


@pytest.fixture
def scripted(installation: Installation, policy: Path) -> Settings:
    """Settings with a policy file, and workers that have none: they read policies from the store."""
    made = installation.play(SCRIPT)
    made = installation.change(models=made.models | {"other": made.models["scripted"]})
    installation.worker()
    return replace(made, policy=str(policy))


@asynccontextmanager
async def relay(settings: Settings) -> AsyncIterator[tuple[httpx2.AsyncClient, TurnsClient]]:
    client = TurnsClient(settings)
    async with web(settings, client) as http:
        yield http, client


async def asked(http: httpx2.AsyncClient, client: TurnsClient, text: str, **more: Any) -> Turn:
    body = {"model": "scripted", "messages": [{"role": "user", "content": text}], **more}
    answer = await http.post("/v1/turns", json=body)
    assert answer.status_code == 202, answer.text
    return await client.reader.await_result(answer.json()["turn_id"], timeout=60)


#: What a file says of the rule, how the turn ends, after how many attempts.
CASES = [
    ("}", Outcome.PASSED_AFTER_RETRY, 3),
    ("reactions: [fail]}", Outcome.FAILED, 1),
    ("reactions: [warn]}", Outcome.PASSED, 1),
    ("severity: warning}", Outcome.PASSED, 1),
    ("max_attempts: 1}", Outcome.FAILED, 1),
    ("reactions: [retry, warn], max_attempts: 1}", Outcome.PASSED, 1),
    ("applies_to: {models: [other]}}", Outcome.PASSED, 1),
    ("applies_to: {routes: [chat]}}", Outcome.PASSED, 1),
    ("applies_to: {owners: [anna]}}", Outcome.PASSED, 1),
    ("applies_to: {content: [code]}}", Outcome.PASSED, 1),
    ("on_request: true}", Outcome.PASSED, 1),
    ("shadow: true}", Outcome.PASSED, 1),
    ("}\nmax_attempts: 2", Outcome.FAILED, 2),
    ("}\n  - {rule: step_marker, reactions: [repair]}", Outcome.PASSED_AFTER_RETRY, 3),
]


async def test_what_the_file_says_of_a_rule_is_what_happens(scripted: Settings, policy: Path) -> None:
    policy.write_text("rules: []")
    async with relay(scripted) as (http, client):
        for rest, outcome, attempts in CASES:
            policy.write_text(RULE + rest)
            turn = await asked(http, client, "words")
            assert (rest, turn.outcome, turn.attempt) == (rest, outcome, attempts)
            shown = (await http.get(f"/v1/turns/{turn.turn_id}")).json()
            assert shown["policy"] == read_policy(policy.read_text()).hash


async def test_answers_without_the_block_that_a_rule_wants_end_the_turn_honestly(
    scripted: Settings, policy: Path
) -> None:
    policy.write_text("rules:\n  - {rule: json_schema, options: {where: fence, schema: {type: object}}}")
    async with relay(scripted) as (http, client):
        turn = await asked(http, client, "no block")
        assert (turn.outcome, turn.attempt, turn.strikes) == (Outcome.FAILED, 3, 0)
        assert turn.error
        assert [issue.code for issue in turn.error.issues] == ["NO_JSON"]


async def test_reactions_of_the_real_chain_escalate_to_a_person(scripted: Settings, policy: Path) -> None:
    policy.write_text(RULE + "reactions: [escalate]}")
    async with relay(scripted) as (http, client):
        body = {"model": "scripted", "messages": [{"role": "user", "content": "always"}]}
        turn_id = (await http.post("/v1/turns", json=body)).json()["turn_id"]
        kinds = []
        async for event in client.reader.follow_turn(turn_id):
            kinds.append(event.kind if event else "")
            if "turn.suspended" in kinds:
                break
        assert (await client.inbox.decide_turn(turn_id, "approve", by="test")).request.attached
        assert (await client.reader.await_result(turn_id, timeout=60)).outcome is Outcome.PASSED_BY_HUMAN


async def test_a_changed_file_rules_the_next_turn_and_a_broken_one_leaves_the_old_in_force(
    scripted: Settings, policy: Path
) -> None:
    policy.write_text(RULE + "reactions: [fail]}")
    async with relay(scripted) as (http, client):
        first = await asked(http, client, "always")
        policy.write_text(RULE + "reactions: [warn]}")
        second = await asked(http, client, "always")
        assert (first.outcome, second.outcome) == (Outcome.FAILED, Outcome.PASSED)
        assert first.to_dict()["policy"] != second.to_dict()["policy"]
        assert "policy" not in (await http.get("/readyz")).json()
        for broken in ("rules:\n  - {rule: length, name: short, options: {max_word: 3}}", "rules: [", "\xff"):
            policy.write_text(broken)
            assert (await asked(http, client, "always")).to_dict()["policy"] == second.to_dict()["policy"]
            assert "doctor" in (await http.get("/readyz")).json()["policy"]
        policy.unlink()
        assert (await asked(http, client, "always")).to_dict()["policy"] == second.to_dict()["policy"]
        policy.write_text(RULE + "reactions: [fail]}")
        assert (await asked(http, client, "always")).to_dict()["policy"] == first.to_dict()["policy"]
        assert "policy" not in (await http.get("/readyz")).json()


async def test_a_turn_in_flight_keeps_the_policy_it_was_submitted_with(
    installation: Installation, policy: Path
) -> None:
    scripted = replace(playing(installation.settings, SCRIPT), policy=str(policy))
    policy.write_text(RULE + "reactions: [fail]}")
    async with TurnsClient(scripted) as client:
        turn_id = await client.submitter.submit(message("always"))
        policy.write_text(RULE + "reactions: [warn]}")
        later = await client.submitter.submit(message("always"))
        installation.worker(settings=settings_of_worker(scripted))
        assert (await client.reader.await_result(turn_id, timeout=60)).outcome is Outcome.FAILED
        assert (await client.reader.await_result(later, timeout=60)).outcome is Outcome.PASSED


def settings_of_worker(settings: Settings) -> Settings:
    return replace(settings, policy="")


async def test_a_request_adds_offered_rules_and_leaves_out_active_ones(scripted: Settings, policy: Path) -> None:
    policy.write_text(f"{RULE}}}\n  - {{rule: language, name: english, options: {{expect: en}}, on_request: true}}")
    async with relay(scripted) as (http, client):
        assert (await asked(http, client, "words", validators=[])).attempt == 1
        added = await asked(http, client, "german", validators=["english", "links"], max_attempts=1)
        assert (added.outcome, [issue.validator for issue in added.error.issues]) == (Outcome.FAILED, ["english"])
        body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "validators": ["shorts"]}
        refused = (await http.post("/v1/turns", json=body)).json()["error"]
        assert (refused["code"], refused["param"]) == ("unknown_validator", "validators[0]")
        assert "did you mean 'short'?" in refused["message"]
        assert "english" in refused["message"]
        ordered = await asked(http, client, "always", policy={"short": ["warn"]})
        assert ordered.outcome is Outcome.PASSED


async def test_the_blocks_of_a_model_and_of_an_owner_name_their_own_files(scripted: Settings, tmp_path: Path) -> None:
    for name, reaction in (("all", "fail"), ("model", "warn"), ("anna", "fail")):
        (tmp_path / f"{name}.yaml").write_text(f"{RULE}reactions: [{reaction}]}}\nlocale: en")
    named = replace(
        scripted,
        policy=str(tmp_path / "all.yaml"),
        model_settings={"other": {"policy": str(tmp_path / "model.yaml")}},
        owner_settings={"anna": {"policy": str(tmp_path / "anna.yaml")}},
    )
    async with TurnsClient(named) as client:
        found = [
            named.find_policy(model, owner).removesuffix(".yaml").rpartition("/")[2]
            for model, owner in (("scripted", ""), ("other", ""), ("other", "anna"), ("scripted", "bob"))
        ]
        assert found == ["all", "model", "anna", "all"]
        failed = await client.reader.await_result(await client.submitter.submit(message("always")), timeout=60)
        passed = await client.reader.await_result(
            await client.submitter.submit(replace(message("always"), model="other")), timeout=60
        )
        assert (failed.outcome, passed.outcome) == (Outcome.FAILED, Outcome.PASSED)


def test_a_relay_and_a_command_refuse_a_file_that_was_never_usable_with_its_line_and_column(
    settings: Settings, policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    broken = replace(settings, policy=str(policy))
    policy.write_text("rules:\n  - step_markr\n")
    with pytest.raises(SettingsError, match=r"policy.yaml:2:5: rules\[1\]: unknown validator 'step_markr'; did you"):
        create_app(broken)
    for name, value in environ_of(broken).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main(["submit", "Hallo"])
    assert ended.value.code == 2
    assert f"{policy}:2:5: rules[1]: unknown validator" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["doctor", "--json"])
    told = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert told["policy"]["state"] == "wrong"
    assert ":2:5:" in told["policy"]["message"]


async def test_a_policy_stays_in_the_store_while_any_turn_needs_it_and_goes_with_the_last(
    settings: Settings, policy: Path
) -> None:
    kept = replace(settings, policy=str(policy), prompt_template="none")
    policy.write_text(RULE + "}")
    keys = Keys(settings.namespace)
    async with TurnsClient(kept) as client:
        turn_id = await client.submitter.submit(message("x"))
        policy_hash = (await client.reader.read_turn(turn_id)).to_dict()["policy"]
        redis = client.store.redis
        assert await redis.hget(keys.policies, policy_hash) == policy.read_bytes()
        assert await redis.ttl(keys.policies) == -1
        await redis.zadd(keys.key_named("policies:used"), {policy_hash: 1, "without a turn": 1})
        await redis.hset(keys.policies, "without a turn", "rules: []")
        assert await clear_policies(client.store, dry_run=True) == 1
        assert await clear_policies(client.store, dry_run=False) == 1
        assert await redis.hkeys(keys.policies) == [policy_hash.encode()]
        await client.canceller.cancel(turn_id)
        await client.store.redis.zadd(keys.key_named("policies:used"), {policy_hash: 1})
        assert await clear_policies(client.store, dry_run=False) == 1
        assert await redis.exists(keys.policies, keys.key_named("policies:used")) == 0
        # The store lost it, the process knows it: the next submit puts it there again.
        await client.submitter.submit(message("y"))
        assert await redis.hexists(keys.policies, policy_hash)
        await redis.zadd(keys.key_named("policies:used"), {policy_hash: 1})
        await client.submitter.submit(message("z"))
        assert (await redis.zscore(keys.key_named("policies:used"), policy_hash) or 0) > 1, "it is needed still"


async def test_a_replay_keeps_its_policy_and_gets_todays_where_the_store_has_it_no_more(
    settings: Settings, policy: Path
) -> None:
    policy.write_text(RULE + "}")
    kept = replace(settings, policy=str(policy))
    keys = Keys(settings.namespace)
    async with TurnsClient(kept) as client:
        ids = [await client.submitter.submit(message("x", name)) for name in ("a", "b")]
        for turn_id in ids:
            await client.canceller.cancel(turn_id)
        before = (await client.reader.read_turn(ids[0])).to_dict()["policy"]
    policy.write_text(RULE + "severity: warning}")
    async with TurnsClient(kept) as client:
        again = await client.reader.read_turn(await replay_turn(client, ids[0]))
        assert again.to_dict()["policy"] == before
        await client.store.redis.hdel(keys.policies, before)
        today = await client.reader.read_turn(await replay_turn(client, ids[1]))
        assert today.to_dict()["policy"] not in {"", before}
        assert today.request.policy == {"short": ("warn",)}


async def test_a_policy_that_the_store_lost_ends_its_turn_with_words_for_the_operator(
    installation: Installation, policy: Path
) -> None:
    installation.play(SCRIPT)
    policy.write_text(RULE + "}")
    async with TurnsClient(replace(installation.settings, policy=str(policy))) as client:
        turn_id = await client.submitter.submit(message("x"))
        await client.store.redis.delete(installation.keys.policies)
        installation.worker()
        turn = await client.reader.await_result(turn_id, timeout=60)
        assert turn.outcome is Outcome.ERROR
        assert "is not in the store" in turn.error.reason


async def test_a_repeat_of_a_request_finds_its_turn_though_the_file_changed(settings: Settings, policy: Path) -> None:
    policy.write_text(RULE + "}")
    body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}
    async with relay(replace(settings, policy=str(policy))) as (http, _):
        once = {"idempotency-key": "once"}
        first = (await http.post("/v1/turns", json=body, headers=once)).json()
        policy.write_text("rules: [{rule: links, severity: warning}]\nmax_attempts: 2\nlocale: en")
        again = await http.post("/v1/turns", json=body, headers=once)
        assert (again.status_code, again.json()) == (202, first)


async def test_figures_know_the_policy(scripted: Settings, policy: Path) -> None:
    policy.write_text(RULE + "}")
    async with relay(scripted) as (http, client):
        turn = await asked(http, client, "words")
        policy_hash = turn.to_dict()["policy"]
        (row,) = (await client.figures.read_retry_rate(3600, "policy")).rows
        assert (row.name, row.rejected, row.validated) == (policy_hash, 1, 1)
        (told,) = (await client.figures.read_stats(3600, "policy")).rows
        assert (told.name, told.turns, told.asked_again) == (policy_hash, 1, 1)
        assert (
            f'helix_policy_finished_total{{asked_again="1",outcome="passed_after_retry",policy="{policy_hash}"'
            in (await http.get("/metrics")).text
        )


async def test_a_submit_killed_between_policy_and_turn_leaves_a_policy_that_the_next_submit_uses_and_gc_removes(
    installation: Installation, policy: Path
) -> None:
    policy.write_text(RULE + "reactions: [fail]}")
    kept = replace(playing(installation.settings, SCRIPT), policy=str(policy))
    command = turns("submit", "always", "--session", "s")
    killed = await asyncio.to_thread(
        subprocess.run,
        command,
        env=environ_of(kept, HELIX_FAILPOINT="policy.kept=kill"),
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    keys, policy_hash = installation.keys, read_policy(policy.read_text()).hash
    async with TurnsClient(kept) as client:
        redis = client.store.redis
        assert await redis.hexists(keys.policies, policy_hash)
        assert await redis.zcard(keys.due) == 0, "there is no turn"
        installation.worker()
        turn = await client.reader.await_result(await client.submitter.submit(message("always", "s")), timeout=60)
        assert (turn.outcome, turn.labels["policy"]) == (Outcome.FAILED, policy_hash)
        await redis.delete(keys.finished)
        await redis.zadd(keys.key_named("policies:used"), dict.fromkeys(await redis.hkeys(keys.policies), 1))
        await clear_policies(client.store, dry_run=False)
        assert await redis.exists(keys.policies) == 0
