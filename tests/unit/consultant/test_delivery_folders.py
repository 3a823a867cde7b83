"""What is made ready before an agent starts: nothing where it needs no folder, and each session version once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.contract.values.prompts import shipped
from worker.files.session_fence import fenced_writes, place
from worker.files.workspace import check_session_done, publish
from worker.runners.base import needs_folder
from worker.turns import folders


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(root=tmp_path, broker_url="redis://127.0.0.1:1/0", store_url="redis://127.0.0.1:1/0")


def turn(number: int = 1, delivery: int = 1) -> Turn:
    messages = tuple({"role": "user", "content": f"Frage {each}"} for each in range(number))
    request = TurnRequest(model="m", messages=messages, session_id="s")
    return Turn(turn_id=f"t0-{number}", epoch="", state=TurnState.RUNNING, request=request, delivery=delivery)


def begin(
    settings: Settings,
    of: Turn,
    attempt: int = 1,
    *,
    needed: bool = True,
    confirm: Callable[[], None] = lambda: None,
) -> Path:
    return folders.begin(settings, of, attempt, [], confirm, needed=needed, template=shipped("de"))


def session_folder(settings: Settings) -> Path:
    return settings.sessions_dir / "s"


def files(settings: Settings) -> dict[str, int]:
    """What lies in the session's folder besides deliveries, and when each file was last written."""
    folder = session_folder(settings)
    found = [path for path in folder.rglob("*") if path.is_file() and "attempts" not in path.parts]
    return {str(path.relative_to(folder)): path.stat().st_ino for path in found}


@pytest.fixture(params=["in files", "without files"])
def answered(settings: Settings, request: pytest.FixtureRequest) -> None:
    """The session has an accepted answer, of an agent that worked so."""
    with (
        fenced_writes(session_folder(settings))
        if request.param == "in files"
        else place(session_folder(settings)) as here
    ):
        assert here is not None
        publish(here, "Antwort", attempt_id="t0-1-1-1")


def test_without_need_nothing_is_made(settings: Settings) -> None:
    directory = begin(settings, turn(), needed=False)
    assert directory == session_folder(settings) / "attempts" / "t0-1-1-1"
    assert not settings.sessions_dir.exists()


@pytest.mark.usefixtures("answered")
def test_without_need_an_earlier_answer_is_no_longer_the_last_messages(settings: Settings) -> None:
    asked = []
    begin(settings, turn(2), needed=False, confirm=lambda: asked.append("whose turn it is"))
    assert not check_session_done(session_folder(settings))
    assert (session_folder(settings) / "output" / "response.md").read_text() == "Antwort"
    assert asked == ["whose turn it is"]


@pytest.mark.usefixtures("answered")
def test_who_lost_its_turn_takes_no_answer_back(settings: Settings) -> None:
    def lost() -> None:
        raise PermissionError("another worker has the turn")

    with pytest.raises(PermissionError):
        begin(settings, turn(2), needed=False, confirm=lost)
    assert check_session_done(session_folder(settings))


def test_a_further_attempt_writes_nothing_of_the_session_again(settings: Settings) -> None:
    begin(settings, turn())
    before = files(settings)
    assert {"CLAUDE.md", "status.json", "input/request.md", "context/messages.json"} == set(before)
    second = begin(settings, turn(delivery=2), 2)
    assert files(settings) == before
    assert (second / "output").is_dir()


@pytest.mark.parametrize("name", ["CLAUDE.md", "context/messages.json", "input/request.md", "status.json"])
def test_what_an_agent_changed_or_removed_is_made_ready_again(settings: Settings, name: str) -> None:
    begin(settings, turn())
    path = session_folder(settings) / name
    right = path.read_text()
    path.write_text("x" * len(right.encode()))
    begin(settings, turn(delivery=2), 2)
    if name == "input/request.md":  # the first request stays, whatever it says
        assert path.exists()
    elif name == "status.json":  # its times are new
        assert json.loads(path.read_text())["session_id"] == "s"
    else:
        assert path.read_text() == right
    path.unlink()
    begin(settings, turn(delivery=3), 3)
    assert path.exists()


def test_a_document_laid_there_between_two_attempts_is_told_to_the_next(settings: Settings) -> None:
    begin(settings, turn())
    (session_folder(settings) / "context" / "plan.md").write_text("Der Plan")
    begin(settings, turn(delivery=2), 2)
    assert "Der Plan" in (session_folder(settings) / "CLAUDE.md").read_text()
    (session_folder(settings) / "context" / "plan.md").write_text("Ein anderer")
    begin(settings, turn(delivery=3), 3)
    assert "Ein anderer" in (session_folder(settings) / "CLAUDE.md").read_text()


def test_the_sessions_next_turn_finds_its_own_messages(settings: Settings) -> None:
    begin(settings, turn(1))
    begin(settings, turn(2))
    messages = json.loads((session_folder(settings) / "context" / "messages.json").read_text())
    assert [message["content"] for message in messages] == ["Frage 0", "Frage 1"]


def test_another_root_is_told_to_the_agent(settings: Settings, tmp_path: Path) -> None:
    begin(settings, turn())
    moved = replace(settings, root=tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "projects").mkdir(parents=True)
    settings.sessions_dir.rename(moved.sessions_dir)
    begin(moved, turn(delivery=2), 2)
    assert str(tmp_path / "elsewhere") in (session_folder(moved) / "CLAUDE.md").read_text()


def test_a_runner_that_says_nothing_of_folders_gets_one() -> None:
    class Says:
        needs_folder = False

    assert needs_folder(object())
    assert not needs_folder(Says())
