import json
import os
from pathlib import Path

import pytest

from api_client.contract.session_paths import session_directory
from worker.files import workspace
from worker.files.session_fence import open_fenced
from worker.files.workspace import (
    DeliveryTakenError,
    WrittenFiles,
    create_delivery_folder,
    publish_answer,
    read_accepted_files,
    read_answer_files,
)


def begun(sessions: Path, session_id: str, turn_id: str, attempt: int, delivery: int) -> Path:
    with open_fenced(session_directory(sessions, session_id)) as holder:
        return create_delivery_folder(holder, turn_id, attempt, delivery)


def published(session: Path, text: str, *, attempt_id: str, files: dict[str, str] | None = None) -> None:
    with open_fenced(session) as holder:
        holder.revoke_earlier_holders()
        publish_answer(holder, text, attempt_id=attempt_id, files=files)


@pytest.fixture
def delivery(tmp_path: Path) -> Path:
    return begun(tmp_path, "s", "turn-a", 1, 1)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_delivery_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    directory = begun(tmp_path, "session-1", "turn-a", 2, 5)
    assert directory == tmp_path / "session-1/attempts/turn-a-2-5"
    assert (directory / "output").is_dir()


def test_a_delivery_can_be_started_once_only(tmp_path: Path, delivery: Path) -> None:
    with pytest.raises(DeliveryTakenError) as caught:
        begun(tmp_path, "s", "turn-a", 1, 1)
    assert caught.value.directory == delivery
    assert begun(tmp_path, "s", "turn-a", 1, 2).name == "turn-a-1-2"


@pytest.mark.parametrize(
    "session_id",
    ["..", ".", ".hidden", "", "a/b", "../../etc", "/etc", "a\0b", "x" * 101, "ä", "a b", "a\n", "\u202ertl", "\ud800"],
)
def test_a_session_id_never_leads_out_of_the_sessions(tmp_path: Path, session_id: str) -> None:
    directory = begun(tmp_path, session_id, "turn-a", 1, 1)
    assert directory.parent.parent.parent == tmp_path
    assert session_directory(tmp_path, session_id).name.startswith("session-")


def test_two_turns_of_a_session_do_not_share_a_delivery(tmp_path: Path, delivery: Path) -> None:
    assert begun(tmp_path, "s", "turn-b", 1, 1) != delivery


def test_a_turn_id_never_leads_out_of_the_session(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a turn id"):
        begun(tmp_path, "s", "../../x", 1, 1)


def test_two_strange_session_ids_do_not_share_a_folder(tmp_path: Path) -> None:
    assert session_directory(tmp_path, "a/b") != session_directory(tmp_path, "a:b")


def test_a_plain_session_id_is_kept(tmp_path: Path) -> None:
    assert session_directory(tmp_path, "conv-2024_01.a") == tmp_path / "conv-2024_01.a"


def test_a_new_attempt_takes_the_done_mark_away_and_leaves_the_answer(tmp_path: Path, delivery: Path) -> None:
    published(tmp_path / "s", "Antwort", attempt_id="t.1.1")
    begun(tmp_path, "s", "turn-a", 2, 2)
    assert not (tmp_path / "s/output/.done").exists()
    assert (tmp_path / "s/output/response.md").read_text() == "Antwort"


def test_an_attempt_refused_at_the_gate_leaves_the_done_mark(tmp_path: Path, delivery: Path) -> None:
    published(tmp_path / "s", "Antwort", attempt_id="t.1.1")
    with pytest.raises(DeliveryTakenError):
        begun(tmp_path, "s", "turn-a", 1, 1)
    assert (tmp_path / "s/output/.done").exists()


def test_an_accepted_answer_is_published_with_its_files_and_the_done_mark(tmp_path: Path, delivery: Path) -> None:
    published(tmp_path / "s", "Grüße", attempt_id="t.1.1", files={"ADR-001.md": "# ADR", "response.md": "draft"})
    output = tmp_path / "s/output"
    assert (output / "response.md").read_text(encoding="utf-8") == "Grüße"
    assert (output / "ADR-001.md").read_text() == "# ADR"
    assert json.loads((output / ".done").read_text()) == {"attempt_id": "t.1.1"}
    assert names(output) == [".done", "ADR-001.md", "response.md"]


def test_publishing_replaces_what_was_there_even_a_link(tmp_path: Path, delivery: Path) -> None:
    (tmp_path / "s/output").mkdir()
    (tmp_path / "s/output/response.md").symlink_to(tmp_path / "victim")
    published(tmp_path / "s", "neu", attempt_id="a")
    published(tmp_path / "s", "neuer", attempt_id="b")
    assert not (tmp_path / "victim").exists()
    assert (tmp_path / "s/output/response.md").read_text() == "neuer"


def test_publishing_does_not_follow_a_linked_folder(tmp_path: Path, delivery: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "s/output").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="output"):
        published(tmp_path / "s", "x", attempt_id="a")
    assert names(tmp_path / "elsewhere") == []


def test_a_linked_attempts_folder_is_refused(tmp_path: Path, delivery: Path) -> None:
    (tmp_path / "s/attempts").rename(tmp_path / "moved")
    (tmp_path / "s/attempts").symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match="attempts"):
        begun(tmp_path, "s", "turn-a", 1, 2)


@pytest.mark.parametrize("name", ["../x", "status.json", ".done", "ADR-/x.md", "CLAUDE.md"])
def test_only_files_an_answer_has_are_published(tmp_path: Path, delivery: Path, name: str) -> None:
    with pytest.raises(ValueError, match="an answer has no file"):
        published(tmp_path / "s", "x", attempt_id="a", files={name: ""})
    assert not (tmp_path / "s/output/response.md").exists()


def test_a_crash_in_mid_write_leaves_the_old_answer_whole(
    tmp_path: Path, delivery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(tmp_path / "s", "alt", attempt_id="a")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("worker.files.workspace.os.replace", full)
    with pytest.raises(OSError, match="No space"):
        published(tmp_path / "s", "neu", attempt_id="b")
    assert (tmp_path / "s/output/response.md").read_text() == "alt"
    assert names(tmp_path / "s/output") == [".done", "response.md"]


def test_what_the_agent_wrote_is_found(delivery: Path) -> None:
    (delivery / "output/response.md").write_text("a")
    (delivery / "output/ADR-007.md").write_bytes(b"\xff b")
    (delivery / "output/notes.txt").write_text("c")
    assert read_accepted_files(delivery) == {"response.md": "a", "ADR-007.md": "\ufffd b"}


def test_links_pipes_folders_second_names_and_huge_files_are_left_out(tmp_path: Path, delivery: Path) -> None:
    output = delivery / "output"
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "linked").write_text("secret")
    (output / "ADR-1.md").symlink_to(tmp_path / "linked")
    os.mkfifo(output / "ADR-2.md")
    (output / "ADR-3.md").mkdir()
    os.link(tmp_path / "secret", output / "ADR-4.md")
    (output / "ADR-5.md").touch()
    os.truncate(output / "ADR-5.md", 2**40)
    (output / "ADR-6.md").write_text("gut")
    found = read_answer_files(delivery)
    assert found.files == {"ADR-6.md": "gut"}
    assert found.refused == {
        "output/ADR-1.md": "a link",
        "output/ADR-2.md": "no regular file",
        "output/ADR-3.md": "Is a directory",
        "output/ADR-4.md": "has another name, maybe outside the session",
        "output/ADR-5.md": "larger than 2097152 bytes",
    }


def test_a_linked_output_folder_is_not_read(tmp_path: Path, delivery: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/response.md").write_text("secret")
    (delivery / "output").rmdir()
    (delivery / "output").symlink_to(tmp_path / "elsewhere")
    assert read_answer_files(delivery) == WrittenFiles(refused={"output": "a link"})


def test_only_so_many_files_are_read(delivery: Path) -> None:
    for number in range(workspace.MAX_FILES + 5):
        (delivery / f"output/ADR-{number:03}.md").touch()
    assert len(read_accepted_files(delivery)) == workspace.MAX_FILES
    assert read_answer_files(delivery).refused == {"output": "5 files too many, from ADR-050.md on"}


def test_a_delivery_that_wrote_nothing_has_no_files(delivery: Path) -> None:
    assert read_answer_files(delivery) == WrittenFiles()
    (delivery / "output").rmdir()
    assert read_answer_files(delivery) == WrittenFiles()
    delivery.rmdir()
    assert read_answer_files(delivery) == WrittenFiles()


def test_a_link_in_place_of_a_deliverys_folder_is_not_followed(tmp_path: Path, delivery: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (delivery / "output").rmdir()
    (delivery / "output").symlink_to(tmp_path / "elsewhere")
    assert read_answer_files(delivery) == WrittenFiles(refused={"output": "a link"})
    (tmp_path / "elsewhere/output").mkdir()
    (tmp_path / "elsewhere/output/response.md").write_text("not the agent's")
    (tmp_path / "other").symlink_to(tmp_path / "elsewhere")
    assert read_answer_files(tmp_path / "other").files == {}
