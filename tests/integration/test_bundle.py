"""``turns turn export`` and ``turns turn bundle`` over a real turn: all is there, and nothing that must not be."""

import json
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from api_client.contract.settings.redaction import list_secrets, make_redactor
from tests.installation import Installation, asked, environ_of, turns
from worker.cli.turns.bundle import hide_texts

SECRET = "q7-very-secret-key"
PROMPT = "Schreibe ein ADR über Flieder und Zimt"
SCRIPT = """
runs:
  - steps: [{output: "Der Entwurf riecht nach Zimt."}, {done: true}]
  - steps: [{output: "Flieder.\\n<!-- STEP: what -->"}, {done: true}]
"""


@pytest.fixture
async def turn_id(installation: Installation, tmp_path: Path) -> str:
    installation.worker()
    client = installation.client
    request = asked(PROMPT, "s", max_attempts=2)
    turn_id = await client.submitter.submit(request)
    await client.reader.await_result(turn_id, timeout=60)
    return turn_id


def run(settings: Settings, folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = environ_of(replace(settings, openai_api_key=SECRET), **more)
    return subprocess.run(turns(*arguments), env=environ, cwd=folder, capture_output=True, text=True, check=False)


def unpacked(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


async def test_a_turn_is_exported_and_bundled(settings: Settings, turn_id: str, tmp_path: Path) -> None:
    told = json.loads(run(settings, tmp_path, "turn", "export", turn_id).stdout)
    assert told["turn"]["prompt"] == PROMPT
    assert [event["seq"] for event in told["events"]] == list(range(1, told["turn"]["seq"] + 1))
    assert told["attempts"]

    logs = settings.root / ".helix" / "logs"
    logs.mkdir()
    (logs / "web.log").write_text(
        f"2026-01-01T00:00:00Z turn.submitted turn_id={turn_id} key={SECRET}\n"
        "Traceback ...\n2026-01-01T00:00:01Z another line\n"
    )
    done = run(settings, tmp_path, "turn", "bundle", turn_id, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    path = tmp_path / json.loads(done.stdout)["path"]
    assert path.stat().st_mode & 0o777 == 0o600
    files = unpacked(path)
    assert set(files) == {"turn.json", "settings.json", "versions.json", "doctor.json", "logs.txt"}
    everything = "\n".join(files.values())
    for secret in (PROMPT, "Flieder", "Zimt", SECRET, told["turn"]["response"]):
        assert secret not in everything, secret
    record = json.loads(files["turn.json"])
    assert record["turn"]["outcome"] == told["turn"]["outcome"]
    assert record["turn"]["prompt"] == f"<{len(PROMPT)} characters>"
    assert [event["kind"] for event in record["events"]] == [event["kind"] for event in told["events"]]
    assert files["logs.txt"] == (
        f"web.log: 2026-01-01T00:00:00Z turn.submitted turn_id={turn_id} key=***\nweb.log: Traceback ...\n"
    )
    assert "another line" not in files["logs.txt"]
    assert json.loads(files["versions.json"])["celery"].startswith("5.7")
    keys = {row["name"]: row for row in json.loads(files["settings.json"])}
    assert keys["HELIX_OPENAI_API_KEY"]["value"] == "***"
    assert keys["HELIX_OPENAI_API_KEY"]["origin"] == "environment"
    assert {finding["check"] for finding in json.loads(files["doctor.json"])} >= {"store", "sessions"}

    run(settings, tmp_path, "turn", "bundle", turn_id, "--with-prompts", "-o", "full.zip")
    full = unpacked(tmp_path / "full.zip")
    assert json.loads(full["turn.json"])["turn"]["prompt"] == PROMPT
    assert SECRET not in "\n".join(full.values())


def test_a_turn_that_does_not_exist_leaves_no_file(settings: Settings, tmp_path: Path) -> None:
    done = run(settings, tmp_path, "turn", "bundle", "turn-" + "0" * 32, "-o", "x.zip")
    assert (done.returncode, (tmp_path / "x.zip").exists()) == (1, False)


async def test_a_file_that_cannot_be_written_is_named_and_a_dash_is_standard_output(
    settings: Settings, turn_id: str, tmp_path: Path
) -> None:
    for command in ("export", "bundle"):
        done = run(settings, tmp_path, "turn", command, turn_id, "-o", "gone/x")
        assert done.returncode == 2
        assert done.stderr == "turns: gone/x: cannot be written: No such file or directory\n"
    assert (
        json.loads(run(settings, tmp_path, "turn", "export", turn_id, "-o", "-").stdout)["turn"]["turn_id"] == turn_id
    )


async def test_an_export_to_the_device_of_standard_output_is_appended_where_a_shell_appends(
    settings: Settings, turn_id: str, tmp_path: Path
) -> None:
    path, environ = tmp_path / "all.json", environ_of(settings)
    path.write_text("[1]\n")
    with path.open("a") as out:
        for words in ((turn_id, "--json"), ("--rejected",)):
            command = turns("turn", "export", *words, "-o", "/dev/stdout")
            subprocess.run(command, env=environ, stdout=out, check=True)
    first, exported = map(json.loads, path.read_text().splitlines())
    assert (first, exported["turn"]["turn_id"]) == ([1], turn_id)


def test_secrets_are_masked_by_value_and_by_look() -> None:
    settings = Settings(
        store_url="redis://helix:pass%21word@db:6379/0",
        broker_url="sentinel://:sentinelpw@h:1,h:2/m/0",
        api_keys=("longer-key-1", "ab"),
        claude_api_key="sk-ant-secret-of-ours",
    )
    assert list_secrets(settings) == ["sk-ant-secret-of-ours", "longer-key-1", "pass%21word", "sentinelpw", "pass!word"]
    redact = make_redactor(settings)
    assert redact("x pass!word y longer-key-1 ab") == "x *** y *** ab"
    assert redact("amqp://u:hunter2@h/x Bearer abcdefgh123 sk-proj_0123456789abcd") == (
        "amqp://u:***@h/x Bearer *** sk-***"
    )


def test_of_an_unknown_text_only_its_length_is_told() -> None:
    told = hide_texts(
        {"outcome": "failed", "text": "geheim", "new_field": ["geheim"], "n": 1, "metadata": {"name": "geheim"}}
    )
    assert told == {
        "outcome": "failed",
        "text": "<6 characters>",
        "new_field": ["<6 characters>"],
        "n": 1,
        "metadata": {"name": "<6 characters>"},
    }
