"""ADR-038's Python API (section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.enforcement.samples import ADR, codes
from worker.enforcement import (
    ADRStructureValidator,
    EnforcementResult,
    Policy,
    ResponseEnforcer,
    ResponseValidator,
    StepMarkerValidator,
    UnknownValidatorError,
    ValidationIssue,
)

GOOD = "Antwort.\n\n<!-- STEP: done -->"


class Runner:
    """Says its lines one after the other and remembers what it was told."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.calls: list[tuple[str, str, str, dict[str, Any]]] = []

    async def run_session(self, *, session_id: str, prompt: str, **kwargs: Any) -> Any:
        return self._next("run", session_id, prompt, kwargs)

    async def continue_session(self, *, session_id: str, prompt: str, **kwargs: Any) -> Any:
        return self._next("continue", session_id, prompt, kwargs)

    def _next(self, how: str, session_id: str, prompt: str, kwargs: dict[str, Any]) -> Any:
        self.calls.append((how, session_id, prompt, kwargs))
        result = self.results[min(len(self.calls), len(self.results)) - 1]
        return SimpleNamespace(stdout=result) if isinstance(result, str) else result


async def enforce(*results: Any, names: list[str] | None = None, **options: Any) -> tuple[EnforcementResult, Runner]:
    runner = Runner(*results)
    options.setdefault("validators", [StepMarkerValidator()])
    return await ResponseEnforcer(runner, **options).run_with_enforcement("s-1", "Frage", names), runner


async def test_a_good_answer_passes_at_once() -> None:
    result, runner = await enforce(GOOD)
    assert (result.success, result.response, result.attempts, result.issues, result.fallback_applied) == (
        True,
        GOOD,
        1,
        [],
        False,
    )
    assert result
    assert runner.calls == [("run", "s-1", "Frage", {})]


async def test_a_bad_answer_is_asked_for_again_in_the_same_session_with_feedback() -> None:
    result, runner = await enforce("Antwort.", GOOD)
    assert (result.success, result.attempts) == (True, 2)
    how, session, prompt, _ = runner.calls[1]
    assert (how, session) == ("continue", "s-1")
    assert "**MISSING_STEP_MARKER**: The response has no STEP marker\n  → Fix: Add at the end" in prompt
    assert prompt == result.history[1].feedback


async def test_after_three_runs_the_fallback_comes() -> None:
    result, runner = await enforce("Was soll gebaut werden?")
    assert len(runner.calls) == 3
    assert (result.success, result.attempts, result.fallback_applied) == (True, 3, True)
    assert result.response == "Was soll gebaut werden?\n\n<!-- STEP: what -->"
    assert codes(result.fixed_issues) == ["MISSING_STEP_MARKER"]
    assert (result.step, result.step_source) == ("what", "inferred")


async def test_what_no_fallback_mends_fails_with_its_errors() -> None:
    broken = ADR.replace("## Kontext", "## X") + "\n<!-- STEP: generate -->"
    result, _ = await enforce(broken, validators=[StepMarkerValidator(), ADRStructureValidator()])
    assert (result.success, bool(result), result.reason) == (False, False, "rejected")
    assert codes(result.issues) == ["MISSING_ADR_SECTION"]
    assert result.response == broken


async def test_partial_gains_are_kept_when_the_turn_fails() -> None:
    broken = ADR.replace("## Kontext", "## X")
    result, _ = await enforce(broken, validators=[StepMarkerValidator(), ADRStructureValidator()])
    assert (result.success, result.fallback_applied) == (False, True)
    assert codes(result.fixed_issues) == ["MISSING_STEP_MARKER"]
    assert result.response.endswith("<!-- STEP: generate -->")


async def test_inactive_validators_neither_judge_nor_mend() -> None:
    both = [StepMarkerValidator(), ADRStructureValidator()]
    result, _ = await enforce(ADR.replace("## Kontext", "## X"), names=["step_marker"], validators=both)
    assert (result.success, result.fallback_applied) == (True, True)


async def test_a_misspelt_validator_is_refused_before_the_agent_runs() -> None:
    runner = Runner(GOOD)
    enforcer = ResponseEnforcer(runner, validators=[StepMarkerValidator()])
    with pytest.raises(UnknownValidatorError, match=r"step_markr.*did you mean 'step_marker'"):
        await enforcer.run_with_enforcement("s", "p", validator_names=["step_markr"])
    assert runner.calls == []


async def test_a_retry_that_says_the_marker_alone_loses_nothing() -> None:
    text = "Eine lange und gute Antwort. " * 30
    result, _ = await enforce(text, "<!-- STEP: done -->")
    assert result.response == f"{text}\n\n<!-- STEP: done -->"
    assert result.attempts == 2


async def test_the_best_attempt_is_repaired_not_the_last() -> None:
    validators = [StepMarkerValidator(), ADRStructureValidator()]
    worse = ADR.replace("## Kontext", "## X").replace("## Entscheidung", "## Y")
    result, _ = await enforce(ADR, worse, worse, validators=validators)
    assert result.success
    assert result.response.startswith(ADR)


async def test_warnings_remain_on_success_with_and_without_fallback() -> None:
    few = ADR.replace("- [ ] messbar\n", "")
    validators = [StepMarkerValidator(), ADRStructureValidator()]
    clean, _ = await enforce(few + "\n<!-- STEP: done -->", validators=validators)
    repaired, _ = await enforce(few, validators=validators)
    assert codes(clean.issues) == codes(repaired.issues) == ["INSUFFICIENT_CRITERIA"]
    assert (clean.fallback_applied, repaired.fallback_applied) == (False, True)


async def test_no_retries_means_one_run_and_fewer_are_refused() -> None:
    result, runner = await enforce("Antwort.", max_retries=0)
    assert (result.attempts, len(runner.calls)) == (1, 1)
    with pytest.raises(ValueError, match="max_retries"):
        ResponseEnforcer(Runner(GOOD), max_retries=-1)
    with pytest.raises(ValueError, match="validation_seconds"):
        ResponseEnforcer(Runner(GOOD), validation_seconds=-1)


async def test_the_context_is_for_validators_and_the_rest_for_the_runner() -> None:
    class Reader(ResponseValidator):
        name = "reader"

        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [ValidationIssue("SEEN", str(context["session_state"]), "", severity="warning")]

    runner = Runner(GOOD)
    enforcer = ResponseEnforcer(runner, validators=[Reader()])
    result = await enforcer.run_with_enforcement("s", "p", context={"session_state": 7}, model="m")
    assert [issue.message for issue in result.issues] == ["7"]
    assert runner.calls[0][3] == {"model": "m"}


@pytest.mark.parametrize(
    "bad",
    [
        {"success": False},
        {"exit_code": 1},
        {"complete": False},
        {"success": True, "exit_code": -9},
        {"stdout": ""},
        {"stdout": " \n"},
    ],
)
async def test_a_run_that_failed_or_is_not_complete_never_becomes_a_success(bad: dict[str, Any]) -> None:
    run = SimpleNamespace(**{"stdout": GOOD} | bad)
    result, runner = await enforce(run)
    assert (result.success, result.reason, len(runner.calls)) == (False, "incomplete", 3)
    assert codes(result.issues) == ["INCOMPLETE_RESPONSE"]
    assert result.fallback_applied is False
    assert "broke off" in runner.calls[1][2]
    recovered, _ = await enforce(run, GOOD)
    assert (recovered.success, recovered.attempts) == (True, 2)


async def test_a_result_without_text_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="stdout"):
        await enforce(SimpleNamespace(stdout=None))


async def test_the_callers_list_stays_the_callers() -> None:
    mine: list[ResponseValidator] = [StepMarkerValidator()]
    enforcer = ResponseEnforcer(Runner(GOOD), validators=mine)
    enforcer.add_validator(ADRStructureValidator())
    assert (len(mine), len(enforcer.validators)) == (1, 2)
    assert enforcer.remove_validator("step_marker").name == "step_marker"
    assert [validator.name for validator in enforcer.validators] == ["adr_structure"]


def test_two_validators_of_one_name_and_unknown_names_are_refused() -> None:
    enforcer = ResponseEnforcer(Runner(GOOD), validators=[StepMarkerValidator()])
    with pytest.raises(ValueError, match="twice"):
        enforcer.add_validator(StepMarkerValidator())
    with pytest.raises(ValueError, match="twice"):
        ResponseEnforcer(Runner(GOOD), validators=[StepMarkerValidator(), StepMarkerValidator()])
    with pytest.raises(UnknownValidatorError):
        enforcer.remove_validator("nothing")


def test_without_validators_and_with_the_defaults_of_the_document() -> None:
    enforcer = ResponseEnforcer(Runner(GOOD))
    assert (enforcer.max_retries, enforcer.validators) == (2, [])


async def test_english_feedback_and_issues() -> None:
    result, runner = await enforce("Answer.", max_retries=1, locale="en")
    assert runner.calls[1][2].startswith("IMPORTANT: Your last answer had validation errors.")
    assert result.changes == ["STEP marker added: unknown (no step to see)"]


async def test_a_policy_that_repairs_first_asks_no_second_time() -> None:
    policy = Policy(order={"step_marker": ("repair", "fail")})
    result, runner = await enforce("Was noch?", policy=policy)
    assert (result.success, len(runner.calls), result.fallback_applied) == (True, 1, True)
    assert (result.step, result.step_source) == ("what", "inferred")


async def test_validators_that_only_warn_do_not_spoil_the_fallback() -> None:
    policy = Policy(order={"adr_structure": ("warn",)})
    validators = [StepMarkerValidator(), ADRStructureValidator()]
    result, _ = await enforce(ADR.replace("## Kontext", "## X"), validators=validators, policy=policy)
    assert result.success
    assert [(found.code, found.severity) for found in result.issues] == [("MISSING_ADR_SECTION", "warning")]


@pytest.mark.parametrize(
    ("runner", "validators", "said"),
    [
        ("claude", [], r"the runner \(str\) has no method run_session and no continue_session"),
        (Runner(GOOD), ["step_marker"], "'step_marker' is not a validator; names of offered ones: .*build_validators"),
        (Runner(GOOD), [StepMarkerValidator], r"StepMarkerValidator is a class: write StepMarkerValidator\(\)"),
    ],
)
def test_what_is_no_runner_or_no_validator_is_refused_at_once(runner: Any, validators: list[Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        ResponseEnforcer(runner, validators=validators)
    if validators:
        with pytest.raises(TypeError, match=said):
            ResponseEnforcer(runner).add_validator(validators[0])


async def test_a_runner_that_returns_a_bare_text_is_named_with_what_it_must_return() -> None:
    class Bare(Runner):
        async def run_session(self, **kwargs: Any) -> Any:
            return GOOD

    with pytest.raises(TypeError, match="the runner returned str: it needs an attribute stdout that is a text"):
        await ResponseEnforcer(Bare()).run_with_enforcement("s-1", "Frage")
