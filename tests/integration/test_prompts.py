"""Session templates through the queue: read at the submit, kept under their hash, found by workers on other hosts."""

from dataclasses import replace
from pathlib import Path

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.policies.prompts import SessionTemplate
from api_client.policies.stored_policies import clear_policies
from tests.installation import Installation, asked

SCRIPT = '- attempts: [[{say: "Kurz.\\n\\n<!-- STEP: done -->"}]]\n'


def told(settings: Settings, session: str) -> str | None:
    path = settings.sessions_dir / session / "CLAUDE.md"
    return path.read_text() if path.exists() else None


async def answered(client: TurnsClient, session: str, model: str = "scripted", locale: str = "de") -> Turn:
    turn_id = await client.submitter.submit(replace(asked("frage", session), model=model, locale=locale))
    return await client.reader.await_result(turn_id, timeout=60)


async def test_each_turn_gets_the_template_of_its_model_version_and_language_as_it_was_at_the_submit(
    installation: Installation, tmp_path: Path
) -> None:
    made = installation.play(SCRIPT)
    made = installation.change(models=made.models | {"own": made.models["scripted"], "bare": made.models["scripted"]})
    installation.worker()  # it knows none of the files below
    own, third = tmp_path / "own.md.j2", tmp_path / "v3.md.j2"
    own.write_text("Eigene: {{ session_id }}")
    third.write_text("Dritte: {{ session_id }}")
    asks = replace(made, model_settings={"own": {"prompt_template": str(own)}, "bare": {"prompt_template": "none"}})
    async with TurnsClient(asks) as client:
        german, english = await answered(client, "german"), await answered(client, "english", locale="en")
        mine, none = await answered(client, "mine", "own"), await answered(client, "none", "bare")
        own.write_text("Neu: {{ session_id }}")
        newer = await answered(client, "newer", "own")
        stored = await client.store.redis.hget(installation.keys.policies, mine.request.template)
        assert stored == b"Eigene: {{ session_id }}"
    async with TurnsClient(replace(asks, flow_settings={"v2": {"prompt_template": str(third)}})) as client:
        version = await answered(client, "version", "own")
    assert "Deine Aufgabe" in (told(made, "german") or "")
    assert "Your task" in (told(made, "english") or "")
    assert (told(made, "mine"), told(made, "newer")) == ("Eigene: mine", "Neu: newer")
    assert (told(made, "version"), told(made, "none")) == ("Dritte: version", None)
    assert mine.request.template == SessionTemplate.of_text("Eigene: {{ session_id }}").hash
    assert none.to_dict()["prompt_template"] == "none"
    assert len({turn.request.template for turn in (german, english, mine, none, newer, version)}) == 6


async def test_a_turn_whose_template_the_store_lost_gets_the_workers_own(installation: Installation) -> None:
    installation.play(SCRIPT)
    client = installation.client
    turn_id = await client.submitter.submit(asked("frage", "s"))
    keys, redis = installation.keys, client.store.redis
    [template] = await redis.hkeys(keys.policies)
    await redis.zadd(keys.key_named("policies:used"), {template: 1})
    assert await clear_policies(client.store, dry_run=False) == 0, "an unfinished turn has it"
    await redis.delete(keys.policies)
    installation.worker()
    turn = await client.reader.await_result(turn_id, timeout=60)
    assert turn.outcome
    assert turn.outcome.success
    assert "Your task" in (told(installation.settings, "s") or "")


async def test_a_turn_without_a_policy_file_has_the_hash_of_the_default_policy(installation: Installation) -> None:
    from api_client.contract.policy import settings_policy
    from api_client.contract.validator_names import BUILT_IN

    installation.play(SCRIPT)
    installation.worker()
    client = installation.client
    turn = await answered(client, "s")
    rows = (await client.figures.read_stats(3600, "policy")).rows
    assert turn.labels["policy"] == turn.to_dict()["policy"] == settings_policy(BUILT_IN).hash
    assert [row.name for row in rows] == [settings_policy(BUILT_IN).hash]
