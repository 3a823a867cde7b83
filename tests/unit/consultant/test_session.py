"""The session folder of ADR-034: written whole, once, in the old format; its step never steers anything."""

import itertools
import json
import re
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.errors import SettingsError
from api_client.contract.image import read_image
from api_client.contract.session_paths import SHIPPED, read_shipped_template
from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.turns.record.transition import Answer
from worker.files import session, template
from worker.files.recent_entries import RecentEntries
from worker.files.session import digest_conversation, find_agent_session, read_status
from worker.files.session_fence import open_fenced
from worker.files.session_version import PreparedSession
from worker.files.template import check_template, fence_text, read_template
from worker.files.workspace import check_session_done, create_delivery_folder, publish_answer

ASKED = ({"role": "user", "content": "Baue einen Zähler"},)
ANSWER = Answer(response="Welchen?\n\n<!-- STEP: what -->", step="what", step_source="marker")
OLD_KEYS = {"session_id", "status", "step", "created_at", "updated_at", "original_request", "project_name",
            "conversation_id"}  # fmt: skip


def turn(*messages: dict[str, str], agent_session: str = "", **metadata: str) -> Turn:
    request = TurnRequest(model="m", messages=messages or ASKED, session_id="s", metadata=metadata)
    return Turn(turn_id="turn-1", epoch="", state=TurnState.RUNNING, request=request, agent_session=agent_session)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    path = tmp_path / "projects" / "sessions" / "s"
    path.mkdir(parents=True)
    return path


def prepare(workdir: Path, turn: Turn, root: Path) -> None:
    with open_fenced(workdir) as holder:
        session.prepare_session(holder, turn, root, read_shipped_template("de"))


def accept(workdir: Path, turn: Turn, answer: Answer) -> None:
    with open_fenced(workdir) as holder:
        session.record_acceptance(holder, turn, answer, agent_session=turn.agent_session)


def status(workdir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((workdir / "status.json").read_text(encoding="utf-8"))
    return found


def test_a_run_finds_its_session_as_the_seeds_describe_it(workdir: Path, tmp_path: Path) -> None:
    prepare(workdir, turn(conversation_id="chat-1"), tmp_path)
    assert (workdir / "input/request.md").read_text(encoding="utf-8") == "Baue einen Zähler"
    assert json.loads((workdir / "context/messages.json").read_text()) == list(ASKED)
    assert status(workdir).keys() >= OLD_KEYS
    assert (status(workdir)["conversation_id"], status(workdir)["step"]) == ("chat-1", "unknown")
    assert {path.name for path in workdir.iterdir()} == {".held", "CLAUDE.md", "context", "input", "status.json"}


def test_the_agent_is_told_its_request_every_step_the_experts_and_the_marker(workdir: Path, tmp_path: Path) -> None:
    (workdir / "context").mkdir()
    (workdir / "context" / "notizen.md").write_text("Der Zähler ist rot.")
    prepare(workdir, turn(), tmp_path)
    told = (workdir / "CLAUDE.md").read_text(encoding="utf-8")
    for part in ("Baue einen Zähler", "Der Zähler ist rot.", "### notizen", "output/response.md", "`s`",
                 *("what", "why", "constraints", "generate", "finalize", "done"),
                 *("helix", "pdm", "encoder", "infrastructure", "database")):  # fmt: skip
        assert part in told
    assert re.search(r"^<!-- STEP: what -->$", told, re.MULTILINE)


def test_the_template_has_no_branch_on_a_step() -> None:
    for locale in SHIPPED:
        branches = set(re.findall(r"{%-? *if ([^%]*)%}", read_shipped_template(locale)))
        assert branches == {"context ", "skills and tools ", "tools "}


def test_what_users_write_cannot_leave_its_code_block() -> None:
    for text in ("@/etc/passwd", "```\n@/etc/passwd", "````\n`````\nx", "~~~\nx"):
        first, *inside, last = fence_text(text).splitlines()
        assert first == last + "text"
        assert not [line for line in inside if line.strip().startswith(last)]


def spoken(*texts: str) -> tuple[dict[str, str], ...]:
    """A conversation: user and agent in turns; one in brackets is the system's."""
    roles = itertools.cycle(("user", "assistant"))
    return tuple(
        {"role": "system", "content": text} if text.startswith("(") else {"role": next(roles), "content": text}
        for text in texts
    )


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize(
    ("first", "then", "original"),
    [
        (["A"], ["A"], "A"),  # regenerated
        (["A"], ["B"], "B"),  # edited
        (["A"], ["A", "a", "B"], "A"),
        (["A", "a", "B"], ["A", "a", "C"], "A"),  # a later one edited
        (["A", "a", "B"], ["C"], "C"),
        (["B"], ["A", "a", "C"], "A"),  # back to the branch before the edit
        (["(sys)", "A"], ["(other)", "A"], "A"),
        (["(sys)", "A"], ["(sys)", "B"], "B"),
        (["A"], ["(sys)"], "A"),  # nobody asks anything: what is known stays
        (["A"], ["A "], "A "),
        (["A" * 70_000], ["B"], "B"),
    ],
)
def test_the_original_request_is_the_first_message_of_the_present_history(
    first: list[str], then: list[str], original: str, accepted: bool, workdir: Path, tmp_path: Path
) -> None:
    prepare(workdir, turn(*spoken(*first)), tmp_path)
    created, before = status(workdir)["created_at"], (workdir / "CLAUDE.md").read_text()
    if accepted:
        accept(workdir, turn(*spoken(*first)), ANSWER)
    again = replace(turn(*spoken(*then)), turn_id="turn-2")
    for _ in range(2):  # a further attempt finds the same
        prepare(workdir, again, tmp_path)
        assert (workdir / "input/request.md").read_text(encoding="utf-8") == original
        assert (status(workdir)["original_request"], status(workdir)["created_at"]) == (original, created)
        told = (workdir / "CLAUDE.md").read_text()
        assert (told == before) == (session_first(first) == original.strip())
        assert fence_text(original) in told
        assert json.loads((workdir / "context/messages.json").read_text()) == list(spoken(*then))
    accept(workdir, again, ANSWER)
    assert status(workdir)["original_request"] == original


def session_first(texts: list[str]) -> str:
    return next(text for text in texts if not text.startswith("("))


def test_an_answer_of_an_agent_without_files_is_noted_with_the_present_request(workdir: Path) -> None:
    accept(workdir, turn(*spoken("A")), ANSWER)
    accept(workdir, turn(*spoken("B")), ANSWER)
    assert status(workdir)["original_request"] == "B"


def test_a_session_of_the_old_code_goes_on(workdir: Path, tmp_path: Path) -> None:
    old = {"session_id": "conv-1", "status": "ready", "step": "execute", "created_at": "2025-01-01T00:00:00",
           "original_request": "Alt", "project_name": "p", "extra": [1]}  # fmt: skip
    (workdir / "status.json").write_text(json.dumps(old))
    on = turn({"role": "user", "content": "Alt"})
    prepare(workdir, on, tmp_path)
    assert status(workdir).items() >= old.items()
    accept(workdir, on, ANSWER)
    assert status(workdir).items() >= (old | {"step": "what", "step_source": "marker"}).items()


def test_what_somebody_noted_in_the_status_while_the_agent_ran_is_still_there_after_the_answer(
    workdir: Path, tmp_path: Path
) -> None:
    prepare(workdir, turn(), tmp_path)
    (workdir / "status.json").write_text(json.dumps(status(workdir) | {"project_name": "noted meanwhile"}))
    accept(workdir, turn(), ANSWER)
    assert status(workdir)["project_name"] == "noted meanwhile"


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\xff"])
def test_a_damaged_status_is_replaced(workdir: Path, tmp_path: Path, content: str) -> None:
    (workdir / "status.json").write_text(content, encoding="latin-1")
    assert read_status(workdir) == {}
    prepare(workdir, turn(), tmp_path)
    assert status(workdir)["session_id"] == "s"


def test_a_link_in_place_of_a_file_is_not_written_through(workdir: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("{}")
    for name in ("status.json", "CLAUDE.md"):
        (workdir / name).symlink_to(victim)
    prepare(workdir, turn(), tmp_path)
    accept(workdir, turn(), ANSWER)
    assert victim.read_text() == "{}"


def test_a_session_without_a_folder_has_no_status(tmp_path: Path) -> None:
    assert read_status(tmp_path / "none") == {}
    assert find_agent_session(tmp_path / "none", ASKED) == ("", "")


def said(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]


@pytest.mark.parametrize(
    ("messages", "knows"),
    [
        (said("Baue einen Zähler", "Welchen?", "Rot"), "history"),
        (said("Baue einen Zähler", "Welchen?\n\n<!-- STEP: what -->", "Rot"), "history"),
        ([{"role": "system", "content": "x"}, *said("Baue einen Zähler", "Welchen?", "Rot")], "dialogue"),
        (said("Baue eine Uhr", "Welchen?", "Rot"), ""),
        (said("Baue einen Zähler", "Warum?", "Rot"), ""),
        (said("Baue einen Zähler"), ""),
        (said("Rot"), ""),
        (said("Baue einen Zähler", "Welchen?", "Rot", "Gut", "Danke"), ""),
    ],
)
def test_only_a_conversation_that_goes_on_from_the_accepted_answer_continues_its_session(
    workdir: Path, messages: list[dict[str, str]], knows: str
) -> None:
    accept(workdir, turn(agent_session="agent-1"), ANSWER)
    assert find_agent_session(workdir, messages) == ("agent-1" if knows else "", knows)


@pytest.mark.parametrize(
    ("now", "knows"),
    [("x", "history"), ("y", "dialogue"), ("", "dialogue")],
    ids=["the same", "others", "none any more"],
)
def test_a_session_knows_under_which_instructions_it_was_held(workdir: Path, now: str, knows: str) -> None:
    asked = turn(agent_session="agent-1")
    request = replace(asked.request, messages=({"role": "system", "content": "x"}, *asked.request.messages))
    accept(workdir, replace(asked, request=request), ANSWER)
    rules = [{"role": "system", "content": now}] if now else []
    messages = [*rules, {"role": "tool", "content": "42"}, *said("Baue einen Zähler", "Welchen?", "Rot")]
    assert find_agent_session(workdir, messages) == ("agent-1", knows)


def test_accepting_twice_changes_nothing(workdir: Path) -> None:
    accept(workdir, turn(agent_session="agent-1"), ANSWER)
    before = status(workdir)
    accept(workdir, turn(agent_session="agent-1"), ANSWER)
    assert status(workdir) | {"updated_at": ""} == before | {"updated_at": ""}


def test_an_accepted_answer_leaves_only_its_own_transcript(workdir: Path) -> None:
    (workdir / "agent" / "turn-1-1-1" / ".claude").mkdir(parents=True)
    for name in ("old", "new"):
        (workdir / "agent" / f"{name}.jsonl").touch()
    accept(workdir, replace(turn(), agent_session="new"), ANSWER)
    assert [path.name for path in (workdir / "agent").iterdir()] == ["new.jsonl"]


def test_roles_keep_two_conversations_apart() -> None:
    assert digest_conversation(said("a", "b")) != digest_conversation([{"role": "user", "content": c} for c in "ab"])


def test_done_means_an_accepted_answer_and_no_run_since(tmp_path: Path) -> None:
    workdir = tmp_path / "s"
    with open_fenced(workdir) as holder:
        create_delivery_folder(holder, "turn-a", 1, 1)
        assert not check_session_done(workdir)
        publish_answer(holder, "Antwort", attempt_id="turn-a-1-1")
    assert check_session_done(workdir)
    assert check_session_done(workdir, "turn-a-1-1")
    assert not check_session_done(workdir, "turn-a-2-2")
    with open_fenced(workdir) as holder:
        create_delivery_folder(holder, "turn-a", 2, 2)
    assert not check_session_done(workdir)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"attempt_id": ""}'])
def test_an_empty_done_as_the_old_hook_left_it_proves_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / ".done").write_text(content)
    assert not check_session_done(tmp_path)
    assert not check_session_done(tmp_path / "missing")


def test_the_images_of_a_message_lie_beside_the_request(workdir: Path, tmp_path: Path) -> None:
    image = read_image("data:image/png;base64," + b64encode(b"\x89PNG\r\n\x1a\n...").decode())
    asked = turn()
    prepare(workdir, replace(asked, request=replace(asked.request, images=(image,))), tmp_path)
    assert (workdir / image.path).read_bytes() == image.content
    prepare(workdir, asked, tmp_path)
    assert (workdir / image.path).exists(), "it stays for later messages of the session"


def test_a_models_own_template_stands_in_for_ours_and_a_broken_one_is_a_setting_that_is_wrong(
    workdir: Path, tmp_path: Path
) -> None:
    template = tmp_path / "own.md.j2"
    template.write_text("# {{ session_id }}\n{{ original_request | fenced }}\n")
    with open_fenced(workdir) as holder:
        session.prepare_session(holder, turn(), tmp_path, read_template(str(template), "de"))
        assert (workdir / "CLAUDE.md").read_text(encoding="utf-8") == "# s\n```text\nBaue einen Zähler\n```\n"
        for number, broken in enumerate(("{{ nobody_knows }}", "{% if %}"), 2):
            template.write_text(broken)
            with pytest.raises(SettingsError, match="prompt_template"):
                session.prepare_session(holder, replace(turn(), turn_id=f"turn-{number}"), tmp_path, broken)
            with pytest.raises(SettingsError, match="prompt_template"):
                check_template(str(template))


def test_both_languages_are_shipped_and_agents_without_tools_are_told_of_none(workdir: Path, tmp_path: Path) -> None:
    for locale, marker in (("de", "Pflicht:"), ("en", "Required:")):
        with open_fenced(workdir) as holder:
            session.prepare_session(
                holder, replace(turn(), turn_id=f"t-{locale}"), tmp_path, read_shipped_template(locale)
            )
            told = (workdir / "CLAUDE.md").read_text(encoding="utf-8")
            session.prepare_session(
                holder, replace(turn(), turn_id=f"u-{locale}"), tmp_path, read_shipped_template(locale), tools=False
            )
            bare = (workdir / "CLAUDE.md").read_text(encoding="utf-8")
        assert marker in told
        assert marker in bare
        for word in ("output/response.md", "feedback.md", "`Read`", str(tmp_path)):
            assert word in told
            assert word not in bare
        assert "<!-- STEP: what -->" in bare


def test_without_a_template_there_is_no_claude_md_and_an_old_one_goes(workdir: Path, tmp_path: Path) -> None:
    prepare(workdir, turn(), tmp_path)
    assert (workdir / "CLAUDE.md").exists()
    with open_fenced(workdir) as holder:
        for number in (2, 3):
            session.prepare_session(holder, replace(turn(), turn_id=f"turn-{number}"), tmp_path, "")
            assert not (workdir / "CLAUDE.md").exists()
        (workdir / "context" / "messages.json").unlink()
        session.prepare_session(holder, replace(turn(), turn_id="turn-3"), tmp_path, "")
        assert (workdir / "context" / "messages.json").exists()


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of CLAUDE.md that were rendered."""
    texts: list[str] = []
    render = template.render_rules

    def counted(*given: Any) -> str:
        texts.append(render(*given))
        return texts[-1]

    monkeypatch.setattr(session, "render_rules", counted)
    monkeypatch.setattr(template, "render_rules", counted)
    return texts


def prepared(
    workdir: Path,
    root: Path,
    number: int,
    *,
    template: str = "# {{ root }} {{ context }}",
    skills: str = "",
    tools: bool = True,
) -> str:
    """The session's CLAUDE.md after an attempt of the session's turn of this number was prepared."""
    with open_fenced(workdir) as holder:
        session.prepare_session(
            holder, replace(turn(), turn_id=f"turn-{number}"), root, template, tools=tools, skills=skills
        )
    return (workdir / "CLAUDE.md").read_text(encoding="utf-8")


def test_claude_md_is_rendered_once_in_a_session_however_many_turns_and_attempts_it_has(
    workdir: Path, tmp_path: Path, rendered: list[str]
) -> None:
    (workdir / "context").mkdir()
    (workdir / "context" / "note.md").write_text("rot")
    first = prepared(workdir, tmp_path, 1)
    before = (workdir / "CLAUDE.md").stat()
    for number in (1, 2, 3):
        for _attempt in range(2):
            assert prepared(workdir, tmp_path, number) == first
        accept(workdir, replace(turn(), turn_id=f"turn-{number}"), ANSWER)
    after = (workdir / "CLAUDE.md").stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    assert rendered == [first]


@pytest.mark.parametrize("number", [1, 2], ids=["the same turn", "the next turn"])
@pytest.mark.parametrize("change", ["document", "new document", "template", "tools", "skills", "root"])
def test_what_claude_md_depends_on_is_noticed_when_it_changes(
    workdir: Path, tmp_path: Path, rendered: list[str], change: str, number: int
) -> None:
    template = "{{ tools }} {{ root }} {{ skills }} {{ context }}"
    (workdir / "context").mkdir()
    (workdir / "context" / "note.md").write_text("rot")
    first = prepared(workdir, tmp_path, 1, template=template)
    match change:
        case "document":
            (workdir / "context" / "note.md").write_text("blau")
            second = prepared(workdir, tmp_path, number, template=template)
        case "new document":
            (workdir / "context" / "more.md").write_text("blau")
            second = prepared(workdir, tmp_path, number, template=template)
        case "template":
            second = prepared(workdir, tmp_path, number, template=template + "!")
        case "tools":
            second = prepared(workdir, tmp_path, number, template=template, tools=False)
        case "skills":
            second = prepared(workdir, tmp_path, number, template=template, skills="/team/skills")
            assert "/team/skills" in second
        case _:
            second = prepared(workdir, tmp_path / "other", number, template=template)
    assert second != first
    assert rendered == [first, second]


@pytest.mark.parametrize("number", [1, 2], ids=["the same turn", "the next turn"])
@pytest.mark.parametrize("foreign", ["", "gone", "link", "second name", "same size"])
def test_a_claude_md_that_somebody_changed_or_removed_is_restored(
    workdir: Path, tmp_path: Path, foreign: str, number: int
) -> None:
    rules, other = workdir / "CLAUDE.md", tmp_path / "other.md"
    first = prepared(workdir, tmp_path, 1)
    other.write_text(first)
    match foreign:
        case "same size":
            rules.write_text("x" * len(first.encode()))
        case "second name":
            (tmp_path / "name.md").hardlink_to(rules)
        case _:
            rules.unlink()
            if foreign == "link":
                rules.symlink_to(other)
            elif not foreign:
                rules.write_text(first + "Tu, was ich sage.")
    assert prepared(workdir, tmp_path, number) == first
    assert not rules.is_symlink()
    assert rules.stat().st_nlink == 1
    assert other.read_text() == first


def test_the_claude_md_that_another_worker_wrote_stays_when_it_says_the_same(
    workdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rendered: list[str]
) -> None:
    first = prepared(workdir, tmp_path, 1)
    with monkeypatch.context() as another:
        another.setattr(session, "_versions", RecentEntries[Path, PreparedSession](most=1))
        prepared(workdir, tmp_path, 2)
    written = (workdir / "CLAUDE.md").stat().st_ino
    assert prepared(workdir, tmp_path, 3) == first
    assert (workdir / "CLAUDE.md").stat().st_ino == written
    assert rendered == [first, first]
