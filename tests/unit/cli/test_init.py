"""``turns init`` writes settings that load, asks only on a terminal, and replaces nothing unasked."""

import contextlib
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api_client.contract.errors import SettingsError
from api_client.contract.settings import load_settings
from tests.installation import turns
from tests.support import wait_for
from worker.cli import cli
from worker.cli.installation.init import AGENTS, PRESETS
from worker.enforcement.policies import read_policy


def init(root: Path, *arguments: str, **environ: str) -> Result:
    words = ["init", "--root", str(root), "--no-test", *arguments]
    return CliRunner(env={"HELIX_ROOT": "", "HELIX_CONFIG": "", **environ}).invoke(cli, words)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_writes_settings_that_load_and_rules_that_can_be_used(preset: str, tmp_path: Path) -> None:
    done = init(tmp_path, "--agent", "claude", "--rules", preset, "--model", "opus", "--json")
    assert done.exit_code == 0, done.output
    settings = load_settings({"HELIX_ROOT": str(tmp_path)})
    [(name, runner)] = settings.models.items()
    assert runner == "claude_cli:opus"
    assert [Path(path).name for path in json.loads(done.stdout)["files"]][-1] == "helix.toml"
    if preset == "consultant":
        assert (name, settings.policy, settings.prompt_template) == ("helix-consultant", "", "")
    else:
        assert settings.prompt_template == "none"
        assert read_policy(Path(settings.policy).read_text()).rules


@pytest.mark.parametrize("agent", AGENTS)
def test_each_agent_becomes_the_only_model_with_what_it_needs(agent: str, tmp_path: Path) -> None:
    (key := tmp_path / "key").write_text("sk-1")
    needs = {"model": ["--model", "m1"], "url": ["--url", "http://127.0.0.1:9/v1"]}
    given = [word for need in AGENTS[agent].needs for word in needs[need]]
    given += ["--key-file", str(key)] if AGENTS[agent].key_variable else []
    assert init(tmp_path, "--agent", agent, "--rules", "chat", *given).exit_code == 0
    settings = load_settings({"HELIX_ROOT": str(tmp_path)})
    assert [*settings.models] == [agent]
    if AGENTS[agent].needs:
        assert settings.models[agent].endswith(":m1")
        assert settings.for_model(agent).openai_api_key == "sk-1"
        assert init(tmp_path, "--agent", agent, "--rules", "chat").exit_code == 2, "nothing to ask on"


def test_settings_that_cannot_be_used_replace_none(tmp_path: Path) -> None:
    assert init(tmp_path, "--agent", "scripted", "--rules", "chat").exit_code == 0
    before = (file := tmp_path / ".helix" / "helix.toml").read_text()
    wrong = ["--model", "m1", "--url", "no address"]
    assert isinstance(
        init(tmp_path, "--agent", "openai", "--rules", "chat", "--force", *wrong).exception, SettingsError
    )
    assert file.read_text() == before


@pytest.mark.parametrize("agent", sorted({*AGENTS} - {"scripted", "openai"}))
def test_an_agent_that_is_not_installed_is_not_waited_for(agent: str, tmp_path: Path) -> None:
    given = ["--agent", agent, "--rules", "chat", "--model", "m1", "--url", "http://127.0.0.1:9/v1", "--root"]
    environ = {"HELIX_ROOT": "", "HELIX_CONFIG": "", "PATH": str(tmp_path)}
    done = CliRunner(env=environ).invoke(cli, ["init", *given, str(tmp_path / "p")])
    assert done.exit_code == 1, done.output
    assert "the agent was not asked: " in done.output
    assert "no such program" in done.output


def test_nothing_is_replaced_unasked_and_the_same_text_may_be_written_again(tmp_path: Path) -> None:
    assert init(tmp_path, "--agent", "scripted", "--rules", "chat").exit_code == 0
    file = tmp_path / ".helix" / "helix.toml"
    before = file.read_text()
    assert init(tmp_path, "--agent", "scripted", "--rules", "chat").exit_code == 0
    refused = init(tmp_path, "--agent", "scripted", "--rules", "json")
    assert (refused.exit_code, file.read_text()) == (2, before)
    assert "helix.toml: exists already; --force replaces it" in refused.output
    assert not (tmp_path / ".helix" / "json.yaml").exists()
    assert init(tmp_path, "--agent", "scripted", "--rules", "json", "--force").exit_code == 0
    assert 'policy = "json.yaml"' in file.read_text()


def test_a_settings_file_that_is_not_utf_8_is_replaced_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / ".helix" / "helix.toml"
    file.parent.mkdir()
    file.write_bytes(b'namespace = "\xfc"\n')
    refused = init(tmp_path, "--agent", "scripted", "--rules", "chat")
    assert (refused.exit_code, "exists already" in refused.output) == (2, True), refused.exception
    assert init(tmp_path, "--agent", "scripted", "--rules", "chat", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rules", "chat"), "no terminal to ask on: give --agent scripted|claude|"),
        (("--agent", "scripted"), "no terminal to ask on: give --rules consultant|chat|"),
        (("--agent", "openai", "--rules", "chat", "--url", "http://x"), "the agent openai needs --model"),
    ],
)
def test_without_a_terminal_what_is_missing_is_named_and_nothing_written(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = init(tmp_path, *arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert not (tmp_path / ".helix").exists()


def test_the_next_commands_lead_to_where_it_was_written_and_to_open_webui(tmp_path: Path) -> None:
    done = init(tmp_path / "a b", "--agent", "scripted", "--rules", "chat", "--openwebui", "--json")
    first, key, environment, up = json.loads(done.stdout)["next"]
    assert first == f"export HELIX_ROOT='{tmp_path}/a b'"
    assert (key, up) == ("turns keys create webui --forwards-users", "turns up")
    assert environment.startswith("turns openwebui print env")
    assert json.loads(
        init(tmp_path, "--agent", "scripted", "--rules", "chat", "--json", HELIX_ROOT=str(tmp_path)).stdout
    )["next"] == ["turns up"]


def test_on_a_terminal_it_asks_for_what_is_not_given(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb", "HELIX_ROOT": str(tmp_path)}
    process = subprocess.Popen(turns("init", "--no-test"), env=environ, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    os.set_blocking(master, False)
    seen = b""

    def asked(text: bytes) -> bool:
        nonlocal seen
        with contextlib.suppress(OSError):  # nothing yet, or it has ended
            seen += os.read(master, 65536)
        return text in seen

    for question, answer in ((b"Agent", "scripted"), (b"Rules", "chat"), (b"Folder", ""), (b"Open WebUI", "n")):
        wait_for(lambda question=question: asked(question))  # type: ignore[misc]
        seen = b""
        os.write(master, f"{answer}\n".encode())
    wait_for(lambda: asked(b"Next:"))
    assert process.wait(60) == 0
    os.close(master)
    assert load_settings({"HELIX_ROOT": str(tmp_path)}).models == {"scripted": "scripted"}
