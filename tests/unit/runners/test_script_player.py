"""Playing steps, by the inline runner: the agent process shares this code."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client.contract.settings import load
from tests.inline.runner import InlineRunner
from tests.unit.runners.conftest import Asked, Played
from worker.runners.base import AgentEvent, ErrorKind, Order
from worker.runners.scripted.script_player import split
from worker.runners.transcript import MAX_ANSWER

Play = Callable[..., Played]


def test_an_answer_is_what_was_said(play: Play) -> None:
    played = play({"say": "Guten "}, {"say": "Tag"})
    assert (played.verdict, played.result.text) == ("complete", "Guten Tag")
    assert played.events == [AgentEvent(kind="output", text="Guten "), AgentEvent(kind="output", text="Tag")]


def test_a_text_comes_in_pieces_when_pieces_are_asked_for(play: Play) -> None:
    played = play({"say": {"text": "a b c d", "pieces": 2}})
    assert [event.text for event in played.events] == ["a b", " c d"]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("> eins\n> zwei dr\n\nSetze dort fort.", "zwei drei\nvier"),
        ("> ganz anderes\n\nSetze dort fort.", "eins\nzwei drei\nvier"),
        ("Es fehlt der Marker.", "eins\nzwei drei\nvier"),
    ],
)
def test_an_agent_that_is_asked_to_go_on_says_the_rest(play: Play, prompt: str, said: str) -> None:
    assert play({"say": {"text": "eins\nzwei drei\nvier", "goes_on": True}}, prompt=prompt).result.text == said


def test_a_text_told_over_some_seconds_takes_about_that_long(play: Play) -> None:
    started = time.monotonic()
    played = play({"say": {"text": "eins zwei drei vier fünf", "seconds": 0.2}})
    assert time.monotonic() - started >= 0.2
    assert len(played.events) == 5


@given(st.text(max_size=200), st.integers(0, 20))
def test_the_pieces_of_a_text_are_the_text(text: str, pieces: int) -> None:
    parts = split(text, pieces)
    assert "".join(parts) == text
    assert 1 <= len(parts) <= max(1, pieces)


def test_a_reset_takes_back_what_was_said(play: Play) -> None:
    played = play({"say": "falsch"}, {"reset": "upstream retry"}, {"say": "richtig"})
    assert played.result.text == "richtig"
    assert played.events[1] == AgentEvent(kind="reset", text="upstream retry")


def test_tools_and_notes_are_told_and_are_no_answer(play: Play) -> None:
    played = play({"tool": {"name": "Read", "detail": "a.py"}}, {"note": "hm"}, {"say": "x"})
    assert played.events[:2] == [
        AgentEvent(kind="tool", text="Read", detail="a.py"),
        AgentEvent(kind="note", text="hm"),
    ]
    assert played.result.text == "x"


def test_usage_is_reported(play: Play) -> None:
    played = play({"usage": {"input_tokens": 7, "cost_usd": 0.5}}, {"usage": {"output_tokens": 2}}, {"say": "x"})
    assert played.result.usage == {"input_tokens": 7, "output_tokens": 2, "cost_usd": 0.5}


def test_an_answer_cut_off_is_incomplete(play: Play) -> None:
    played = play({"say": "halb"}, "cut")
    assert (played.verdict, played.result.text) == ("incomplete", "halb")
    assert played.reason == "the agent's output ended without a result"


def test_an_exit_code_is_incomplete(play: Play) -> None:
    played = play({"say": "halb"}, {"exit": 3})
    assert (played.verdict, played.reason) == ("incomplete", "the agent ended with exit code 3")


def test_saying_nothing_is_incomplete(play: Play) -> None:
    assert play({"say": " \n"}).reason == "the agent finished but said nothing"


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_an_error_is_told_with_its_kind_and_its_pause(play: Play, kind: ErrorKind) -> None:
    completion = play({"error": {"kind": kind.value, "message": "overloaded", "retry_after": 2}}).result.completion
    assert completion.verdict == "error"
    assert (completion.kind, completion.reason, completion.retry_after) == (kind, "overloaded", 2.0)


def test_files_are_written_below_the_delivery_directory(play: Play, tmp_path: Path) -> None:
    play({"write": {"path": "output/response.md", "content": "ä"}}, {"touch": "flag"}, {"say": "x"})
    assert (tmp_path / "delivery/output/response.md").read_text(encoding="utf-8") == "ä"
    assert (tmp_path / "delivery/flag").exists()


def test_a_link_does_not_lead_a_write_out_of_the_directory(play: Play, tmp_path: Path) -> None:
    (tmp_path / "delivery").mkdir()
    (tmp_path / "delivery/out").symlink_to(tmp_path)
    played = play({"write": {"path": "out/x", "content": "x"}}, {"say": "x"})
    assert "leads out of the delivery's directory" in played.reason
    assert not (tmp_path / "x").exists()


def test_a_run_waits_for_a_file(play: Play, tmp_path: Path) -> None:
    def make(event: AgentEvent) -> None:
        threading.Timer(0.05, (tmp_path / "go").touch).start()

    played = play({"say": "vorher"}, {"wait_for": str(tmp_path / "go")}, {"say": "!"}, emit=make)
    assert played.result.text == "vorher!"


def test_a_call_back_is_made_and_its_answer_awaited(play: Play) -> None:
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers["Helix-Agent-Mark"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        played = play({"call_back": f"http://127.0.0.1:{server.server_port}/here"}, {"say": "x"})
        thread.join()
        assert seen == [("/here", "t0-1.1.1")]
        server.server_close()
        refused = play({"call_back": f"http://127.0.0.1:{server.server_port}/"}, {"say": "x"})
    assert played.verdict == refused.verdict == "complete"
    assert refused.events[0].text.startswith("call back failed: ")


def test_a_flood_is_a_limit_error(play: Play) -> None:
    played = play({"flood": MAX_ANSWER + 1})
    assert played.result.completion.kind is ErrorKind.LIMIT
    assert len(played.result.text) <= MAX_ANSWER


def test_a_small_flood_is_an_answer(play: Play) -> None:
    assert len(play({"flood": 20_000}).result.text) == 20_000


@pytest.mark.parametrize("step", ["die", "hang", "kill_parent", "fork", "ignore_sigterm"])
def test_inline_refuses_what_needs_a_process(play: Play, step: str) -> None:
    completion = play(step).result.completion
    assert completion.kind is ErrorKind.CONFIG
    assert step in completion.reason


def test_inline_stops_within_a_moment_when_asked(play: Play) -> None:
    stop = Asked()
    threading.Timer(0.05, setattr, (stop, "reason", "cancelled")).start()
    played = play({"say": "x"}, {"wait": 600}, stop=stop)
    assert (played.verdict, played.reason) == ("cancelled", "stopped: cancelled")


def test_inline_ends_at_its_deadline(play: Play) -> None:
    played = play({"wait": 600}, deadline=time.monotonic() + 0.1)
    assert (played.verdict, played.reason) == ("incomplete", "the run's time was up")


def test_inline_records_what_it_executed(play: Play, tmp_path: Path) -> None:
    play({"say": "x"}, witness=str(tmp_path / "witness"))
    lines = [json.loads(line) for line in (tmp_path / "witness").read_text().splitlines()]
    assert [(line["event"], line["turn"], line["delivery"]) for line in lines] == [
        ("start", "t0-1", 1),
        ("end", "t0-1", 1),
    ]


def test_the_rule_is_chosen_by_the_users_message_and_not_by_the_feedback(order: Callable[..., Order]) -> None:
    script = [{"when": "Frage", "attempts": [[{"say": "a"}], [{"say": "b"}]]}]
    messages = (
        {"role": "user", "content": "früher"},
        {"role": "assistant", "content": "..."},
        {"role": "user", "content": "Frage"},
        {"role": "assistant", "content": "a"},
    )
    asked = order(script, message="Bitte den Marker ergänzen", messages=messages, attempt=2)
    assert InlineRunner().run(asked, lambda _: None, Asked()).text == "b"


def test_a_relative_path_of_a_script_counts_from_the_root_wherever_the_worker_was_started(
    order: Callable[..., Order], tmp_path: Path
) -> None:
    asked = order([{"attempts": [["cut"]]}])
    (tmp_path / "mine.yaml").write_text("- attempts: [[{say: Meins}]]\n")
    runner = InlineRunner(load({"HELIX_ROOT": str(tmp_path)}))
    assert runner.run(replace(asked, option="mine.yaml"), lambda _: None, Asked()).text == "Meins"


def test_a_bad_script_is_a_configuration_error_that_names_the_place(order: Callable[..., Order]) -> None:
    completion = InlineRunner().run(order([{"attempts": [["jump"]]}]), lambda _: None, Asked()).completion
    assert completion.kind is ErrorKind.CONFIG
    assert "script.yaml:2:7: [1].attempts[1][1]: no such step 'jump'" in completion.reason


PROMPT = 'A file says {"nonce": "00000000000000000000000000000000"}. Yours:\n"nonce": "5f1c0ffee5f1c0ff"'


def test_a_verdict_repeats_the_last_nonce_of_its_prompt(play: Play) -> None:
    played = play({"verdict": {"success": False, "errors": ["a.py:1: falsch"]}}, prompt=PROMPT)
    assert json.loads(played.result.text) == {
        "nonce": "5f1c0ffee5f1c0ff",
        "success": False,
        "errors": ["a.py:1: falsch"],
    }


def test_a_verdict_may_name_another_nonce_or_find_none(play: Play) -> None:
    assert json.loads(play({"verdict": {"success": True, "nonce": "x"}}, prompt=PROMPT).result.text)["nonce"] == "x"
    assert json.loads(play({"verdict": True}).result.text) == {"nonce": "", "success": True}
