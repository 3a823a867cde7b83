"""A right later answer is taken however short it is, and a rule's own error asks for nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from api_client.contract.policy import Content
from tests.unit.enforcement.samples import repair_once
from worker.enforcement import (
    Accept,
    Fallback,
    Part,
    Policy,
    ResponseValidator,
    Retry,
    StepMarkerValidator,
    ValidationIssue,
    decide_next,
    validate_attempt,
)
from worker.enforcement.policies import AppliesTo
from worker.enforcement.policies.chosen_rules import meets_condition
from worker.enforcement.repair import repair_attempt
from worker.enforcement.rules import JsonSchemaRule, RegexRule

CHATTER = "Here is what I think about the export of orders, before I come to the steps that you asked for. " * 4
JSON = '{"title": "Export", "steps": ["split"]}'
SCHEMA = {"type": "object", "required": ["title"]}


@pytest.mark.parametrize(
    "reply", [JSON, f"```json\n{JSON}\n```", f"```\n{JSON}\n```", f"Here is the JSON:\n\n```json\n{JSON}\n```"]
)
def test_where_the_whole_answer_is_json_a_short_one_is_taken(reply: str) -> None:
    assert repair_once(JsonSchemaRule(schema=SCHEMA, where="whole"), CHATTER + JSON, reply) == (JSON, Accept(2))


@pytest.mark.parametrize("pattern", ["^(yes|no)$", r"\A(yes|no)\Z", r"(?i)^[a-z]{2,3}$"])
def test_where_the_whole_answer_is_one_value_it_is_taken(pattern: str) -> None:
    assert repair_once(RegexRule(must=(pattern,)), CHATTER, "yes") == ("yes", Accept(2))


@pytest.mark.parametrize("pattern", ["Source:", "^Source: .+$", "^Status: (ok|late)$"])
def test_a_line_that_a_pattern_wants_in_an_answer_does_not_replace_the_answer(pattern: str) -> None:
    answer, decision = repair_once(
        RegexRule(must=(pattern,)), CHATTER, "Source: x" if "Source" in pattern else "Status: ok"
    )
    assert answer == CHATTER
    assert isinstance(decision, Retry)


@pytest.mark.parametrize(
    "reply", [JSON, f"```json\n{JSON}\n```", f"```\n{JSON}\n```", f"Sure:\n\n```json\n{JSON}\n```"]
)
@pytest.mark.parametrize("where", ["fence", "any"])
def test_a_json_block_that_was_asked_for_is_taken_with_its_fence_or_without(reply: str, where: str) -> None:
    answer, decision = repair_once(JsonSchemaRule(schema=SCHEMA, where=where), CHATTER.strip(), reply)
    assert answer == f"{CHATTER.strip()}\n\n```json\n{JSON}\n```\n"
    assert decision == Accept(2)


def test_a_block_that_names_no_language_is_named() -> None:
    first = f"Before.\n\n```\n{JSON}\n```\n\nAfter."
    answer, _ = repair_once(JsonSchemaRule(schema=SCHEMA, where="fence"), first, JSON)
    assert answer == first.replace("```\n{", "```json\n{")


class Wants(ResponseValidator):
    """Finds BAD in a part."""

    name = "wants"

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        found = "BAD" in response
        return [ValidationIssue("BAD", "bad", "write GOOD", part=Part.lines(2))] if found else []


@pytest.mark.parametrize(
    "reply",
    [
        "FRAME\nthe cache is GOOD\n</part>",
        "FRAME\n```text\nthe cache is GOOD\n```\n</part>",
        "```text\nthe cache is GOOD\n```",
        "first\nthe cache is GOOD\nlast",
    ],
)
def test_lines_are_taken_in_a_frame_a_block_and_in_the_whole_answer(reply: str) -> None:
    assert repair_once(Wants(), "first\nthe cache is BAD\nlast", reply) == ("first\nthe cache is GOOD\nlast", Accept(2))


@pytest.mark.parametrize("reply", ["Sorry, I cannot do that.", "first\nBAD\nthird\nfourth", "the cache", "Done."])
def test_talk_and_other_lines_are_not_taken_for_lines(reply: str) -> None:
    assert repair_once(Wants(), "first\nthe cache is BAD\nlast", reply)[0] == "first\nthe cache is BAD\nlast"


@pytest.mark.parametrize(
    ("answer", "judges"), [(JSON, True), (f"{JSON}\n\n<!-- STEP: done -->", True), ("[1]", True), (CHATTER, False)]
)
def test_a_condition_on_json_covers_a_bare_answer(answer: str, judges: bool) -> None:
    assert meets_condition(AppliesTo(content=(Content.JSON,)), answer) is judges


class Broken(ResponseValidator):
    """Cannot judge for so many times."""

    name = "broken"

    def __init__(self, times: int) -> None:
        self.times = times

    def validate(self, response: str, context: Mapping[str, Any]) -> Sequence[ValidationIssue]:  # type: ignore[override]
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("no model")
        return []


def test_a_rule_that_cannot_judge_is_asked_once_more_and_the_agent_is_not() -> None:
    rules = [Broken(1)]
    first = validate_attempt([], "fine", rules)
    assert decide_next([first]) == Fallback(1, ("VALIDATOR_ERROR",))
    assert repair_attempt(first, [first], rules).accepted
    assert not repair_attempt(first, [first], [Broken(9)]).accepted
    lenient = Policy(lenient=frozenset({"broken"}))
    assert decide_next([first], lenient) == Accept(1)


def test_beside_another_error_a_rule_that_cannot_judge_asks_for_nothing() -> None:
    decision = decide_next([validate_attempt([], "A long answer. " * 30, [Broken(9), StepMarkerValidator()])])
    assert isinstance(decision, Retry)
    assert "VALIDATOR_ERROR" not in decision.feedback
    assert "Send only the STEP marker" in decision.feedback


def test_talk_does_not_replace_a_short_answer() -> None:
    class NoCache(Wants):
        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [ValidationIssue("NO", "no", "without")] if "Cache" in response else []

    assert (
        repair_once(NoCache(), "Nimm einen Cache.", "Sorry, I cannot help with that request.")[0] == "Nimm einen Cache."
    )
    assert repair_once(NoCache(), "Nimm einen Cache.", "Nimm einen Index.") == ("Nimm einen Index.", Accept(2))
