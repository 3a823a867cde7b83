"""The answer a run left: its file, its standard output, or its transcript, which the real CLI wrote in these tests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.runners.base import Order
from worker.runners.claude import cli_transcript
from worker.runners.claude.answer import Left, left_by
from worker.runners.claude.cli_sessions import Base
from worker.runners.claude.cli_stream import ClaudeStream
from worker.runners.claude.cli_transcript import NotReadable, recorded
from worker.runners.claude.hooks import STOP

RECORDED = Path(__file__).parent / "claude_transcripts"
SESSION = "00000000-0000-5000-8000-000000000001"
PROMPT = b"Nachricht des Nutzers:\n\nHallo"
FEEDBACK = "Rückmeldung der automatischen Prüfung zu deiner letzten Antwort:\n\nFeedback".encode()

OK = {"type": "result", "subtype": "success", "is_error": False}


def transcript(name: str) -> bytes:
    return (RECORDED / f"{name}.jsonl").read_bytes()


def said(text: str, number: int = 1, **more: Any) -> bytes:
    message = {"id": f"m{number}", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    told = {"type": "assistant", "uuid": f"u{number}", "sessionId": SESSION, "message": message, **more}
    return json.dumps(told).encode() + b"\n"


def asked(text: str, number: int = 0, **more: Any) -> bytes:
    told = {"type": "user", "uuid": f"a{number}", "sessionId": SESSION, "message": {"content": text}, **more}
    return json.dumps(told).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "prompt", "text", "last"),
    [
        ("tool", PROMPT, "Vorher Text.\n\nfertig", "fertig"),
        ("max_tokens", PROMPT, "abc def", "def"),
        ("background", PROMPT, "Ich warte.\n\nGuten Tag", "Guten Tag"),
        ("cut", PROMPT, "Ganzer TextGanzer Text", "Ganzer Text"),  # the stub's model starts again, which no model does
        ("refused", PROMPT, "halb\n\ndoch ganz", "doch ganz"),
        ("continued", FEEDBACK, "xxxxxxxxxx", "xxxxxxxxxx"),
        ("empty", PROMPT, "Vorher Text.", ""),
    ],
)
def test_the_transcript_of_the_real_cli_holds_the_answer(name: str, prompt: bytes, text: str, last: str) -> None:
    found = recorded(transcript(name), SESSION, prompt)
    assert (found.text, found.last, found.stop_reason) == (text, last, "end_turn")


def test_the_same_prompt_asked_again_begins_the_newer_answer() -> None:
    content = asked("Hallo") + said("alt") + asked("Hallo", 1) + said("neu", 2)
    assert recorded(content, SESSION, b"Hallo").text == "neu"


def test_an_answer_of_the_conversation_before_is_never_taken_for_this_runs() -> None:
    """A run that recorded nothing of its own leaves the base alone: its last answer is another turn's."""
    base = transcript("continued")
    with pytest.raises(NotReadable, match="does not hold this run's prompt"):
        recorded(base, SESSION, FEEDBACK, before=base)
    with pytest.raises(NotReadable):
        recorded(base, SESSION, b"Etwas anderes")


def test_another_sessions_records_and_a_subagents_are_no_part_of_the_answer() -> None:
    content = asked("Hallo") + said("innen", isSidechain=True) + said("fremd", 2, sessionId="x") + said("gut", 3)
    assert recorded(content, SESSION, b"Hallo").text == "gut"


def test_what_the_cli_says_itself_is_no_part_of_the_answer() -> None:
    own = {"id": "x", "model": "<synthetic>", "content": [{"type": "text", "text": "API Error: 529"}]}
    content = asked("Hallo") + said("gut") + said("", 2, message=own) + said("so", 3)
    assert recorded(content, SESSION, b"Hallo").text == "gutso"


def test_a_last_message_without_text_has_none() -> None:
    thought = {"id": "m2", "content": [{"type": "thinking", "thinking": "..."}], "stop_reason": "end_turn"}
    found = recorded(asked("Hallo") + said("gut") + said("", 2, message=thought), SESSION, b"Hallo")
    assert (found.text, found.last, found.lacks(""), found.lacks("gut")) == ("gut", "", False, True)


def test_a_torn_line_may_be_a_missing_message() -> None:
    with pytest.raises(NotReadable, match="line 2 of the transcript is torn"):
        recorded(asked("Hallo") + said("eins")[:-9] + b"\n" + said("zwei", 2), SESSION, b"Hallo")


def test_an_endless_answer_is_not_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_transcript, "MAX_ANSWER", 10)
    with pytest.raises(NotReadable, match="longer than 10"):
        recorded(asked("Hallo") + said("x" * 11), SESSION, b"Hallo")


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=6), st.integers(0, 200))
def test_no_beginning_of_a_transcript_passes_for_the_whole(texts: list[str], cut: int) -> None:
    """Whatever is cut off, the rest is refused or does not end with the last message, unless nothing was lost."""
    pieces = [said(text, number) for number, text in enumerate([*texts, "das Ende"], 1)]
    whole = asked("Hallo") + b"".join(pieces)
    rest = whole[: max(0, len(whole) - 1 - cut)]
    try:
        found = recorded(rest, SESSION, b"Hallo")
    except NotReadable:
        return
    assert found.lacks("das Ende") or found.text.endswith("das Ende")
    if not found.lacks("das Ende"):
        assert found.text == recorded(whole, SESSION, b"Hallo").text


class Run:
    """One run's folders, as the CLI leaves them."""

    def __init__(self, order: Order, tmp_path: Path) -> None:
        self.order = order
        self.home = tmp_path / "home"
        self.path = self.home / ".claude" / "projects" / "x" / f"{SESSION}.jsonl"
        self.path.parent.mkdir(parents=True)
        (order.directory / "marks").mkdir()
        (order.directory / "output").mkdir()
        self.stream = ClaudeStream()
        self.base = Base()

    def stopped(self, message: str, path: Path | None = None) -> None:
        heard = {"session_id": SESSION, "transcript_path": str(path or self.path), "last_assistant_message": message}
        (self.order.directory / "marks" / STOP).write_text(f"{self.order.mark}\n{json.dumps(heard)}")

    def told(self, *lines: dict[str, Any] | bytes) -> None:
        for line in lines:
            self.stream.take_line(line if isinstance(line, bytes) else json.dumps(line).encode())

    def left(self) -> Left:
        return left_by(self.order, SESSION, PROMPT, self.base, self.home, self.stream)


@pytest.fixture
def run(order: Callable[..., Order], tmp_path: Path) -> Run:
    return Run(order(), tmp_path)


def delta(text: str) -> dict[str, Any]:
    event = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
    return {"type": "stream_event", "event": event}


def block(text: str) -> dict[str, Any]:
    return {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": text}]}}


def test_half_of_standard_output_is_not_the_answer(run: Run) -> None:
    run.path.write_bytes(transcript("tool"))
    run.stopped("fertig")
    run.told(delta("Vorher"))
    left = run.left()
    assert (left.text, left.origin, left.missing) == ("Vorher Text.\n\nfertig", "transcript", "")


def test_without_a_transcript_half_an_answer_stays_half(run: Run) -> None:
    run.stopped("fertig")
    run.told(delta("Vorher"))
    left = run.left()
    assert (left.text, left.origin) == ("Vorher", "output")
    assert "No such file" in left.missing


def test_a_transcript_that_ends_before_the_last_message_proves_nothing(run: Run) -> None:
    run.path.write_bytes(b"".join(transcript("tool").splitlines(keepends=True)[:4]))
    run.stopped("fertig")
    left = run.left()
    assert (left.text, left.origin) == ("Vorher Text.", "transcript")
    assert "does not end with the last message" in left.missing


def test_an_empty_last_message_needs_an_empty_end(run: Run) -> None:
    run.stopped("")
    run.path.write_bytes(transcript("empty"))
    assert run.left().missing == ""
    run.path.write_bytes(transcript("tool"))
    assert "does not end" in run.left().missing


def test_a_killed_run_keeps_the_longest_text_known(run: Run) -> None:
    run.path.write_bytes(b"".join(transcript("tool").splitlines(keepends=True)[:4]))
    (run.order.directory / "marks" / STOP).unlink(missing_ok=True)
    heard = {"session_id": SESSION, "transcript_path": str(run.path)}
    (run.order.directory / "marks" / "SessionStart").write_text(f"x\n{json.dumps(heard)}")
    run.told(delta("Vor"))
    assert run.left().text == "Vorher Text."
    run.told(delta("her Text."), block("Vorher Text."), delta("\n\nfer"))
    assert run.left().text == "Vorher Text.\n\nfer"


def test_a_result_that_the_text_does_not_end_with_proves_nothing(run: Run) -> None:
    run.stopped("Ende")
    run.told(block("Anfang"), OK | {"result": "Ende"})
    assert run.left().missing


def test_standard_output_that_closed_between_two_results_is_not_the_answer(run: Run) -> None:
    run.path.write_bytes(transcript("background"))
    run.stopped("Guten Tag")
    run.told(block("Ich warte."), OK | {"result": "Ich warte."})
    assert (run.left().text, run.left().missing) == ("Ich warte.\n\nGuten Tag", "")
    run.path.unlink()
    assert run.left().missing


def test_the_transcript_helps_where_a_result_does_not_fit(run: Run) -> None:
    run.path.write_bytes(transcript("tool"))
    run.stopped("fertig")
    run.told(block("Vorher Text."), OK | {"result": "fertig"})
    assert run.left().text == "Vorher Text.\n\nfertig"
    run.told(OK | {"result": "etwas anderes"})
    assert "does not hold the result" in run.left().missing


def test_an_unreadable_line_may_have_been_a_piece_of_the_answer(run: Run) -> None:
    run.path.write_bytes(transcript("tool"))
    run.stopped("fertig")
    run.told(b"\xff", block("fertig"), OK | {"result": "fertig"})
    left = run.left()
    assert (left.text, left.origin, left.missing) == ("Vorher Text.\n\nfertig", "transcript", "")


def test_white_space_at_the_end_is_no_difference(run: Run) -> None:
    run.told(block("Guten Tag \n\n"), OK | {"result": "Guten Tag"})
    left = run.left()
    assert (left.text, left.origin, left.missing) == ("Guten Tag \n\n", "output", "")


def test_nor_is_a_byte_order_mark_which_the_cli_trims(run: Run) -> None:
    run.stopped("Guten Tag")
    run.told(block("Guten Tag\ufeff \u2028"), OK | {"result": "Guten Tag\ufeff \u2028"})
    assert run.left().missing == ""


def test_the_file_the_agent_wrote_is_the_answer(run: Run) -> None:
    (run.order.directory / "output" / "response.md").write_text("Aus der Datei\n")
    run.told(block("Fertig."), OK | {"result": "Fertig."})
    assert (run.left().text, run.left().origin) == ("Aus der Datei", "file")


def test_a_transcript_elsewhere_of_another_name_or_too_large_is_not_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / f"{SESSION}.jsonl"
    other.write_bytes(transcript("tool"))
    run.stopped("fertig", other)
    assert "not in the run's own HOME" in run.left().missing
    named = run.path.with_name("other.jsonl")
    named.write_bytes(transcript("tool"))
    run.stopped("fertig", named)
    assert "not this run's" in run.left().missing
    run.stopped("fertig")
    run.path.symlink_to(named)
    assert run.left().missing
    run.path.unlink()
    os.mkfifo(run.path)
    assert "no regular file" in run.left().missing
    run.path.unlink()
    run.path.write_bytes(transcript("tool"))
    monkeypatch.setattr(cli_transcript, "MAX_TRANSCRIPT", 100)
    assert "larger than 100 bytes" in run.left().missing


def test_a_base_that_cannot_be_read_proves_nothing(run: Run, tmp_path: Path) -> None:
    run.path.write_bytes(transcript("tool"))
    run.stopped("fertig")
    run.base = Base(transcript=tmp_path / "gone.jsonl", knows="message")
    assert "No such file" in run.left().missing
    run.base.transcript.write_bytes(transcript("tool"))  # type: ignore[union-attr]
    assert "does not hold this run's prompt" in run.left().missing
