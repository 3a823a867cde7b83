"""A holder of a session's folder that is frozen anywhere and wakes up late changes nothing of what came after it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.turns.record.transition import Answer
from tests.unit.runners.test_folder_trees import make_deep
from worker.files import session
from worker.files.session_fence import HELD, FencedSessionFolder, open_fenced, open_for_publishing
from worker.files.workspace import create_delivery_folder, publish_answer, withdraw_answer


class World:
    """A session's folder, and the store that knows who holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.holder = "old"

    def take(self, name: str, holder: FencedSessionFolder) -> None:
        if (self.folder.parent / "holder").read_text() != name:
            raise PermissionError("another worker has the turn")
        holder.revoke_earlier_holders()

    def turn_over_to(self, name: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder.parent / "holder").write_text(name)

    def answer(self, name: str, *, works_in_folder: bool = True, place_stays: bool = False) -> None:
        """All that a holder writes in a session, from the start of a run to the published answer."""
        token = name if place_stays else ""
        request = TurnRequest(model="m", messages=({"role": "user", "content": name},), session_id="s")
        turn = Turn(turn_id=name, epoch="", state=TurnState.RUNNING, request=request, agent_session=name)
        with open_fenced(self.folder, token, keep=place_stays) as holder:
            self.take(name, holder)
            if works_in_folder:
                create_delivery_folder(holder, name, 1, 1)
                session.prepare_session(holder, turn, self.folder, "# {{ session_id }}")
            else:
                withdraw_answer(holder)
        agent = self.folder / "agent"
        agent.mkdir(exist_ok=True)
        (agent / name).mkdir(exist_ok=True)
        with open_fenced(self.folder, token) as holder:
            self.take(name, holder)
            session.record_acceptance(
                holder, turn, Answer(response=name, step=name, step_source="marker"), agent_session=name
            )
            publish_answer(holder, name, attempt_id=name, files={"ADR-001.md": name})

    def contents(self) -> dict[str, str]:
        """What the session says; the deliveries' own folders apart."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and "attempts" not in path.parts]
        return {str(path.relative_to(self.folder)): path.read_text() for path in files}


def frozen_at(number: int, work: Callable[[], None]) -> int:
    """A process that does ``work`` and freezes before its ``number``-th change of a folder; 0 when there are fewer."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, os.WUNTRACED)
        return child if os.WIFSTOPPED(status) else 0
    left = iter(range(1, number + 1))

    def stopping(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **options: Any) -> Any:
            if next(left, 0) == number:
                os.kill(os.getpid(), signal.SIGSTOP)
            return change(*args, **options)

        return changed

    for name in ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "listdir"):
        setattr(os, name, stopping(getattr(os, name)))
    try:
        work()
    finally:
        os._exit(0)


@pytest.mark.parametrize(
    ("works_in_folder", "place_stays"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.long),
        pytest.param(False, True, marks=pytest.mark.long),
    ],
)
def test_whoever_was_frozen_between_any_two_steps_changes_nothing_when_it_wakes_up(
    tmp_path: Path, works_in_folder: bool, place_stays: bool
) -> None:
    def answer(world: World, name: str) -> None:
        world.answer(name, works_in_folder=works_in_folder, place_stays=place_stays)

    number = 0
    for number in range(1, 500):
        world = World(tmp_path / str(number) / "s")
        world.turn_over_to("old")
        late = frozen_at(number, lambda world=world: answer(world, "old"))
        if not late:
            break
        world.turn_over_to("new")
        answer(world, "new")
        before = world.contents()
        os.kill(late, signal.SIGCONT)
        os.waitpid(late, 0)
        assert world.contents() == before, f"frozen before step {number}"
        assert before["output/response.md"] == before["output/ADR-001.md"] == "new"
        assert list((world.folder / HELD).iterdir()) == []
    print(f"{number - 1} places to freeze")
    assert number > (50 if works_in_folder else 30), "hardly anything was frozen"


@pytest.mark.parametrize("answered_before", [False, True])
def test_a_holder_that_was_overtaken_is_told(tmp_path: Path, answered_before: bool) -> None:
    output = tmp_path / "s" / "output"
    if answered_before:
        output.mkdir(parents=True)
    with open_fenced(tmp_path / "s") as late:
        late.revoke_earlier_holders()
        with open_fenced(tmp_path / "s") as holder:
            holder.revoke_earlier_holders()
        with pytest.raises(FileNotFoundError):
            publish_answer(late, "old", attempt_id="a")
    assert list((tmp_path / "s").rglob("*.md")) == []
    assert output.exists() is answered_before


def test_a_holder_the_store_did_not_confirm_ends_nobodys_right(tmp_path: Path) -> None:
    with open_fenced(tmp_path / "s") as holder:
        holder.revoke_earlier_holders()
        with open_fenced(tmp_path / "s"):
            publish_answer(holder, "mine", attempt_id="a")
    assert (tmp_path / "s/output/response.md").read_text() == "mine"


@pytest.mark.parametrize("left", ["file", "link", "full", "deep"])
def test_what_a_killed_holder_or_an_agent_left_is_cleared_away(tmp_path: Path, left: str) -> None:
    held = tmp_path / "s" / HELD
    held.mkdir(parents=True)
    if left == "file":
        (held / left).touch()
    elif left == "link":
        (held / left).symlink_to(tmp_path)
    elif left == "deep":
        make_deep(held / left)
    else:
        (held / left / "deep" / "er").mkdir(parents=True)
        (held / left / "deep" / "x").touch()
    with open_fenced(tmp_path / "s") as holder:
        holder.revoke_earlier_holders()
        assert len(list(held.iterdir())) == 1
    assert tmp_path.is_dir()


def test_a_deep_folder_in_the_place_of_a_file_costs_no_answer(tmp_path: Path) -> None:
    with open_fenced(tmp_path / "s") as holder:
        (tmp_path / "s" / "output").mkdir()
        make_deep(tmp_path / "s" / "output" / ".done")
        withdraw_answer(holder)
    assert list((tmp_path / "s" / "output").iterdir()) == []
    assert list((tmp_path / "s" / HELD).iterdir()) == []


def test_a_place_that_stays_is_found_again_by_its_token_alone(tmp_path: Path) -> None:
    def places() -> list[str]:
        return sorted(path.name for path in (tmp_path / "s" / HELD).iterdir())

    with open_fenced(tmp_path / "s", "mine", keep=True) as holder:
        holder.revoke_earlier_holders()
    kept = places()
    assert "mine" not in kept[0], "agents may see the folder: its name must not tell the token"
    with open_for_publishing(tmp_path / "s", "another") as found:
        assert found is None
    with open_for_publishing(tmp_path / "s") as found:
        assert found is None
    with open_fenced(tmp_path / "s", "mine", keep=True):
        assert places() == kept
    with open_for_publishing(tmp_path / "s", "mine") as found:
        assert isinstance(found, FencedSessionFolder)
        publish_answer(found, "mine", attempt_id="a")
    assert places() == []
    assert (tmp_path / "s/output/response.md").read_text() == "mine"


def test_a_place_that_stayed_is_gone_once_somebody_else_held_the_session(tmp_path: Path) -> None:
    with open_fenced(tmp_path / "s", "mine", keep=True) as holder:
        holder.revoke_earlier_holders()
    with open_fenced(tmp_path / "s", "yours", keep=True) as later:
        later.revoke_earlier_holders()
    with open_for_publishing(tmp_path / "s", "mine") as found:
        assert found is None
    with open_for_publishing(tmp_path / "s", "yours") as found:
        assert found is not None


def test_a_holder_that_fails_keeps_no_place(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), open_fenced(tmp_path / "s", "mine", keep=True):
        raise PermissionError("another worker has the turn")
    assert list((tmp_path / "s" / HELD).iterdir()) == []


@pytest.mark.parametrize("swapped", ["link", "file"])
def test_an_agent_that_swaps_the_place_of_its_holder_leads_it_nowhere(tmp_path: Path, swapped: str) -> None:
    with open_fenced(tmp_path / "s", "mine", keep=True) as holder:
        holder.revoke_earlier_holders()
    (kept,) = (tmp_path / "s" / HELD).iterdir()
    kept.rmdir()
    (tmp_path / "elsewhere").mkdir()
    if swapped == "link":
        kept.symlink_to(tmp_path / "elsewhere")
    else:
        kept.touch()
    with open_for_publishing(tmp_path / "s", "mine") as found:
        assert found is None
    with open_fenced(tmp_path / "s", "mine") as holder:
        holder.revoke_earlier_holders()
        publish_answer(holder, "mine", attempt_id="a")
    assert (tmp_path / "s/output/response.md").read_text() == "mine"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert list((tmp_path / "s" / HELD).iterdir()) == []


def test_a_first_answer_takes_its_holders_place_along(tmp_path: Path) -> None:
    with open_fenced(tmp_path / "s", "mine", keep=True) as holder:
        holder.revoke_earlier_holders()
    (kept,) = (tmp_path / "s" / HELD).iterdir()
    number = kept.stat().st_ino
    with open_for_publishing(tmp_path / "s", "mine") as found:
        assert found is not None
        publish_answer(found, "Antwort", attempt_id="a")
    assert (tmp_path / "s/output").stat().st_ino == number
    assert list((tmp_path / "s" / HELD).iterdir()) == []


def test_what_a_holder_removed_is_not_published(tmp_path: Path) -> None:
    with open_fenced(tmp_path / "s", "mine", keep=True) as holder:
        holder.revoke_earlier_holders()
        (tmp_path / "s/CLAUDE.md").write_text("old")
        holder.remove_entry("CLAUDE.md", holder.session)
    with open_for_publishing(tmp_path / "s", "mine") as found:
        assert found is not None
        publish_answer(found, "Antwort", attempt_id="a")
    assert sorted(path.name for path in (tmp_path / "s/output").iterdir()) == [".done", "response.md"]
    assert list((tmp_path / "s" / HELD).iterdir()) == []


def test_a_late_first_answer_is_not_published(tmp_path: Path) -> None:
    with open_fenced(tmp_path / "s", "mine", keep=True) as holder:
        holder.revoke_earlier_holders()
    with open_for_publishing(tmp_path / "s", "mine") as found:
        assert found is not None
        with open_fenced(tmp_path / "s", "yours") as later:
            later.revoke_earlier_holders()
        with pytest.raises(FileNotFoundError):
            publish_answer(found, "zu spät", attempt_id="a")
    assert not (tmp_path / "s/output").exists()
