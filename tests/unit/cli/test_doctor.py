"""What ``turns doctor`` says of an installation."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from api_client.contract.settings import Settings
from worker.cli.doctor import MEASURED, box, claude, doctor, judge_hooks, key, rights, sessions, store, version


def program(tmp_path: Path, says: str) -> str:
    path = tmp_path / "claude"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_measured_version_is_fine_and_another_one_is_told(tmp_path: Path) -> None:
    assert version(program(tmp_path, f"{MEASURED} (Claude Code)")).state == "ok"
    assert version(program(tmp_path, "9.9.9 (Claude Code)")).state == "warning"
    assert version(program(tmp_path, "")).state == "warning"


def test_a_program_that_does_not_run_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "claude"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    assert version(str(path)).state == "wrong"


def test_a_missing_program_ends_the_look_at_it(tmp_path: Path) -> None:
    (finding,) = claude(Settings(root=tmp_path, claude_path="no-such-claude"))
    assert (finding.check, finding.state) == ("claude", "wrong")


def test_root_may_not_bypass_permissions(tmp_path: Path) -> None:
    settings = Settings(root=tmp_path, claude_permission_mode="bypassPermissions")
    assert rights(settings, 0).state == "wrong"
    assert rights(settings, 1000).state == "ok"
    assert rights(Settings(root=tmp_path), 0).state == "ok"


@pytest.mark.parametrize(
    ("mode", "model", "state"),
    [("auto", "claude_cli", "warning"), ("auto", "scripted", "ok"), ("required", "scripted", "wrong")],
)
def test_agents_without_a_box_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, model: str, state: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = box(Settings(root=tmp_path, box=mode, models={"m": model}))
    assert (finding.state, "bubblewrap is not installed" in finding.message) == (state, True)
    assert "apt-get install bubblewrap" in finding.fix


def test_a_key_from_the_workers_own_environment_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Settings(root=tmp_path, claude_env=("ANTHROPIC_AUTH_TOKEN",))
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    assert key(given).state == "warning"
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "secret")
    assert key(given).state == "ok"
    assert "secret" not in key(given).message


def test_hooks_that_left_no_mark_are_wrong() -> None:
    assert judge_hooks(["SessionStart", "SessionEnd"], "").state == "ok"
    finding = judge_hooks(["SessionEnd"], "the reason")
    assert finding.state == "wrong"
    assert "no mark of SessionStart: the reason" in finding.message


def test_a_sessions_folder_that_is_a_file_is_wrong(tmp_path: Path) -> None:
    assert sessions(Settings(root=tmp_path)).state == "ok"
    assert not (tmp_path / "projects").exists()
    (tmp_path / "projects").touch()
    assert sessions(Settings(root=tmp_path)).state == "wrong"


def test_a_store_that_does_not_answer_is_wrong_and_its_password_is_not_shown(tmp_path: Path) -> None:
    finding = store(Settings(root=tmp_path, store_url=f"unix://:hidden@{tmp_path}/none.sock"))
    assert finding.state == "wrong"
    assert "hidden" not in finding.message
    assert store(Settings(root=tmp_path)).state == "warning"


@pytest.mark.parametrize(("environ", "code"), [({}, 0), ({"HELIX_LOCALE": "fr"}, 1)])
def test_the_exit_code_says_whether_something_is_wrong(tmp_path: Path, environ: dict[str, str], code: int) -> None:
    cleared = {name: None for name in os.environ if name.startswith("HELIX_") or name == "REDIS_URL"}
    result = CliRunner().invoke(
        doctor, ["--json"], env={**cleared, "HELIX_ROOT": str(tmp_path), "HELIX_MODELS": "a=inline", **environ}
    )
    assert result.exit_code == code
    assert [finding["state"] == "wrong" for finding in json.loads(result.stdout)].count(True) == code
