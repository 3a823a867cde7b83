"""The policy (docs/enforcement.md): a pure decision over the attempts so far."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from api_client.contract.policy import settings_policy
from api_client.contract.validator_names import BUILT_IN
from worker.enforcement import (
    Accept,
    Action,
    Attempt,
    Decision,
    Fail,
    Fallback,
    Policy,
    ResponseValidator,
    Retry,
    ValidationIssue,
    build_feedback,
    decide_next,
    find_best_attempt,
    run_validators,
    validate_attempt,
)
from worker.enforcement.attempt import latest_attempts
from worker.enforcement.policies import (
    ChosenRules,
    PolicyError,
    PolicySubject,
    build_json_schema,
    choose_rules,
    read_policy,
)
from worker.enforcement.validators import StepMarkerValidator


def issue(
    code: str = "MISSING_TEXT", validator: str = "own", severity: str = "error", part: str = ""
) -> ValidationIssue:
    return ValidationIssue(code, f"{code} fehlt", "ergänzen", severity, validator=validator, part=part)


def attempts(*issues: list[ValidationIssue] | None, answer: str = "Antwort") -> list[Attempt]:
    """Attempts with these issues; None for one that was not complete."""
    return [
        Attempt(number=n, text=answer, answer=answer, complete=found is not None, issues=tuple(found or ()))
        for n, found in enumerate(issues, 1)
    ]


def test_an_answer_without_errors_is_accepted() -> None:
    assert decide_next(attempts([])) == Accept(1)
    assert decide_next(attempts([issue(severity="warning")])) == Accept(1)
    assert decide_next(attempts([issue()], [])) == Accept(2)


def test_errors_are_asked_for_again_up_to_three_runs_then_the_fallback_comes() -> None:
    first, second, third = issue("A"), issue("B"), issue("C")
    assert isinstance(decide_next(attempts([first])), Retry)
    assert isinstance(decide_next(attempts([first], [second])), Retry)
    assert decide_next(attempts([first], [second], [third])) == Fallback(3, ("C",))


def test_feedback_names_errors_only_with_code_message_and_fix() -> None:
    decision = decide_next(attempts([issue("A"), issue("W", severity="warning")]))
    assert isinstance(decision, Retry)
    assert decision.codes == ("A",)
    assert decision.feedback == (
        "IMPORTANT: Your last answer had validation errors. Please correct:\n\n"
        "**A**: A fehlt\n  → Fix: ergänzen\n\n"
        "Please repeat your answer with the corrections."
    )


def test_feedback_asks_for_the_missing_parts_alone_when_every_error_names_one() -> None:
    assert build_feedback([issue(part="step_marker")], "de").endswith(
        "Schicke dabei nur den STEP-Marker: Der Rest deiner Antwort liegt vor und bleibt unverändert."
    )
    assert "Schicke dabei nur" not in build_feedback([issue(part="step_marker"), issue()], "de")
    framed = build_feedback([issue(part="## Kontext")], nonce="0a1b2c")
    assert framed.endswith(
        "Send only the section '## Kontext': the rest of your answer is kept as it is.\n"
        "Write it out in full, heading included, between these two lines, and nothing before or after them:\n\n"
        '<part id="0a1b2c">\n## Kontext\n\n…\n</part>'
    )


def test_an_endless_list_of_issues_makes_no_endless_prompt() -> None:
    feedback = build_feedback([issue(f"C{n}") for n in range(1000)])
    assert len(feedback) < 3000
    assert "980 more" in feedback


def test_an_incomplete_answer_uses_up_an_attempt_and_is_asked_for_again() -> None:
    decision = decide_next(attempts(None))
    assert isinstance(decision, Retry)
    assert decision.codes == ("INCOMPLETE_RESPONSE",)
    assert "broke off" in decision.feedback
    assert "brach ab" in getattr(decide_next(attempts(None), Policy(locale="de")), "feedback", "")


def test_a_turn_whose_last_attempt_is_incomplete_ends_incomplete_with_the_best_one_named() -> None:
    assert decide_next(attempts(None, None, None)) == Fail(3, "incomplete")
    assert decide_next(attempts([issue()], None, None)) == Fail(1, "incomplete")


def test_an_incomplete_answer_is_never_the_one_that_is_repaired() -> None:
    assert decide_next(attempts(None, None, [issue()])) == Fallback(3, ("MISSING_TEXT",))


def test_the_same_errors_three_times_in_a_row_end_the_asking() -> None:
    five = Policy(max_attempts=5)
    assert isinstance(decide_next(attempts([issue()], [issue()]), five), Retry)
    assert isinstance(decide_next(attempts([issue()], [issue()], [issue()]), five), Fallback)
    assert isinstance(decide_next(attempts([issue("A")], [issue()], [issue()]), five), Retry)
    assert isinstance(decide_next(attempts([issue()], None, [issue()]), five), Retry)


def test_the_best_attempt_counts_not_the_last() -> None:
    assert decide_next(attempts([issue("A")], [issue("A"), issue("B")], [issue("B"), issue("C")])) == Fallback(
        1, ("B", "C")
    )


def test_among_equals_the_least_shortened_then_the_latest_is_best() -> None:
    long, short = attempts([issue()], answer="x" * 1000)[0], attempts([issue()], [issue()], answer="x" * 300)[1]
    assert find_best_attempt([long, short]) is long
    near = attempts([issue()], [issue()], answer="x" * 995)[1]
    assert find_best_attempt([long, near]) is near
    assert find_best_attempt(attempts(None)) is None


def test_a_policy_can_fail_escalate_or_warn_at_once() -> None:
    history = attempts([issue()])
    assert decide_next(history, Policy(order={"own": ("fail",)})) == Fail(1, "rejected")
    assert decide_next(history, Policy(order={"own": ("escalate",)})) == Fail(1, "escalated")
    assert decide_next(history, Policy(order={"own": ("warn",)})) == Accept(1)
    assert decide_next(history, Policy(order={"own": ("fallback", "fail")})) == Fallback(1, ("MISSING_TEXT",))


def test_a_policy_can_escalate_after_the_retries() -> None:
    policy = Policy(order={"own": ("retry", "escalate")})
    assert isinstance(decide_next(attempts([issue()]), policy), Retry)
    assert decide_next(attempts([issue("A")], [issue("B")], [issue()]), policy) == Fail(3, "escalated")


def test_a_retry_one_validator_wants_comes_before_the_fallback_of_another() -> None:
    policy = Policy(order={"step_marker": ("fallback", "fail")})
    decision: Decision = decide_next(attempts([issue(), issue(validator="step_marker")]), policy)
    assert isinstance(decision, Retry)


def test_a_policy_that_repairs_first_costs_no_run_of_the_agent() -> None:
    policy = Policy(order={"step_marker": ("repair", "retry", "fallback", "fail")})
    attempt = validate_attempt([], "Was genau?", [StepMarkerValidator()], policy=policy)
    assert attempt.answer == "Was genau?\n\n<!-- STEP: what -->"
    assert [fixed.code for fixed in attempt.fixed_issues] == ["MISSING_STEP_MARKER"]
    assert decide_next([attempt], policy) == Accept(1)
    assert decide_next([validate_attempt([], "Hallo.", [StepMarkerValidator()], policy=policy)], policy) == Accept(1)


@pytest.mark.parametrize(
    "wrong", [{"max_attempts": 0}, {"max_attempts": -1}, {"locale": "fr"}, {"order": {"a": ("shout",)}}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"max_attempts|locale|Action"):
        Policy(**wrong)  # type: ignore[arg-type]


def test_there_is_nothing_to_decide_without_an_attempt() -> None:
    with pytest.raises(ValueError, match="no attempt"):
        decide_next([])


def test_the_attempts_since_the_agent_was_last_asked_anew_count_together() -> None:
    one, two, three, four = (
        Attempt(number=number, text="", answer="", fresh=number in (2, 3)) for number in (1, 2, 3, 4)
    )
    assert list(latest_attempts([one, two, three, four])) == [three, four]
    assert list(latest_attempts([one])) == [one]
    assert list(latest_attempts([])) == []


@pytest.mark.parametrize(
    ("then", "decision"), [(Action.WARN, Accept(1)), (Action.FAIL, Fail(1, "rejected"))], ids=["warn", "fail"]
)
def test_a_rule_that_failed_itself_asks_for_no_retry_and_what_follows_it_in_its_order_counts(
    then: Action, decision: Decision
) -> None:
    policy = Policy(order={"own": (Action.RETRY, then)})
    assert decide_next(attempts([issue("VALIDATOR_ERROR")]), policy) == decision


# A policy file: what is wrong with it and where, what it gives a turn, and that its hash is its meaning.

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


def chosen(text: str, **subject: str) -> ChosenRules:
    return choose_rules(read_policy(text), PolicySubject(**subject), root=Path("/nonexistent"))


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyError) as found:
        read_policy(text)
    return [str(problem) for problem in found.value.problems]


def test_a_file_gives_a_turn_its_rules_in_order() -> None:
    found = chosen(FULL, model="claude-opus", route="chat")
    assert [validator.name for validator in found.validators] == ["step_marker", "no_secrets", "short_chat"]
    assert [validator.name for validator in found.shadow] == ["language"]
    assert (found.policy.max_attempts, found.policy.locale) == (4, "en")
    assert found.policy.list_actions("no_secrets") == (Action.WARN,)
    assert found.policy.list_actions("short_chat") == (Action.RETRY, Action.WARN)
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
    assert run_validators("x" * 30, validators) == []
    (issue,) = run_validators("```\n" + "x" * 30 + "\n```", validators)
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
        ("rules:\n  - step_marker\n  - json_schema", "3:5: rules[2].options: schema is empty"),
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
    assert read_policy("rules: [step_marker]").hash == settings_policy(("step_marker",)).hash


def test_the_schema_accepts_what_the_reader_accepts() -> None:
    schema = build_json_schema()
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
        history.append(validate_attempt(history, answer, found.validators, policy=found.policy))
        decisions.append(decide_next(history, found.policy))
    assert isinstance(decisions[0], Retry)
    assert not isinstance(decisions[1], Retry)


class Raises(ResponseValidator):
    name = "raises"

    def validate(self, response: str, context: Any) -> list[Any]:
        raise RuntimeError("broken")


@pytest.mark.parametrize(("lenient", "kind"), [(frozenset({"raises"}), Accept), (frozenset(), Fallback)])
def test_what_a_broken_rule_does_is_the_policys_choice(lenient: frozenset[str], kind: type[Any]) -> None:
    policy = Policy(lenient=lenient)
    assert isinstance(decide_next([validate_attempt([], "fine", [Raises()], policy=policy)], policy), kind)


def test_the_default_policy_is_that_of_the_seeds() -> None:
    found = choose_rules(settings_policy(BUILT_IN), PolicySubject(), root=Path("/nonexistent"))
    assert [validator.name for validator in found.validators] == ["step_marker", "adr_structure", "file_existence"]
    assert found.policy.max_attempts == 3
    history = []
    for _ in range(3):
        history.append(validate_attempt(history, "no marker", found.validators, policy=found.policy))
    assert isinstance(decide_next(history, found.policy), Fallback | Fail)


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
        history.append(
            validate_attempt(history, "too long\n\n<!-- STEP: done -->", found.validators, policy=found.policy)
        )
        decision = decide_next(history, found.policy)
        if not isinstance(decision, Retry):
            break
    expected = Fallback if "fallback" in reactions else Accept
    assert (type(decision), len(history)) == (expected, 3 if "retry" in reactions else 1)


def test_a_rule_that_warns_excuses_no_other() -> None:
    found = chosen(
        "max_attempts: 1\nrules:\n  - step_marker\n"
        "  - {rule: length, reactions: [retry, warn], options: {max_chars: 3}}"
    )
    history = [validate_attempt([], "too long, and no marker", found.validators, policy=found.policy)]
    assert isinstance(decide_next(history, found.policy), Fallback)


def test_a_policy_without_a_file_has_the_hash_of_a_file_that_means_the_same() -> None:
    file = read_policy(
        "max_attempts: 2\nrules:\n  - {rule: step_marker, reactions: [repair, retry]}\n  - adr_structure\n"
    )
    assert settings_policy(("step_marker", "adr_structure"), {"step_marker": ("repair", "retry")}, 2).hash == file.hash
    assert settings_policy(BUILT_IN).hash == read_policy("rules: [step_marker, adr_structure, file_existence]").hash
