from __future__ import annotations

import dataclasses
import inspect
import os
from pathlib import Path

import pytest

from worker.runners.scripted import script
from worker.runners.scripted.agent import ProcessPlayer

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


def said(message: str, attempt: int = 1, delivery: int = 1) -> object:
    return script.steps_for(script.parse(GOOD, "s.yaml"), message, attempt, delivery)[0]


def test_the_first_rule_whose_text_the_message_contains_is_played() -> None:
    assert said("Wo ist die Rechnung?") == ("say", {"text": "first"})


def test_an_expression_can_choose_the_rule() -> None:
    assert said("Rückgabe bitte") == ("die", {})


def test_a_rule_without_when_matches_everything() -> None:
    assert said("etwas anderes") == ("say", {"text": "anything"})


def test_attempt_n_plays_list_n_and_the_last_list_repeats() -> None:
    assert [said("Rechnung", attempt=n) for n in (2, 3, 9)] == [("say", {"text": "second"})] * 3


def test_attempts_do_not_count_deliveries() -> None:
    assert said("Rechnung", attempt=1, delivery=5) == ("say", {"text": "first"})


def test_a_rule_by_deliveries_counts_deliveries_only() -> None:
    assert said("Rückgabe", attempt=1, delivery=2) == ("say", {"text": "back"})


def test_a_message_no_rule_matches_is_an_error_that_says_what_to_do() -> None:
    rules = script.parse("- {when: a, attempts: [[cut]]}", "s.yaml")
    with pytest.raises(script.ScriptError, match="a last rule without 'when'"):
        script.steps_for(rules, "xyz", 1, 1)


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
        script.parse(text, "s.yaml")


def test_every_step_of_the_format_can_be_played_with_the_fields_the_format_allows() -> None:
    for name, shape in script._STEPS.items():
        parameters = inspect.signature(getattr(ProcessPlayer, name)).parameters.values()
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        assert open_ended or set(shape.fields) == {p.name for p in parameters if p.name != "self"}, name
        needed = {p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"}
        assert needed == set(shape.required), name


def test_a_missing_script_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(script.ScriptError, match=r"nothing\.yaml: No such file"):
        script.load(tmp_path / "nothing.yaml")


def test_a_script_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"- attempts: [[say: \xfc]]")
    with pytest.raises(script.ScriptError, match="not UTF-8"):
        script.load(path)


def test_a_huge_script_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.touch()
    os.truncate(path, script.MAX_SCRIPT + 1)
    with pytest.raises(script.ScriptError, match="larger than"):
        script.load(path)


def test_a_script_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("- attempts: [[say: one]]")
    script.load(path)
    path.write_text("- attempts: [[say: three]]")
    assert script.load(path)[0].lists == ((("say", {"text": "three"}),),)


def test_a_rule_cannot_be_changed_by_those_who_share_it() -> None:
    rule = script.parse(GOOD, "s.yaml")[0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.when = "x"  # type: ignore[misc]


def test_the_example_in_the_docs_is_a_script() -> None:
    docs = Path(script.__file__).parents[3] / "docs/scripted-agent.md"
    example = docs.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    rules = script.parse(example, "docs")
    assert [len(rule.lists) for rule in rules] == [2]


def test_the_docs_name_every_step() -> None:
    docs = Path(script.__file__).parents[3] / "docs/scripted-agent.md"
    text = docs.read_text(encoding="utf-8")
    assert [name for name in script._STEPS if f"| `{name}` |" not in text] == []
