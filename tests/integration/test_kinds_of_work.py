"""A kind of work that a package adds: no line of the kernel knows it, and a real worker carries it out."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from api_client.contract.errors import BadRequest
from api_client.contract.installed_work import installed_kinds
from api_client.contract.tasks import all_tasks
from tests.installation import Installation

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

        def describe_request(self, request):
            return f"to {request.work_data['name']}"

    class LetterWork(TurnWork):
        async def carry_out(self, parts, lease, attempts):
            text = Template("Dear $name, all is well.").substitute(lease.claim.turn.request.work_data)
            return Transition(attempt=1, outcome=Outcome.PASSED, answer=Answer(response=text))
"""
GROUPS = "[helix_turns.work_kinds]\nletter = letters:Letter\n[helix_turns.work]\nletter = letters:LetterWork\n"


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs the package, as pip would, for this process and those that it starts."""
    site = tmp_path / "site"
    (site / "letters-1.0.dist-info").mkdir(parents=True)
    (site / "letters.py").write_text(dedent(LETTERS))
    (site / "letters-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: letters\nVersion: 1.0\n")
    (site / "letters-1.0.dist-info" / "entry_points.txt").write_text(GROUPS)
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


async def test_work_of_a_kind_that_is_not_installed_is_refused(installation: Installation) -> None:
    with pytest.raises(BadRequest, match="'letter' is installed here"):
        await installation.ask("a letter", work="letter", work_data={"name": "Ada"})
