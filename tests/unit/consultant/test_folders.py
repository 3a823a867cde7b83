"""What a worker writes in a session's folder: a kill between any two steps leaves nothing half written."""

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.session_paths import read_shipped_template
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.turns.record.transition import Answer
from worker.files import session
from worker.files.safe_io import open_folder, read_file
from worker.files.session import digest_conversation, read_status
from worker.files.session_fence import HELD, open_fenced, open_for_publishing
from worker.files.spreading import spread_folders
from worker.files.workspace import check_session_done, create_delivery_folder, publish_answer
from worker.runners.base import needs_folder
from worker.turns import folders

_CHANGES = ("open", "mkdir", "write", "close", "rename", "replace", "unlink", "stat")


def accept(folder: Path, text: str, *, token: str = "") -> None:
    """What a worker writes when it accepts an answer, as ``Publisher`` does it."""
    with open_for_publishing(folder, token) as here:
        assert here is not None
        answer = Answer(response=text, step="what", step_source="marker")
        session.record_acceptance(here, turn(text), answer, agent_session="")
        publish_answer(here, text, attempt_id=text)


def run(folder: Path, text: str, *, token: str) -> None:
    """What a worker writes for a turn whose agent works in the session's folder."""
    for attempt in (1, 2):
        with open_fenced(folder, token, keep=True) as holder:
            holder.revoke_earlier_holders()
            create_delivery_folder(holder, token, attempt, 1)
            session.prepare_session(holder, turn(text), folder, "# {{ session_id }}")
    accept(folder, text, token=token)


def turn(text: str) -> Turn:
    request = TurnRequest(model="m", messages=({"role": "user", "content": "Frage"},), session_id="s")
    return Turn(turn_id=text, epoch="", state=TurnState.VALIDATING, request=request)


def killed_at(number: int, work: Callable[[], None]) -> bool:
    """Whether a process that does ``work`` was killed before its ``number``-th call; it had fewer otherwise."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.WIFSIGNALED(status)
    left = iter(range(1, number + 1))

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            if next(left, 0) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return called

    for name in _CHANGES:
        setattr(os, name, killing(getattr(os, name)))
    try:
        work()
    finally:
        os._exit(0)


@pytest.mark.parametrize("answered_before", [False, True])
def test_a_kill_between_any_two_steps_leaves_every_file_whole(tmp_path: Path, answered_before: bool) -> None:
    new = "Die neue Antwort. " * 1000
    number = 0
    for number in range(1, 200):
        folder = tmp_path / str(number) / "s"
        if answered_before:
            accept(folder, "alt")
            (folder / "output" / ".done").unlink()  # as the start of the next turn does
        if not killed_at(number, lambda folder=folder: accept(folder, new)):
            break
        answer, status = folder / "output" / "response.md", folder / "status.json"
        told = answer.read_text() if answer.exists() else ""
        assert told in ("", new, *(["alt"] if answered_before else []))
        if status.exists():
            assert json.loads(status.read_text())["session_id"] == "s"
        if check_session_done(folder):
            assert (told, read_status(folder)["turn_id"]) == (new, new)
        accept(folder, new)  # who takes the turn over
        assert check_session_done(folder, new)
        assert answer.read_text() == new
    assert 10 < number < 100


@pytest.mark.long
@pytest.mark.parametrize("answered_before", [False, True])
def test_a_kill_amid_a_run_in_the_folder_leaves_every_file_whole(tmp_path: Path, answered_before: bool) -> None:
    number = 0
    for number in range(1, 400):
        folder = tmp_path / str(number) / "s"
        if answered_before:
            run(folder, "alt", token="turn-old")
        if not killed_at(number, lambda folder=folder: run(folder, "neu", token="turn-killed")):
            break
        for path in folder.rglob("*.json"):
            assert path.name.startswith(".") or json.loads(path.read_text())
        answer = folder / "output" / "response.md"
        told = answer.read_text() if answer.exists() else ""
        assert told in ("", "neu", *(["alt"] if answered_before else []))
        if check_session_done(folder):
            assert read_status(folder)["turn_id"] == told
        run(folder, "neu", token="turn-heir")  # who takes the turn over
        assert check_session_done(folder, "neu")
        assert answer.read_text() == "neu"
        assert read_status(folder)["step"] == "what"
        assert json.loads((folder / "context/messages.json").read_text()) == [{"role": "user", "content": "Frage"}]
        assert (folder / "CLAUDE.md").read_text() == "# s"
        assert list((folder / HELD).iterdir()) == [], "what the killed one held is cleared away"
    assert 60 < number < 300


def test_a_new_sessions_answer_appears_with_its_mark_by_one_rename(tmp_path: Path) -> None:
    with open_for_publishing(tmp_path / "s") as here:
        assert here is not None
        assert here.new
        publish_answer(here, "Antwort", attempt_id="a", files={"ADR-1.md": "x"})
    assert sorted(path.name for path in (tmp_path / "s").rglob("*")) == [".done", "ADR-1.md", "output", "response.md"]


def test_who_is_second_in_a_new_session_publishes_file_by_file(tmp_path: Path) -> None:
    with open_for_publishing(tmp_path / "s") as late:
        assert late is not None
        accept(tmp_path / "s", "zuerst")
        publish_answer(late, "danach", attempt_id="b")
    assert (tmp_path / "s" / "output" / "response.md").read_text() == "danach"
    assert check_session_done(tmp_path / "s", "b")
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["output", "status.json"], "a draft was left"


def test_where_agents_work_with_files_there_is_no_such_place(tmp_path: Path) -> None:
    (tmp_path / "s" / HELD).mkdir(parents=True)
    with open_for_publishing(tmp_path / "s") as here:
        assert here is None


def test_a_link_in_the_place_of_a_session_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "s").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="s"), open_for_publishing(tmp_path / "s"):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_disk_that_fills_up_leaves_the_answer_before_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(tmp_path / "s", "alt")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    for folder in ("s", "new"):
        with monkeypatch.context() as short, open_for_publishing(tmp_path / folder) as here:
            assert here is not None
            short.setattr("worker.files.safe_io.os.write", full)
            with pytest.raises(OSError, match="No space"):
                publish_answer(here, "neu", attempt_id="b")
    assert (tmp_path / "s" / "output" / "response.md").read_text() == "alt"
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == ["output", "status.json"]
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    "said",
    [
        [],
        [("user", "Frage")],
        [("user", 'Was "ist" das?\n\t\\'), ("assistant", "Größe: 3 µm \u2028 \x07 😀"), ("user", "\ud800")],
    ],
)
def test_a_conversations_digest_is_the_one_that_older_versions_stored(said: list[tuple[str, str]]) -> None:
    messages = [{"role": "system", "content": "x"}, *({"role": role, "content": text} for role, text in said)]
    stored = json.dumps([[role, text.strip()] for role, text in said], ensure_ascii=False, indent=2) + "\n"
    assert digest_conversation(messages) == hashlib.sha256(stored.encode("utf-8", "replace")).hexdigest()


def test_the_state_of_a_session_is_written_as_ever(tmp_path: Path) -> None:
    accept(tmp_path / "s", "Antwort")
    text = (tmp_path / "s" / "status.json").read_text()
    assert text == json.dumps(json.loads(text), ensure_ascii=False, indent=2) + "\n"


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_a_file_up_to_the_limit_is_read_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)
    with open_folder(tmp_path) as folder:
        assert read_file("file", folder, 100) == b"x" * size
        (tmp_path / "file").write_bytes(b"x" * 101)
        with pytest.raises(OSError, match="larger than 100 bytes"):
            read_file("file", folder, 100)


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"first")
    stat_of = os.fstat

    def grown(fd: int) -> os.stat_result:
        facts = stat_of(fd)
        with (tmp_path / "file").open("ab") as file:
            file.write(b", and a second part")
        return facts

    monkeypatch.setattr("worker.files.safe_io.os.fstat", grown)
    with open_folder(tmp_path) as folder:
        assert read_file("file", folder, 1000) == b"first, and a second part"


# What is made ready before an agent starts: nothing where it needs no folder, and each session version once.


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(root=tmp_path, broker_url="redis://127.0.0.1:1/0", store_url="redis://127.0.0.1:1/0")


def delivered(number: int = 1, delivery: int = 1) -> Turn:
    messages = tuple({"role": "user", "content": f"Frage {each}"} for each in range(number))
    request = TurnRequest(model="m", messages=messages, session_id="s")
    return Turn(turn_id=f"turn-{number}", epoch="", state=TurnState.RUNNING, request=request, delivery=delivery)


def begin(
    settings: Settings,
    of: Turn,
    attempt: int = 1,
    *,
    needed: bool = True,
    confirm: Callable[[], None] = lambda: None,
) -> Path:
    return folders.prepare_delivery(
        settings, of, attempt, [], confirm, needed=needed, template=read_shipped_template("de")
    )


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
        open_fenced(session_folder(settings))
        if request.param == "in files"
        else open_for_publishing(session_folder(settings)) as here
    ):
        assert here is not None
        publish_answer(here, "Antwort", attempt_id="turn-1-1-1")


def test_without_need_nothing_is_made(settings: Settings) -> None:
    directory = begin(settings, delivered(), needed=False)
    assert directory == session_folder(settings) / "attempts" / "turn-1-1-1"
    assert not settings.sessions_dir.exists()


@pytest.mark.usefixtures("answered")
def test_without_need_an_earlier_answer_is_no_longer_the_last_messages(settings: Settings) -> None:
    asked = []
    begin(settings, delivered(2), needed=False, confirm=lambda: asked.append("whose turn it is"))
    assert not check_session_done(session_folder(settings))
    assert (session_folder(settings) / "output" / "response.md").read_text() == "Antwort"
    assert asked == ["whose turn it is"]


@pytest.mark.usefixtures("answered")
def test_who_lost_its_turn_takes_no_answer_back(settings: Settings) -> None:
    def lost() -> None:
        raise PermissionError("another worker has the turn")

    with pytest.raises(PermissionError):
        begin(settings, delivered(2), needed=False, confirm=lost)
    assert check_session_done(session_folder(settings))


def test_a_further_attempt_writes_nothing_of_the_session_again(settings: Settings) -> None:
    begin(settings, delivered())
    before = files(settings)
    assert {"CLAUDE.md", "status.json", "input/request.md", "context/messages.json"} == set(before)
    second = begin(settings, delivered(delivery=2), 2)
    assert files(settings) == before
    assert (second / "output").is_dir()


@pytest.mark.parametrize("name", ["CLAUDE.md", "context/messages.json", "input/request.md", "status.json"])
def test_what_an_agent_changed_or_removed_is_made_ready_again(settings: Settings, name: str) -> None:
    begin(settings, delivered())
    path = session_folder(settings) / name
    right = path.read_text()
    path.write_text("x" * len(right.encode()))
    begin(settings, delivered(delivery=2), 2)
    if name == "input/request.md":  # the first request stays, whatever it says
        assert path.exists()
    elif name == "status.json":  # its times are new
        assert json.loads(path.read_text())["session_id"] == "s"
    else:
        assert path.read_text() == right
    path.unlink()
    begin(settings, delivered(delivery=3), 3)
    assert path.exists()


def test_a_document_laid_there_between_two_attempts_is_told_to_the_next(settings: Settings) -> None:
    begin(settings, delivered())
    (session_folder(settings) / "context" / "plan.md").write_text("Der Plan")
    begin(settings, delivered(delivery=2), 2)
    assert "Der Plan" in (session_folder(settings) / "CLAUDE.md").read_text()
    (session_folder(settings) / "context" / "plan.md").write_text("Ein anderer")
    begin(settings, delivered(delivery=3), 3)
    assert "Ein anderer" in (session_folder(settings) / "CLAUDE.md").read_text()


def test_the_sessions_next_turn_finds_its_own_messages(settings: Settings) -> None:
    begin(settings, delivered(1))
    begin(settings, delivered(2))
    messages = json.loads((session_folder(settings) / "context" / "messages.json").read_text())
    assert [message["content"] for message in messages] == ["Frage 0", "Frage 1"]


def test_another_root_is_told_to_the_agent(settings: Settings, tmp_path: Path) -> None:
    begin(settings, delivered())
    moved = replace(settings, root=tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "projects").mkdir(parents=True)
    settings.sessions_dir.rename(moved.sessions_dir)
    begin(moved, delivered(delivery=2), 2)
    assert str(tmp_path / "elsewhere") in (session_folder(moved) / "CLAUDE.md").read_text()


def test_a_runner_that_says_nothing_of_folders_gets_one() -> None:
    class Says:
        needs_folder = False

    assert needs_folder(object())
    assert not needs_folder(Says())


# Sessions lie apart on the disk, where the file system can do that.


def flags(folder: Path) -> str:
    """What ``lsattr`` shows; empty where there are no such flags, or no such tool."""
    try:
        done = subprocess.run(["lsattr", "-d", folder], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.split()[0]


def test_folders_of_sessions_are_spread_where_the_file_system_can(tmp_path: Path) -> None:
    (tmp_path / "by_hand").mkdir()
    (tmp_path / "ours").mkdir()
    if before := flags(tmp_path / "by_hand"):
        subprocess.run(["chattr", "+T", tmp_path / "by_hand"], capture_output=True, check=False)
    for _ in range(2):
        spread_folders(tmp_path / "ours")
        assert flags(tmp_path / "ours") == flags(tmp_path / "by_hand")
    assert flags(tmp_path) == before, "no other folder is changed"


def test_what_cannot_be_spread_stays_as_it_is(tmp_path: Path) -> None:
    spread_folders(tmp_path / "missing")
    (tmp_path / "link").symlink_to(tmp_path)
    spread_folders(tmp_path / "link")
    assert "T" not in flags(tmp_path)
    spread_folders(Path("/proc"))
