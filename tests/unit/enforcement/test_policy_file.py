"""A policy file: what is wrong with it and where, what it gives a turn, and that its hash is its meaning."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from api_client.contract.offered import BUILT_IN
from api_client.contract.policy import plain_policy
from worker.enforcement import Accept, Action, Fail, Fallback, ResponseValidator, Retry, decide, examine, judge
from worker.enforcement.policies import Chosen, PolicyError, Subject, choose, json_schema, read_policy
from worker.enforcement.policy import Policy

FULL = """\
version: 1
max_attempts: 4
locale: en
rules:
  - step_marker
  - rule: forbidden
    name: no_secrets
    severity: warning
    options: {words: [foobar]}
  - rule: length
    name: short_chat
    reactions: [retry, warn]
    max_attempts: 2
    on_error: warn
    options:
      max_chars: 20
    applies_to:
      models: [consultant, "claude-*"]
      routes: [chat]
      content: [code]
  - rule: language
    shadow: true
    options: {expect: en}
"""


def chosen(text: str, **subject: str) -> Chosen:
    return choose(read_policy(text), Subject(**subject), root=Path("/nonexistent"))


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyError) as found:
        read_policy(text)
    return [str(problem) for problem in found.value.problems]


def test_a_file_gives_a_turn_its_rules_in_order() -> None:
    found = chosen(FULL, model="claude-opus", route="chat")
    assert [validator.name for validator in found.validators] == ["step_marker", "no_secrets", "short_chat"]
    assert [validator.name for validator in found.shadow] == ["language"]
    assert (found.policy.max_attempts, found.policy.locale) == (4, "en")
    assert found.policy.actions("no_secrets") == (Action.WARN,)
    assert found.policy.actions("short_chat") == (Action.RETRY, Action.WARN)
    assert (found.policy.caps, found.policy.lenient) == ({"short_chat": 2}, {"short_chat"})


@pytest.mark.parametrize(
    ("subject", "there"),
    [
        ({"model": "consultant", "route": "chat"}, True),
        ({"model": "claude-x", "route": "chat"}, True),
        ({"model": "other", "route": "chat"}, False),
        ({"model": "consultant", "route": "turns"}, False),
    ],
)
def test_a_rule_judges_the_turns_that_it_applies_to(subject: dict[str, str], there: bool) -> None:
    assert ("short_chat" in [validator.name for validator in chosen(FULL, **subject).validators]) is there


def test_a_rule_for_answers_with_code_leaves_others_alone() -> None:
    validators = chosen(FULL, model="consultant", route="chat").validators[2:]
    assert examine("x" * 30, validators) == []
    (issue,) = examine("```\n" + "x" * 30 + "\n```", validators)
    assert (issue.code, issue.validator) == ("ANSWER_OVER_LENGTH", "short_chat")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: the file is empty; it needs rules"),
        ("max_attempts: 2", "1:1: rules: the file needs 'rules'"),
        ("- step_marker", "1:1: the file must be a mapping, not a list"),
        ("rules: step_marker", "1:8: rules: must be a list, not a text"),
        ("rules: [step_maker]", "1:9: rules[1]: unknown validator 'step_maker'"),
        ("rules:\n  - rul: x", "2:5: rules[1].rul: no such key; did you mean 'rule'?"),
        ("rules:\n  - name: x", "2:5: rules[1].rule: a rule needs 'rule'"),
        ("rules: [step_marker, step_marker]", "1:22: rules[2]: the name 'step_marker' is there twice"),
        ("rules: []\nversion: 2", "2:10: version: this program reads version 1"),
        ("rules: []\nmax_attempts: 0", "2:15: max_attempts: must be a whole number from 1 to 20, not '0'"),
        ("rules: []\nmax_attempts: many", "2:15: max_attempts: must be a whole number from 1 to 20, not 'many'"),
        ("rules: []\nlocale: fr", "2:9: locale: must be one of de, en, not 'fr'"),
        ("rules:\n  - {rule: length, severity: bad}", "2:30: rules[1].severity: must be one of error, warning,"),
        ("rules:\n  - {rule: length, reactions: [beg]}", "rules[1].reactions[1]: must be one of repair, retry,"),
        ("rules:\n  - {rule: length, reactions: []}", "must name at least one reaction"),
        ("rules:\n  - {rule: length, on_error: cry}", "rules[1].on_error: must be one of fail, warn"),
        ("rules:\n  - {rule: length, shadow: 1}", "rules[1].shadow: must be true or false, not '1'"),
        ("rules:\n  - {rule: length, options: {max: 3}}", "options.max: no such key; there are: min_chars,"),
        ("rules:\n  - {rule: length, options: {max_chars: a}}", "rules[1].options.max_chars: must be a whole number"),
        ("rules:\n  - {rule: length, options: {min_chars: 9, max_chars: 3}}", "min_chars is above max_chars"),
        ("rules:\n  - {rule: regex, options: {must: ['(']}}", "rules[1].options: the pattern '('"),
        ("rules:\n  - {rule: step_marker, options: {a: 1}}", "rules[1].options: step_marker has no options"),
        ("rules:\n  - {rule: length, applies_to: {content: [poem]}}", "content[1]: must be one of adr, code, json, "),
        ("rules:\n  - {rule: length, shadow: }", "rules[1].shadow: must be true or false, not None"),
        ("rules: [\n", "2:1: "),
        ("a: &a [*a, *a]\nrules: []", "1:1: a: no such key"),
        ("rules:\n  - {rule: json_schema, options: {schema: &a {b: *a}}}", "2000 values or > 32 levels"),
        ("rules: []\nrules: []", "2:1: rules: is there twice"),
    ],
)  # fmt: skip
def test_each_problem_is_named_with_its_line_and_column(text: str, expected: str) -> None:
    assert expected in "\n".join(problems(text))


def test_all_problems_are_reported_at_once_in_the_files_order() -> None:
    found = problems("version: 9\nmax_attempts: x\nrules:\n  - {rule: nope}\n  - {rule: length, shadow: maybe}\n")
    assert [line.split(":")[0] for line in found] == ["1", "2", "4", "5"]


def test_the_hash_is_of_the_meaning_not_of_the_layout() -> None:
    again = FULL.replace("{words: [foobar]}", "\n      words:\n        - foobar  # a comment")
    assert read_policy(again).hash == read_policy(FULL).hash
    assert read_policy(FULL.replace("foobar", "barfoo")).hash != read_policy(FULL).hash
    assert read_policy("rules: [step_marker]").hash == plain_policy(("step_marker",)).hash


def test_the_schema_accepts_what_the_reader_accepts() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(FULL), schema)
    for bad in ("rules: x", "rules: [{rule: length, options: {max: 1}}]", "rules: [{rule: length, severity: bad}]"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(bad), schema)


def test_after_its_cap_a_rule_asks_no_more() -> None:
    found = chosen("rules:\n  - {rule: length, max_attempts: 2, reactions: [retry, warn], options: {max_chars: 3}}")
    history: list[Any] = []
    decisions = []
    for answer in ("12345", "1234567"):
        history.append(judge(history, answer, found.validators, policy=found.policy))
        decisions.append(decide(history, found.policy))
    assert isinstance(decisions[0], Retry)
    assert not isinstance(decisions[1], Retry)


class Raises(ResponseValidator):
    name = "raises"

    def validate(self, response: str, context: Any) -> list[Any]:
        raise RuntimeError("broken")


@pytest.mark.parametrize(("lenient", "kind"), [(frozenset({"raises"}), Accept), (frozenset(), Fallback)])
def test_what_a_broken_rule_does_is_the_policys_choice(lenient: frozenset[str], kind: type[Any]) -> None:
    policy = Policy(lenient=lenient)
    assert isinstance(decide([judge([], "fine", [Raises()], policy=policy)], policy), kind)


def test_the_default_policy_is_that_of_the_seeds() -> None:
    found = choose(plain_policy(BUILT_IN), Subject(), root=Path("/nonexistent"))
    assert [validator.name for validator in found.validators] == ["step_marker", "adr_structure", "file_existence"]
    assert found.policy.max_attempts == 3
    history = []
    for _ in range(3):
        history.append(judge(history, "no marker", found.validators, policy=found.policy))
    assert isinstance(decide(history, found.policy), Fallback | Fail)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=120) | st.lists(st.sampled_from(FULL.splitlines()), max_size=12).map("\n".join))
def test_no_text_makes_the_reader_raise_anything_else(text: str) -> None:
    with suppress(PolicyError):
        assert read_policy(text).hash


@pytest.mark.parametrize("reactions", ["[warn]", "[retry, warn]", "[repair, warn]", "[retry, fallback, warn]"])
def test_warn_accepts_the_answer_when_nothing_before_it_helped(reactions: str) -> None:
    found = chosen(f"rules:\n  - {{rule: length, reactions: {reactions}, options: {{max_chars: 3}}}}\n  - step_marker")
    history: list[Any] = []
    for _ in range(3):
        history.append(judge(history, "too long\n\n<!-- STEP: done -->", found.validators, policy=found.policy))
        decision = decide(history, found.policy)
        if not isinstance(decision, Retry):
            break
    expected = Fallback if "fallback" in reactions else Accept
    assert (type(decision), len(history)) == (expected, 3 if "retry" in reactions else 1)


def test_a_rule_that_warns_excuses_no_other() -> None:
    found = chosen(
        "max_attempts: 1\nrules:\n  - step_marker\n"
        "  - {rule: length, reactions: [retry, warn], options: {max_chars: 3}}"
    )
    history = [judge([], "too long, and no marker", found.validators, policy=found.policy)]
    assert isinstance(decide(history, found.policy), Fallback)


def test_a_policy_without_a_file_has_the_hash_of_a_file_that_means_the_same() -> None:
    file = read_policy(
        "max_attempts: 2\nrules:\n  - {rule: step_marker, reactions: [repair, retry]}\n  - adr_structure\n"
    )
    assert plain_policy(("step_marker", "adr_structure"), {"step_marker": ("repair", "retry")}, 2).hash == file.hash
    assert plain_policy(BUILT_IN).hash == read_policy("rules: [step_marker, adr_structure, file_existence]").hash
