""""""

import dataclasses
import http.server
import inspect
import json
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client.contract.completion import ErrorKind
from api_client.contract.settings import load_settings
from tests.inline.runner import InlineRunner
from tests.runs import Asked, Played
from worker.runners.base import AgentEvent, Order
from worker.runners.event_reader import MAX_ANSWER
from worker.runners.scripted import runner, script
from worker.runners.scripted.agent import ProcessPlayer
from worker.runners.scripted.script_player import split_text

GOOD = """
- when: Rechnung
  attempts:
    - [say: first, {wait: 1}]
    - [say: second]
- matches: "^R.ck(gabe|sendung)"
  deliveries:
    - [die]
    - [say: back]
- attempts: [[say: anything]]
"""


@pytest.mark.parametrize(
    ("message", "attempt", "delivery", "step"),
    [
        pytest.param("Wo ist die Rechnung?", 1, 1, ("say", "first"), id="the first rule whose text it contains"),
        pytest.param("Rückgabe bitte", 1, 1, ("die",), id="an expression can choose the rule"),
        pytest.param("etwas anderes", 1, 1, ("say", "anything"), id="a rule without when matches everything"),
        pytest.param("Rechnung", 2, 1, ("say", "second"), id="attempt n plays list n"),
        pytest.param("Rechnung", 3, 1, ("say", "second"), id="the last list repeats"),
        pytest.param("Rechnung", 9, 1, ("say", "second"), id="the last list repeats without end"),
        pytest.param("Rechnung", 1, 5, ("say", "first"), id="attempts do not count deliveries"),
        pytest.param("Rückgabe", 1, 2, ("say", "back"), id="a rule by deliveries counts deliveries only"),
    ],
)
def test_message_attempt_and_delivery_choose_the_step(
    message: str, attempt: int, delivery: int, step: tuple[str, ...]
) -> None:
    name, values = script.find_steps(script.parse_script(GOOD, "s.yaml"), message, attempt, delivery)[0]
    assert (name, *values.values()) == step


def test_a_message_no_rule_matches_is_an_error_that_says_what_to_do() -> None:
    rules = script.parse_script("- {when: a, attempts: [[cut]]}", "s.yaml")
    with pytest.raises(script.ScriptError, match="a last rule without 'when'"):
        script.find_steps(rules, "xyz", 1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s.yaml:1:1: must be a list of rules, not nothing"),
        ("[", "s.yaml: not valid YAML"),
        ("{a: 1}", "s.yaml:1:1: must be a list of rules, not a mapping"),
        ("- 1", r"\[1\]: a rule must be a mapping"),
        ("- {attempts: [[cut]], wenn: x}", r"1:23: \[1\].wenn: no such key; did you mean 'when'"),
        ("- {when: 1, attempts: [[cut]]}", r"1:10: \[1\].when: must be a text"),
        ("- {when: , attempts: [[cut]]}", r"\[1\].when: must be a text"),
        ("- {when: a, matches: b, attempts: [[cut]]}", r"\[1\]: give 'when' .* not both"),
        ("- {when: a}", r"\[1\]: give 'attempts' or 'deliveries'"),
        ("- {attempts: [[cut]], deliveries: [[cut]]}", "one of the two"),
        ("- {matches: '(', attempts: [[cut]]}", r"\[1\].matches: is not an expression"),
        ("- {attempts: []}", "attempts: must be a list of lists"),
        ("- {attempts: [cut]}", r"attempts\[1\]: must be a list of steps, not a text"),
        (
            "- {attempts: [[cut], [jump]]}",
            r"yaml:1:23: \[1\].attempts\[2\]\[1\]: no such step 'jump'; there are: say",
        ),
        ("- {deliveries: [[{say: a, wait: 1}]]}", r"\[1\].deliveries\[1\]\[1\]: must be the name of a step"),
        ("- {attempts: [[3]]}", r"\[1\]: must be the name of a step"),
        ("- {attempts: [[say]]}", "say.text: say needs 'text'"),
        ("- {attempts: [[{say: 3}]]}", "say.text: must be a text"),
        ("- {attempts: [[{say: {text: a, speed: 3}}]]}", "say.speed: no such key; there are: text, seconds, pieces"),
        ("- {attempts: [[{wait: -1}]]}", "wait.seconds: must be a number, zero or more"),
        ("- {attempts: [[{wait: .inf}]]}", "wait.seconds: must be a number"),
        ("- {attempts: [[{wait: true}]]}", "wait.seconds: must be a number"),
        ("- {attempts: [[{flood: 1.5}]]}", "flood.size: must be a whole number"),
        ("- {attempts: [[{flood: {size: 1, kind: water}}]]}", "kind: must be one of text, noise, line"),
        ("- {attempts: [[{exit: 256}]]}", "exit.code: must be a whole number from 0 to 255"),
        ("- {attempts: [[{cut: 1}]]}", "cut: takes nothing"),
        ("- {attempts: [[{fork: {scrub: 1}}]]}", "scrub: must be true or false"),
        ("- {attempts: [[{touch: ''}]]}", "touch.path: must be a path"),
        ("- {attempts: [[{write: {path: ../a, content: b}}]]}", "must stay inside the delivery's directory"),
        ("- {attempts: [[{write: {path: /etc/a, content: b}}]]}", "must stay inside the delivery's directory"),
        ("- {attempts: [[{error: {kind: odd}}]]}", "kind: must be one of transient, permanent"),
    ],
)
def test_a_wrong_script_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(script.ScriptError, match=message):
        script.parse_script(text, "s.yaml")


def test_every_step_of_the_format_can_be_played_with_the_fields_the_format_allows() -> None:
    for name, shape in script._STEPS.items():
        parameters = inspect.signature(getattr(ProcessPlayer, name)).parameters.values()
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        assert open_ended or set(shape.fields) == {p.name for p in parameters if p.name != "self"}, name
        needed = {p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"}
        assert needed == set(shape.required), name


def test_a_missing_script_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(script.ScriptError, match=r"nothing\.yaml: No such file"):
        script.load_script(tmp_path / "nothing.yaml")


def test_a_script_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"- attempts: [[say: \xfc]]")
    with pytest.raises(script.ScriptError, match="not UTF-8"):
        script.load_script(path)


def test_a_huge_script_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.touch()
    os.truncate(path, script.MAX_SCRIPT + 1)
    with pytest.raises(script.ScriptError, match="larger than"):
        script.load_script(path)


def test_a_script_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("- attempts: [[say: one]]")
    script.load_script(path)
    path.write_text("- attempts: [[say: three]]")
    assert script.load_script(path)[0].lists == ((("say", {"text": "three"}),),)


def test_a_rule_cannot_be_changed_by_those_who_share_it() -> None:
    rule = script.parse_script(GOOD, "s.yaml")[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.when = "x"  # type: ignore[misc]


def test_the_example_in_the_docs_is_a_script() -> None:
    docs = Path(runner.__file__).parents[3] / "docs/scripted-agent.md"
    example = docs.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    rules = script.parse_script(example, "docs")
    assert [len(rule.lists) for rule in rules] == [2]


def test_the_docs_name_every_step() -> None:
    docs = Path(runner.__file__).parents[3] / "docs/scripted-agent.md"
    text = docs.read_text(encoding="utf-8")
    assert [name for name in script._STEPS if f"| `{name}` |" not in text] == []


# Playing steps, by the inline runner: the agent process shares this code.

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
    parts = split_text(text, pieces)
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
        assert seen == [("/here", "turn-1.1.1")]
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
    play({"say": "x"}, action_log=str(tmp_path / "action_log"))
    lines = [json.loads(line) for line in (tmp_path / "action_log").read_text().splitlines()]
    assert [(line["event"], line["turn"], line["delivery"]) for line in lines] == [
        ("start", "turn-1", 1),
        ("end", "turn-1", 1),
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
    runner = InlineRunner(load_settings({"HELIX_ROOT": str(tmp_path)}))
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


# The demo script promises what `turns demo` shows.

GERMAN, ENGLISH = map(script.load_script, script.BUILT_IN)
RULES = script.load_built_in()
MESSAGES = {rule.name: rule.when for rule in GERMAN if rule.when}


def steps(name: str, attempt: int = 1, delivery: int = 1) -> tuple[script.Step, ...]:
    return script.find_steps(RULES, MESSAGES.get(name, "Und was ist das?"), attempt, delivery)


def text(name: str, attempt: int = 1, delivery: int = 1) -> str:
    return "".join(fields["text"] for step, fields in steps(name, attempt, delivery) if step == "say")


def seconds(played: tuple[script.Step, ...]) -> float:
    return sum(fields.get("seconds", 0.0) for _, fields in played)


def test_each_message_reaches_its_own_rule() -> None:
    for rule in (*GERMAN, *ENGLISH):
        if rule.when:
            assert next(each for each in RULES if each.matches(rule.when)) is rule


def test_the_question_of_the_readme_is_rejected_once() -> None:
    [asked] = re.findall(r'turns submit --watch "(.+)"', (Path(__file__).parents[3] / "README.md").read_text())
    played = next(each for each in RULES if each.matches(asked))
    assert played.when
    assert "<!-- STEP:" not in "".join(fields["text"] for step, fields in played.lists[0] if step == "say")


def test_both_languages_play_the_same() -> None:
    assert [rule.name for rule in GERMAN] == [rule.name for rule in ENGLISH]


@pytest.mark.parametrize(
    ("message", "language"),
    [
        ("How should we deliver webhooks?", ENGLISH),
        ("What was it, and why do agents die?", ENGLISH),
        ("Hello", ENGLISH),
        ("Wie sollen wir Webhooks zustellen?", GERMAN),
        ("Was ist das?", GERMAN),
        ("Hallo", GERMAN),
    ],
)
def test_any_other_message_is_answered_in_its_language(message: str, language: tuple[script.ScriptRule, ...]) -> None:
    assert next(rule for rule in RULES if rule.matches(message)) is language[-1]


@pytest.mark.parametrize("name", ["good", "anything_else"])
def test_a_good_answer_carries_its_marker(name: str) -> None:
    assert text(name).endswith("<!-- STEP: what -->\n")


def test_the_marker_comes_after_feedback_only_and_alone() -> None:
    assert "STEP" not in text("marker_after_feedback")
    assert text("marker_after_feedback", 2) == "<!-- STEP: why -->"


def test_one_agent_dies_in_mid_answer_at_its_first_attempt_only() -> None:
    assert steps("dies_in_mid_answer")[-1] == ("die", {})
    assert text("dies_in_mid_answer", 2).endswith("<!-- STEP: constraints -->\n")


def test_one_answer_never_has_a_marker_and_always_ends_with_a_question() -> None:
    texts = [text("never_a_marker", attempt) for attempt in (1, 2, 3)]
    assert all("STEP" not in answer and answer.endswith("?\n") for answer in texts)
    assert len(set(texts)) == 3


def test_one_adr_never_gets_its_sections() -> None:
    for attempt in (1, 2, 3):
        answer = text("adr_never_complete", attempt)
        assert answer.startswith("---\nadr_id:")
        assert "STEP: generate" in answer
        assert "## Entscheidung" not in answer
        assert "## Akzeptanzkriterien" not in answer


def test_the_answer_during_which_the_worker_dies_is_slow_once() -> None:
    assert 4 <= seconds(steps("worker_killed")) <= 5
    assert seconds(steps("worker_killed", delivery=2)) < 2
    assert text("worker_killed") == text("worker_killed", delivery=2)


def test_one_adr_lacks_one_section_which_then_comes_alone() -> None:
    assert "## Akzeptanzkriterien" not in text("adr_one_section_missing")
    assert text("adr_one_section_missing", 2).startswith("## Akzeptanzkriterien\n")
    assert "## Entscheidung" in text("adr_one_section_missing", 3)
    assert text("adr_one_section_missing", 2) in text("adr_one_section_missing", 3)


def test_every_other_answer_takes_one_to_three_seconds() -> None:
    for rule in RULES:
        for number, played in enumerate(rule.lists):
            slow = rule.name == "worker_killed" and number == 0
            short = (rule.name, number) == ("marker_after_feedback", 1)  # only the marker
            assert slow or short or 0.9 <= seconds(played) <= 3, rule.name
