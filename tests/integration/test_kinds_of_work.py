"""A kind of work that a package adds: no line of the kernel knows it, and a real worker carries it out."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from api_client.contract.errors import BadRequest
from api_client.contract.installed_work import installed_kinds
from api_client.contract.tasks import all_tasks
from tests.installation import Installation
from tests.support import wait_until

LETTERS = """
    from string import Template

    from api_client.contract.errors import BadRequest
    from api_client.contract.tasks import CHECK_QUEUE, TaskDeclaration
    from api_client.contract.turn import Outcome
    from api_client.contract.work import WorkKind
    from api_client.turns.record.transition import Answer, Transition
    from worker.turns.work import TurnWork

    class Letter(WorkKind):
        name = "letter"
        first = again = "letter.render"
        tasks = {first: TaskDeclaration(queue=CHECK_QUEUE, purpose="Render it.", state="rendering", begins=True)}

        def check(self, request):
            if "name" not in request.work_data:
                raise BadRequest("a letter needs a name", param="name")

        def describe(self, request):
            return f"to {request.work_data['name']}"

    class LetterWork(TurnWork):
        async def carry_out(self, parts, lease, attempts):
            text = Template("Dear $name, all is well.").substitute(lease.claim.turn.request.work_data)
            return Transition(attempt=1, outcome=Outcome.PASSED, answer=Answer(response=text))

    class Note(WorkKind):
        name = "note"

    class NoteWork(TurnWork):
        pass
"""
GROUPS = """
    [helix_turns.work_kinds]
    letter = letters:Letter
    note = letters:Note
    [helix_turns.work]
    letter = letters:LetterWork
    note = letters:NoteWork
"""
#: What such a worker says.
WHY = {"letter": "'letter.render' is not a task that a package here declares", "note": "no work of kind 'note'"}
#: The beginning of the command of a worker that does not have the package.
WITHOUT = ["env", "PYTHONPATH="]


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs the package, as pip would, for this process and those that it starts."""
    site = tmp_path / "site"
    (site / "letters-1.0.dist-info").mkdir(parents=True)
    (site / "letters.py").write_text(dedent(LETTERS))
    (site / "letters-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: letters\nVersion: 1.0\n")
    (site / "letters-1.0.dist-info" / "entry_points.txt").write_text(dedent(GROUPS))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.syspath_prepend(str(site))
    for known in (installed_kinds, all_tasks):
        known.cache_clear()
    yield
    for known in (installed_kinds, all_tasks):
        known.cache_clear()


@pytest.mark.usefixtures("letters")
async def test_a_kind_of_work_that_renders_a_template_is_added_by_a_package_alone(installation: Installation) -> None:
    installation.worker()
    letter = {"work": "letter", "work_data": {"name": "Ada"}}
    turn = await installation.answer("a letter", **letter)
    assert (turn.outcome, turn.response, turn.attempt) == ("passed", "Dear Ada, all is well.", 1)
    shown = installation.run("turn", "show", turn.turn_id)
    assert "to Ada" in shown.stdout
    chat = await installation.answer("hello")
    assert chat.outcome is not None, "messages of chats go on beside it"
    with pytest.raises(BadRequest, match="needs a name"):
        await installation.ask("a letter", work="letter")


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("kind", ["letter", "note"])
async def test_a_worker_without_the_package_leaves_such_turns_to_others_and_everybody_sees_why(
    installation: Installation, kind: str
) -> None:
    """A kind with a task of its own, and one that has the kernel's tasks; nothing is called damaged."""
    installation.change(run_slots=2)
    work = {"work": kind, "work_data": {"name": "Ada"}}
    before = await installation.ask("hello", session="mail")
    turn_id = await installation.ask("a letter", session="mail", **work)
    chat = await installation.ask("hello", session="mail")
    without = installation.worker(within=WITHOUT)
    assert (await installation.result(before)).outcome is not None, "it does what it knows, while others wait"

    async def lacks() -> bool:
        return bool((await installation.client.reader.read_turn(turn_id)).lacks)

    await wait_until(lacks)
    for command in (["turn", "show", turn_id], ["doctor"]):
        assert WHY[kind] in installation.run(*command).stdout
    installation.worker(within=["env"])
    ended = [await installation.result(each) for each in (turn_id, chat)]
    assert (ended[0].outcome, ended[1].outcome is not None) == ("passed", True)
    said = without.log_file.read_text()
    assert ("turn.not_here" in said, "turn.damaged" in said, "turn.broke_off" in said) == (True, False, False)


@pytest.mark.usefixtures("letters")
async def test_a_message_that_a_worker_does_not_know_is_reported_before_any_reaper_comes(
    installation: Installation,
) -> None:
    installation.change(announce_seconds=600.0)
    installation.worker(within=WITHOUT)
    turn_id = await installation.ask("a letter", work="letter", work_data={"name": "Ada"})

    async def lacks() -> bool:
        return bool((await installation.client.reader.read_turn(turn_id)).lacks)

    await wait_until(lacks)


async def test_work_of_a_kind_that_is_not_installed_is_refused(installation: Installation) -> None:
    with pytest.raises(BadRequest, match="'letter' is installed here"):
        await installation.ask("a letter", work="letter", work_data={"name": "Ada"})
