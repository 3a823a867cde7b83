"""The hook script, the settings of one run, the prompt, the command line and the environment."""

import errno
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from worker.runners.agent_sessions import agent_session_id
from worker.runners.base import AgentEvent, Order
from worker.runners.claude import cli_stream, cli_transcript, hooks
from worker.runners.claude.cli_launch import build_cli_arguments, build_cli_environment, prepare_files
from worker.runners.claude.cli_program import find_program
from worker.runners.claude.cli_prompt import ENGLISH, GERMAN, build_prompt
from worker.runners.claude.cli_sessions import BaseSession, keep_transcript, read_cost
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.claude.hooks import EVENTS, HOOK, build_settings, find_write_error, read_marks
from worker.runners.event_reader import AnswerTooLong
from worker.runners.guidance import readable_entries


def run_hook(folder: Path, event: str, told: str, mark: str = "t.1.1") -> None:
    subprocess.run(
        ["sh", str(HOOK), event, str(folder)], input=told.encode(), check=True, env={"HELIX_AGENT_MARK": mark}, cwd="/"
    )


def test_the_machine_is_no_project_an_agent_may_read() -> None:
    assert readable_entries(Path("/")) == []


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "a b'c" / "marks"
    folder.mkdir(parents=True)
    return folder


def test_a_hook_leaves_a_mark_that_names_its_run(marks: Path) -> None:
    told = {
        "session_id": "s",
        "background_tasks": [1, 2],
        "last_assistant_message": "Gut.\nSehr.",
        "transcript_path": "/t",
    }
    run_hook(marks, "Stop", json.dumps(told))
    mark = read_marks(marks.parent)["Stop"]
    assert (mark.run, mark.session, mark.background, mark.message) == ("t.1.1", "s", 2, "Gut.\nSehr.")
    assert [path.name for path in marks.iterdir()] == ["Stop"]


def test_the_last_of_two_marks_counts(marks: Path) -> None:
    for background in ([1], []):
        run_hook(marks, "Stop", json.dumps({"background_tasks": background}))
    assert read_marks(marks.parent)["Stop"].background == 0


@pytest.mark.parametrize(
    "content", [b"", b"t.1.1\n", b"t.1.1\n[]", b"t.1.1\n{", b"t.1.1\n" + b"[" * 99_999, b"\xff\n\xff"]
)
def test_half_a_mark_is_none(marks: Path, content: bytes) -> None:
    (marks / "Stop").write_bytes(content)
    assert read_marks(marks.parent) == {}


def test_a_linked_mark_is_none(marks: Path) -> None:
    run_hook(marks, "Stop", "{}")
    (marks / "Stop").rename(marks / "moved")
    (marks / "Stop").symlink_to(marks / "moved")
    assert read_marks(marks.parent) == {}


def test_a_run_without_marks_has_none(tmp_path: Path) -> None:
    assert read_marks(tmp_path) == {}


def test_the_registered_command_survives_any_path(marks: Path) -> None:
    found = json.loads(build_settings(marks, readable=[], protected=[], allowed=[]))
    assert set(found["hooks"]) == set(EVENTS)
    for event, groups in found["hooks"].items():
        (hook,) = groups[0]["hooks"]
        assert hook["timeout"] >= 5
        subprocess.run(["sh", "-c", hook["command"]], input=b"{}", check=True, env={"HELIX_AGENT_MARK": "m"})
        assert (marks / event).exists()


def test_permissions_name_what_may_be_read_and_what_not_written(marks: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = json.loads(
        build_settings(marks, readable=[tmp_path, tmp_path / "file"], protected=[marks], allowed=["WebSearch"])
    )
    assert found["permissions"]["allow"] == [f"Read(/{tmp_path}/**)", f"Read(/{tmp_path}/file)", "WebSearch"]
    assert found["permissions"]["deny"] == [f"Edit(/{marks}/**)"]


def test_the_plugins_that_the_cli_brings_along_are_off(marks: Path) -> None:
    plugins = json.loads(build_settings(marks, readable=[], protected=[], allowed=[]))["enabledPlugins"]
    assert set(plugins.values()) == {False}
    assert all(name.endswith("@builtin") for name in plugins), "none that a team installs"


def test_sessions_secrets_and_links_of_the_project_are_not_readable(tmp_path: Path) -> None:
    for name in ("src", "projects", ".git", "adr"):
        (tmp_path / name).mkdir()
    (tmp_path / ".env").touch()
    (tmp_path / "README.md").touch()
    (tmp_path / "link").symlink_to("/etc")
    assert [entry.name for entry in readable_entries(tmp_path)] == ["README.md", "adr", "src"]
    assert readable_entries(tmp_path / "missing") == []


TALK = (
    {"role": "user", "content": "Eins"},
    {"role": "assistant", "content": "Zwei"},
    {"role": "user", "content": "Drei"},
)


def test_a_fresh_session_is_told_the_history() -> None:
    told = build_prompt("Drei", TALK).decode()
    assert told == f"{ENGLISH.history}\n\nUser: Eins\n\nConsultant: Zwei\n\n{ENGLISH.message}\n\nDrei"
    told = build_prompt("Drei", TALK, locale="de").decode()
    assert told == f"{GERMAN.history}\n\nNutzer: Eins\n\nConsultant: Zwei\n\n{GERMAN.message}\n\nDrei"


def test_a_session_that_knows_the_history_is_told_the_message() -> None:
    assert build_prompt("Drei", TALK, knows="history").decode() == f"{ENGLISH.message}\n\nDrei"


def test_a_session_held_under_other_instructions_is_told_those_of_now_wherever_they_stand() -> None:
    given = (("system", "Duze."), ("developer", "Kurz."), ("tool", "42"))
    first, *others = ({"role": role, "content": text} for role, text in given)
    told = build_prompt("Drei", [first, *TALK[:2], *others, TALK[2]], knows="dialogue").decode()
    now = "Instruction: Duze.\n\nInstruction: Kurz."
    assert told == f"{ENGLISH.instructions}\n\n{now}\n\n{ENGLISH.message}\n\nDrei"
    told = build_prompt("Drei", [*TALK[:2], others[1], TALK[2]], knows="dialogue").decode()
    assert told == f"{ENGLISH.no_instructions}\n\n{ENGLISH.message}\n\nDrei"


def test_a_session_that_knows_the_message_is_told_the_feedback() -> None:
    assert build_prompt("Marker fehlt", TALK, knows="message").decode() == f"{ENGLISH.feedback}\n\nMarker fehlt"


def test_feedback_to_a_session_that_knows_nothing_comes_with_the_message() -> None:
    assert build_prompt("Fehlt", TALK[:1]).decode() == f"{ENGLISH.message}\n\nEins\n\n{ENGLISH.feedback}\n\nFehlt"


def test_an_agent_that_is_to_go_on_reads_its_text_before_the_feedback() -> None:
    told = build_prompt("Setze fort", TALK[:1], so_far="Halber Te").decode()
    assert told == f"{ENGLISH.message}\n\nEins\n\n{ENGLISH.so_far}\n\nHalber Te\n\n{ENGLISH.feedback}\n\nSetze fort"


def test_an_agent_that_does_not_remember_its_answer_reads_it_before_the_feedback() -> None:
    told = build_prompt("Fehlt", TALK[:1], rejected="Zwei").decode()
    assert told == f"{ENGLISH.message}\n\nEins\n\n{ENGLISH.rejected}\n\nZwei\n\n{ENGLISH.feedback}\n\nFehlt"
    knowing = build_prompt("Fehlt", TALK[:1], knows="message", rejected="Zwei").decode()
    assert knowing == f"{ENGLISH.feedback}\n\nFehlt"


def test_an_english_turn_has_english_lines_and_no_german_word() -> None:
    told = build_prompt("Missing", TALK, so_far="Half an ans", locale="en").decode()
    parts = [f"{ENGLISH.history}\n\nUser: Eins\n\nConsultant: Zwei", f"{ENGLISH.message}\n\nDrei"]
    parts += [f"{ENGLISH.so_far}\n\nHalf an ans", f"{ENGLISH.feedback}\n\nMissing"]
    assert told == "\n\n".join(parts)
    long = build_prompt(
        "x", ({"role": "user", "content": "y" * 300_000}, {"role": "user", "content": "x"}), locale="en-GB"
    )
    assert ENGLISH.left_out.encode() in long


def test_something_is_always_said() -> None:
    assert build_prompt("Eins", TALK[:1], knows="message").decode() == f"{ENGLISH.message}\n\nEins"
    assert build_prompt("Eins", ()).decode() == f"{ENGLISH.message}\n\nEins"


def test_a_long_history_loses_its_oldest_messages() -> None:
    told = build_prompt(
        "x", [*({"role": "user", "content": f"{n}" * 60_000} for n in range(9)), {"content": "x"}]
    ).decode()
    assert "left out" in told
    assert len(told) < 250_000
    assert "8" * 60_000 in told


@pytest.mark.parametrize("message", ["/clear", "a\0b", "\ud800"])
def test_any_message_is_bytes_that_begin_with_our_line(message: str) -> None:
    told = build_prompt(message, ({"role": "user", "content": message},))
    assert told.decode().startswith(ENGLISH.message)
    assert b"\0" not in told


def test_each_delivery_has_an_agent_session_of_its_own(order: Callable[..., Order]) -> None:
    assert agent_session_id(order()) == agent_session_id(order())
    assert len({agent_session_id(order(attempt=a, delivery=d)) for a in (1, 2) for d in (1, 2)}) == 4


def test_the_command_forks_from_a_base_and_never_continues_blindly(order: Callable[..., Order], tmp_path: Path) -> None:
    base = BaseSession(transcript=tmp_path / "b.jsonl", knows="message")
    found = build_cli_arguments(Settings(root=tmp_path), order(), tmp_path / "s.json", "new", base)
    assert found[-5:] == ["--resume", str(tmp_path / "b.jsonl"), "--fork-session", "--session-id", "new"]
    assert not {"--continue", "-c", "--append-system-prompt"} & set(found)
    assert "--resume" not in build_cli_arguments(
        Settings(root=tmp_path), order(), tmp_path / "s.json", "new", BaseSession()
    )


def test_the_models_option_names_the_model_of_the_cli(order: Callable[..., Order], tmp_path: Path) -> None:
    given = Settings(root=tmp_path)
    assert "--model" not in build_cli_arguments(given, order(), tmp_path, "s", BaseSession())
    found = build_cli_arguments(given, replace(order(), option="opus"), tmp_path, "s", BaseSession())
    assert found[found.index("--model") + 1] == "opus"


def test_a_run_that_may_only_read_has_no_other_tool_whatever_the_settings_allow(
    order: Callable[..., Order], tmp_path: Path
) -> None:
    """A verifier cannot change, run or fetch anything, and reads its own folder only."""
    given = Settings(
        root=tmp_path,
        claude_tools=("default",),
        claude_permission_mode="bypassPermissions",
        claude_allowed_tools=("Bash(*)", "WebFetch"),
    )
    reading = replace(order(), read_only=True)
    found = build_cli_arguments(given, reading, tmp_path / "s.json", "new", BaseSession())
    assert found[found.index("--tools") + 1] == "Read,Glob,Grep"
    assert found[found.index("--permission-mode") + 1] == "dontAsk"
    rules = json.loads(prepare_files(reading, tmp_path / "home", given).read_text())["permissions"]
    assert rules["allow"] == [f"Read(/{reading.directory}/**)"]


def test_the_agent_may_read_its_feedback(order: Callable[..., Order], tmp_path: Path) -> None:
    rules = json.loads(prepare_files(order(), tmp_path / "home", Settings(root=tmp_path)).read_text())["permissions"]
    assert f"Read(/{tmp_path}/feedback.md)" in rules["allow"]


def test_the_agent_may_read_what_earlier_phases_of_its_owner_wrote_and_no_other_private_place(
    order: Callable[..., Order], tmp_path: Path
) -> None:
    """CVE class "foreign object": the private places of owners lie below projects/, which agents may not read."""
    own = tmp_path / "projects" / "phases" / "phases-1" / "one" / "output" / "a.md"
    for place in (own, tmp_path / "projects" / "phases" / "phases-2" / "one" / "output" / "a.md"):
        place.parent.mkdir(parents=True)
        place.touch()
    file = prepare_files(order(inputs=(own,)), tmp_path / "home", Settings(root=tmp_path))
    allowed = json.loads(file.read_text())["permissions"]["allow"]
    assert f"Read(/{own})" in allowed
    assert [rule for rule in allowed if "projects" in rule] == [f"Read(/{own})"]


def test_the_environment_is_built_from_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIX_STORE_URL", "redis://:hidden@localhost/0")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "hidden")
    found = build_cli_environment(Settings(root=tmp_path, claude_api_key="sk-1"), tmp_path)
    assert "hidden" not in " ".join(found.values())
    assert found["ANTHROPIC_API_KEY"] == "sk-1"
    assert "ANTHROPIC_API_KEY" not in build_cli_environment(Settings(root=tmp_path), tmp_path)
    token = build_cli_environment(Settings(root=tmp_path, claude_api_key="sk-ant-oat01-x"), tmp_path)
    assert token["CLAUDE_CODE_OAUTH_TOKEN"] == "sk-ant-oat01-x"


def test_a_program_that_is_not_there_is_told_with_its_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HELIX_CLAUDE_PATH='no-such': no such program"):
        find_program(Settings(root=tmp_path, claude_path="no-such"))
    assert find_program(Settings(root=tmp_path, claude_path="sh")).endswith("/sh")


def test_only_a_transcript_of_the_runs_own_home_is_kept(order: Callable[..., Order], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    own, others = (f"{agent_session_id(order(delivery=delivery))}.jsonl" for delivery in (1, 2))
    (home / own).write_text("x")
    (tmp_path / others).write_text("y")
    (home / others).symlink_to(tmp_path / others)
    assert keep_transcript(order(), str(home / own), home) == agent_session_id(order())
    assert (tmp_path / "agent" / own).read_text() == "x"
    for strange in (tmp_path / others, home / others, home / own, Path("/etc/passwd")):
        assert not keep_transcript(order(delivery=2), str(strange), home)
    assert not keep_transcript(order(delivery=3), str(home / f"{agent_session_id(order(delivery=3))}.jsonl"), home)
    assert not keep_transcript(order(delivery=2), "", home)


def test_a_folder_that_takes_no_marks_says_why(marks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_write_error(marks.parent) == ""
    assert list(marks.iterdir()) == []

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hooks, "replace_file", full)
    assert find_write_error(marks.parent) == "[Errno 28] No space left on device"
    marks.rmdir()
    assert "No such file" in find_write_error(marks.parent)


def test_the_cost_of_a_session_stands_in_its_transcript() -> None:
    assert read_cost(b'{"type":"user"}\n{"type":"cost-state","totalCostUSD":0.5}\n{"type":"x"}\n') == 0.5
    assert read_cost(b'{"type":"cost-state","totalCostUSD":"x"}\n"cost-state"\n{"cost-state" \n') == 0.0
    assert read_cost(b"") == 0.0


# What the real CLI told, recorded: the text a reader is left with, tools, usage, and lines that mean nothing.

RECORDED = Path(__file__).parent / "claude_streams"


def played(name: str) -> tuple[ClaudeStream, list[AgentEvent]]:
    return fed(*(RECORDED / f"{name}.jsonl").read_bytes().splitlines())


def fed(*lines: bytes | dict[str, Any]) -> tuple[ClaudeStream, list[AgentEvent]]:
    stream, events = ClaudeStream(), []
    for line in lines:
        events += stream.take_line(json.dumps(line).encode() if isinstance(line, dict) else line)
    return stream, events


def shown(events: list[AgentEvent]) -> str:
    text = ""
    for event in events:
        text = "" if event.kind == "reset" else text + (event.text if event.kind == "output" else "")
    return text


def delta(text: str) -> dict[str, Any]:
    event = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
    return {"type": "stream_event", "event": event}


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": text}]}, **more}


START: dict[str, Any] = {"type": "stream_event", "event": {"type": "message_start", "message": {"id": "m2"}}}
OK: dict[str, Any] = {"type": "result", "subtype": "success", "is_error": False}
RETRY: dict[str, Any] = {"type": "system", "subtype": "api_retry", "retry_delay_ms": 3500, "error_status": 529}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("normal", "Guten Tag.\n\n<!-- STEP: done -->"),
        ("tool_use", "Guten Tag.\n\n<!-- STEP: done -->"),
        ("max_tokens", "erster Teil, zweiter Teil"),
        ("cut", "a b c "),
        ("http_429", ""),
        ("unknown_session", ""),
    ],
)
def test_the_text_is_what_the_assistant_said_and_what_a_reader_saw(name: str, text: str) -> None:
    stream, events = played("tool" if name == "tool_use" else name)
    assert (stream.text, shown(events)) == (text, text)


def test_a_stream_that_was_cut_is_taken_back_before_it_comes_again() -> None:
    _, events = played("cut")
    assert [event.kind for event in events].count("reset") == 1


def test_a_killed_run_leaves_its_fragment() -> None:
    stream, _ = played("sigkill")
    assert stream.text.startswith("Das ")
    assert stream.result == {}


def test_the_last_result_counts() -> None:
    stream, _ = played("background")
    assert stream.result["subtype"] == "success"
    assert stream.text.endswith("<!-- STEP: done -->")


def test_tools_are_told_with_what_they_are_about() -> None:
    _, events = played("tool")
    assert [(e.text, e.detail) for e in events if e.kind == "tool"] == [("Write", "output/notes.md")]


def test_errors_of_the_service_are_no_answer() -> None:
    stream, events = played("tool_then_400")
    assert stream.text == ""
    assert stream.result["api_error_status"] == 400
    assert [event.kind for event in events] == ["tool"]


def test_a_retry_of_the_service_is_told() -> None:
    stream, events = played("http_429")
    assert (stream.retries, stream.error) == (1, "rate_limit")
    assert [event.text for event in events if event.kind == "note"] == ["the service is asked again: 429"]


def test_usage_counts_every_message_and_every_result() -> None:
    assert played("tool")[0].report_usage()["input_tokens"] == 22
    assert played("sigkill")[0].report_usage() == {"input_tokens": 11, "output_tokens": 7}
    assert played("unknown_session")[0].report_usage()["cost_usd"] == 0


def test_cached_input_is_input() -> None:
    usage = {"input_tokens": 1, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 5}
    stream, _ = fed({"type": "result", "usage": usage, "total_cost_usd": 0.5})
    assert stream.report_usage() == {"input_tokens": 111, "output_tokens": 5, "cost_usd": 0.5}


def test_the_cost_of_the_session_before_is_not_counted_again() -> None:
    stream, _ = fed({"type": "result", "usage": {"output_tokens": 1}, "total_cost_usd": 0.5})
    assert stream.report_usage(0.375)["cost_usd"] == 0.125
    assert stream.report_usage(0.75)["cost_usd"] == 0.5


def test_text_in_another_message_than_streamed_replaces_it() -> None:
    stream, events = fed(delta("halb"), RETRY, START, said("ganz"))
    assert (stream.text, shown(events), stream.retry_after) == ("ganz", "ganz", 3.5)


def test_what_was_settled_before_a_cut_stays() -> None:
    _, events = fed(delta("eins"), said("eins"), delta(" zw"), START, delta(" zwei"), said(" zwei"))
    assert shown(events) == "eins zwei"


def test_a_block_that_was_streamed_in_part_is_completed() -> None:
    _, events = fed(delta("ha"), said("halb"))
    assert [event.text for event in events] == ["ha", "lb"]


def test_a_subagent_does_not_talk_to_the_user() -> None:
    stream, events = fed(said("innen", parent_tool_use_id="t"))
    assert (stream.text, events) == ("", [])


@pytest.mark.parametrize(
    "line",
    [b"nonsense", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"type": "stream_event", "event": 3}',
     b'{"type": "assistant", "message": {"content": "x"}}', b'{"type": "result", "usage": [], "total_cost_usd": "x"}',
     b'{"type": "user", "message": null}', b'{"type": "system", "subtype": "api_retry", "retry_delay_ms": "x"}'],
)  # fmt: skip
def test_a_strange_line_breaks_nothing(line: bytes) -> None:
    stream, _ = fed(line, said("gut"))
    assert stream.text.endswith("gut")
    stream.report_usage()


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert fed(b'{"type":"assistant","message":{"content":[{"type":"text","text":"\\ud800"}]}}')[0].text == "?"


def test_an_endless_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_stream, "MAX_ANSWER", 10)
    monkeypatch.setattr(cli_transcript, "MAX_ANSWER", 10)
    with pytest.raises(AnswerTooLong):
        fed(delta("x" * 6), delta("x" * 6))


def test_the_answer_can_be_replaced_by_a_file() -> None:
    stream, events = fed(delta("Fertig."), said("Fertig."))
    events += stream.replace_answer("Aus der Datei", "the answer is in the file")
    assert (stream.text, shown(events)) == ("Aus der Datei", "Aus der Datei")
    assert stream.replace_answer("Aus der Datei", "x") == []


def test_what_was_seen_already_is_only_completed() -> None:
    stream, events = fed(delta("Guten "))
    events += stream.replace_answer("Guten Tag", "the answer is in the transcript")
    assert [(event.kind, event.text) for event in events] == [("output", "Guten "), ("output", "Tag")]
    assert stream.text == "Guten Tag"


def test_two_results_stand_in_paragraphs() -> None:
    stream, events = fed(said("eins"), OK | {"result": "eins"}, delta("zwei"), said("zwei"), OK | {"result": "zwei"})
    assert (stream.text, shown(events), stream.is_whole) == ("eins\n\nzwei", "eins\n\nzwei", True)
    assert played("background")[0].text == "Ich warte.\n\nGuten Tag.\n\n<!-- STEP: done -->"


def asked(text: str) -> dict[str, Any]:
    return {"type": "user", "message": {"content": [{"type": "text", "text": text}]}, "isSynthetic": True}


@pytest.mark.parametrize(
    ("between", "text"),
    [
        ("Output token limit hit. Resume directly \u2014 no apology", "einszwei"),
        ("Your response above was cut off mid-stream. Resume directly from where it stops", "einszwei"),
        ("Stop hook feedback: noch einmal", "eins\n\nzwei"),
    ],
)
def test_only_a_message_that_was_cut_goes_on_without_a_gap(between: str, text: str) -> None:
    assert fed(said("eins"), asked(between), said("zwei"))[0].text == text


def test_a_tools_result_makes_a_paragraph_whatever_follows() -> None:
    tool = {"type": "user", "message": {"content": [{"type": "tool_result", "content": "x"}]}}
    assert fed(said("eins"), tool, asked("Resume directly"), said("zwei"))[0].text == "eins\n\nzwei"


@pytest.mark.parametrize(
    ("lines", "whole"),
    [
        ([said("ganz"), OK | {"result": "ganz"}], True),
        ([said("ganz \n"), OK | {"result": "ganz"}], True),
        ([said("vorher"), said("ganz"), OK | {"result": "ganz"}], True),
        ([said("ganz"), OK | {"result": ""}], True),
        ([said("ganz")], False),
        ([], False),
        ([delta("ga"), OK | {"result": "ganz"}], False),
        ([said("vorher"), OK | {"result": "ganz"}], False),
        ([said("vorher"), OK | {"result": "ganz"}, said("ganz"), OK | {"result": "ganz"}], False),
        ([b"\xff", said("ganz"), OK | {"result": "ganz"}], False),
    ],
)
def test_a_text_is_whole_when_every_result_was_its_end(lines: list[Any], whole: bool) -> None:
    assert fed(*lines)[0].is_whole is whole


@pytest.mark.parametrize("name", ["normal", "tool", "max_tokens", "cut"])
def test_what_the_real_cli_told_is_whole_and_no_beginning_of_it_is(name: str) -> None:
    lines = (RECORDED / f"{name}.jsonl").read_bytes().splitlines()
    assert fed(*lines)[0].is_whole
    result = next(number for number, line in enumerate(lines) if json.loads(line)["type"] == "result")
    assert not any(fed(*lines[:cut])[0].is_whole for cut in range(result + 1))


@pytest.mark.parametrize(("status", "until"), [("rejected", 1795316031.0), ("allowed", 0.0)])
def test_a_subscription_that_is_used_up_says_until_when(status: str, until: float) -> None:
    told = {"type": "rate_limit_event", "rate_limit_info": {"status": status, "resetsAt": 1795316031}}
    assert fed(told)[0].resets_at == until
