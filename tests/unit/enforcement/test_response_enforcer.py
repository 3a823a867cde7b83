"""ADR-038's Python API (section 5)."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.enforcement.samples import ADR, codes, header_with
from worker.enforcement import (
    ADRStructureValidator,
    EnforcementResult,
    FileExistenceValidator,
    Policy,
    ResponseEnforcer,
    ResponseValidator,
    StepMarkerValidator,
    UnknownValidatorError,
    ValidationIssue,
    build_validators,
    decide_next,
    repair_answer,
    run_validators,
    validate_attempt,
)
from worker.enforcement.policy import Accept, Fail, Retry
from worker.enforcement.replies.refusals import is_refusal

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


# The fallback: active validators only, partial gains kept, other bytes untouched, judged again.

STEP = StepMarkerValidator()


@pytest.fixture
def files(tmp_path: Path) -> FileExistenceValidator:
    (tmp_path / "there.py").touch()
    return FileExistenceValidator(tmp_path)


def moved(files: FileExistenceValidator, before: str) -> str:
    """The ``files`` of the header after the fallback; everything around them must be unchanged."""
    text = "Einleitung.\n\n" + header_with(f"# Kommentar\nfiles:\n{before}skills: ['a']  # bleibt\n")
    repaired = files.apply_fallback(text, {})
    assert repaired is not None
    head, tail = text.split(before)
    assert repaired.startswith(head)
    assert repaired.endswith(tail)
    assert "FILE_NOT_FOUND" not in codes(files.validate(repaired, {}))
    assert files.apply_fallback(repaired, {}) is None  # twice changes nothing
    return repaired[len(head) : -len(tail)]


def test_missing_files_move_and_comments_quotes_and_order_stay(files: FileExistenceValidator) -> None:
    before = '  modify:\n    - there.py\n    - gone.py  # warum\n    - "b c.py"\n  create:\n    - new.py\n  docs: []\n'
    after = '  modify:\n    - there.py\n  create:\n    - new.py\n    - gone.py  # warum\n    - "b c.py"\n  docs: []\n'
    assert moved(files, before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  create:\n  modify:\n    - a.py\n", "  create:\n    - a.py\n  modify: []\n"),
        ("  create: ~\n  modify: [a.py]\n", "  create: \n    - a.py\n  modify: []\n"),
        ("  modify:\n  - a.py\n  - there.py\n", "  create:\n  - a.py\n  modify:\n  - there.py\n"),
        ("  modify: [a.py, there.py, 'b.py']\n", "  create:\n    - a.py\n    - 'b.py'\n  modify: [there.py]\n"),
        ("  create: [n.py]\n  modify: [there.py, a.py]\n", "  create: [n.py, a.py]\n  modify: [there.py]\n"),
        ("  create: []\n  modify:\n    - a, b.py\n", "  create: ['a, b.py']\n  modify: []\n"),
        ("  create:\n    - a.py\n  modify:\n    - a.py\n", "  create:\n    - a.py\n  modify: []\n"),
        ("  modify:\n    - a.py\n    - a.py\n", "  create:\n    - a.py\n  modify: []\n"),
        ("  {modify: [a.py], docs: []}\n", "  {create: [a.py], modify: [], docs: []}\n"),
    ],
)
def test_every_way_to_write_the_lists_is_edited_in_place(
    files: FileExistenceValidator, before: str, after: str
) -> None:
    assert moved(files, before) == after


def test_an_adr_in_a_fence_is_edited_in_its_place(files: FileExistenceValidator) -> None:
    inner = header_with("files:\n  modify: [a.py]\n")
    repaired = repair_answer(f"Hier:\n\n```markdown\n{inner}```\n\n<!-- STEP: generate -->", [STEP, files])
    assert repaired.accepted
    assert "```markdown\n---\n" in repaired.text
    assert "  create:\n    - a.py\n  modify: []\n" in repaired.text


@pytest.mark.parametrize("header", ["files:\n  modify: &m [a.py]\n  create: *m\n", "files:\n  modify: a.py\n"])
def test_a_header_that_cannot_be_edited_surely_is_left_alone(files: FileExistenceValidator, header: str) -> None:
    text = header_with(header)
    assert files.apply_fallback(text, {}) in (None, text)


def test_each_move_is_told_to_the_user(files: FileExistenceValidator) -> None:
    text = header_with("files:\n  modify: [a.py, b.py]\n")
    assert repair_answer(text, [files], {"locale": "de"}).changes == (
        "a.py: von files.modify nach files.create verschoben",
        "b.py: von files.modify nach files.create verschoben",
    )
    assert repair_answer(text, [files]).changes[0] == "a.py: moved from files.modify to files.create"


def test_partial_gains_are_kept_and_told(files: FileExistenceValidator) -> None:
    text = header_with("files:\n  modify: [a.py]\n").replace("## Kontext", "## X")
    repaired = repair_answer(text, [STEP, ADRStructureValidator(), files])
    assert not repaired.accepted
    assert codes(repaired.fixed_issues) == ["MISSING_STEP_MARKER", "FILE_NOT_FOUND"]
    assert codes(repaired.issues) == ["MISSING_ADR_SECTION"]
    assert len(repaired.changes) == 2
    assert repaired.text.endswith("<!-- STEP: generate -->")


def test_the_step_marker_comes_last_and_is_judged_with_the_rest(files: FileExistenceValidator) -> None:
    repaired = repair_answer(header_with("files:\n  modify: [a.py]\n"), [STEP, files])
    assert "moved" in repaired.changes[0]
    assert "STEP marker" in repaired.changes[1]
    assert run_validators(repaired.text, [STEP, files]) == []


def test_unknown_is_accepted_from_the_fallback_only_where_it_is_told() -> None:
    repaired = repair_answer("Hallo.", [STEP])
    assert repaired.accepted
    assert codes(run_validators(repaired.text, [STEP])) == ["INVALID_STEP"]
    assert run_validators(repaired.text, [STEP], repaired.context) == []


def test_files_the_agent_wrote_are_repaired_too(files: FileExistenceValidator) -> None:
    adr = header_with("files:\n  modify: [a.py]\n")
    repaired = repair_answer(
        "Liegt bei. <!-- STEP: generate -->", [STEP, files], {"files": {"ADR-040.md": adr, "x.py": "1"}}
    )
    assert repaired.accepted
    assert list(repaired.files) == ["ADR-040.md"]
    assert "  create:\n    - a.py\n" in repaired.files["ADR-040.md"]
    assert repaired.changes == ("ADR-040.md: a.py: moved from files.modify to files.create",)


class Shouting(ResponseValidator):
    """Wants upper case; its fallback does what the test says."""

    name = "shouting"

    def __init__(self, fallback: Any) -> None:
        self.fallback = fallback

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        return [] if response.isupper() else [ValidationIssue("NOT_LOUD", "leise", "schrei")]

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        result: str | None = self.fallback(response)
        return result


def test_a_validator_of_ones_own_is_repaired_and_told() -> None:
    repaired = repair_answer("abc", [Shouting(str.upper)])
    assert (repaired.text, repaired.accepted, repaired.changes) == ("ABC", True, ("shouting: repaired",))


@pytest.mark.parametrize("fallback", [lambda text: 1 / 0, lambda text: 5, lambda text: "noch leise", lambda text: None])
def test_a_fallback_that_fails_or_helps_nothing_changes_nothing(fallback: Any) -> None:
    repaired = repair_answer("abc", [Shouting(fallback)])
    assert (repaired.text, repaired.accepted, repaired.changes) == ("abc", False, ())


def test_an_empty_text_can_be_a_fallbacks_result() -> None:
    class Silent(Shouting):
        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [ValidationIssue("NOT_SILENT", "m", "f")] if response else []

    assert repair_answer("abc", [Silent(lambda text: "")]).text == ""


def test_a_fallback_that_brings_another_error_is_not_taken() -> None:
    marked = "abc\n\n<!-- STEP: done -->"
    repaired = repair_answer(marked, [STEP, Shouting(lambda text: "ABC")])
    assert repaired.text == marked


def test_a_fallback_that_brings_an_error_for_two_is_not_taken() -> None:
    class Twice(Shouting):
        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [] if response.isupper() else [ValidationIssue(code, "m", "f") for code in ("ONE", "TWO")]

    marked = "abc\n\n<!-- STEP: done -->"
    assert repair_answer(marked, [STEP, Twice(lambda text: "ABC")]).text == marked


# A refusal is told apart from answers: precision first.

RULES = build_validators(["step_marker", "adr_structure"], root=Path(), locale="en")
REFUSALS = (
    "I can't help with that request.",
    "I’m sorry, but I can’t assist with that.",
    "I'm sorry, I cannot comply with this request.",
    "Sorry, I won't help with creating malware.\n\nIf you want, I can explain how such programs are found.",
    "I cannot help with that.\n\n<!-- STEP: done -->",
    "Unfortunately, I am not able to provide instructions for this.",
    "I must decline to write this.",
    "I understand that this matters to you, but I can't discuss that topic.",
    "Es tut mir leid, aber dabei kann ich nicht helfen.",
    "Tut mir leid, ich kann dir bei dieser Anfrage nicht weiterhelfen.",
    "Leider kann ich diese Anfrage nicht beantworten.",
    "Dieser Bitte kann ich nicht nachkommen.",
    "Ich muss diese Anfrage ablehnen.",
    "Je suis désolé, mais je ne peux pas vous aider.",
    "Lo siento, pero no puedo ayudarte con eso.",
    "Mi dispiace, ma non posso aiutarti.",
    "Het spijt me, maar ik kan je daar niet mee helpen.",
)
ANSWERS = (
    "I can help with that: the cache lies in Redis.",
    "I can't help but notice that the cache is slow. Use Redis.",
    "I can't find the file `a.py`. Which one do you mean?",
    "I cannot reproduce the error; it passes on my machine.",
    'The service answers "I can\'t help with that request." when its quota is spent.',
    "You can't help with that request, but an administrator can.",
    "Wir nehmen einen Cache. Dabei kann ich nicht helfen, sagt der alte Dienst.",
    "Ich kann die Datei nicht finden.",
    "Der Kunde kann dabei nicht helfen.",
    "Sorry for the delay. The answer is 42.",
    "Entschuldigung, hier ist die vollständige Antwort: der Cache liegt in Redis.",
    "No.",
    "",
    "I can't help with that request.\n\n- but here is a plan\n- in two steps",
    "I can't help with that request.\n\n## Decision\n\nWe take a cache.",
    "I can't help with that request. " + "We take a cache because the search is slow. " * 20,
    ADR + "\nI can't help with that request.\n",
    "I can't help with that request.\n\n" + ADR,
)


@pytest.mark.parametrize("text", REFUSALS)
def test_a_short_refusal_is_one(text: str) -> None:
    assert is_refusal(text, "Write an ADR about invoices.")


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_is_none_also_where_it_holds_such_a_sentence(text: str) -> None:
    assert not is_refusal(text, "Write an ADR about invoices.")


@pytest.mark.parametrize(
    "prompt", ["Translate: Dabei kann ich nicht helfen.", "Formuliere eine Absage.", "How do I politely decline?"]
)
def test_what_the_question_asked_to_be_put_so_is_none(prompt: str) -> None:
    assert not is_refusal("I can't help with that.", prompt)


def test_a_refusal_is_asked_once_more_and_no_fallback_makes_an_answer_of_it() -> None:
    first = validate_attempt([], REFUSALS[0], RULES, {"locale": "en"})
    asked = decide_next([first], Policy(locale="en"))
    assert isinstance(asked, Retry)
    assert "MODEL_REFUSED" in asked.codes
    second = validate_attempt([first], REFUSALS[1], RULES, {"locale": "en"})
    assert decide_next([first, second]) == Fail(2, "refused")
    assert decide_next([first], Policy(max_attempts=1)) == Fail(1, "refused")
    tolerant = Policy(default=("warn",))
    assert isinstance(decide_next([first], tolerant), Retry)
    better = validate_attempt([first], "The cache lies in Redis.\n\n<!-- STEP: done -->", RULES, {"locale": "en"})
    assert decide_next([first, better]) == Accept(2)


def test_a_refusal_to_repair_a_part_leaves_the_answer_before_as_it_was() -> None:
    first = validate_attempt([], ADR, RULES, {"locale": "en"})
    second = validate_attempt([first], REFUSALS[0], RULES, {"locale": "en"})
    assert second.answer == first.answer
    assert "MODEL_REFUSED" not in {issue.code for issue in second.issues}


async def test_response_enforcer_says_that_the_model_refused() -> None:
    class Refusing:
        runs = 0

        async def run_session(self, **_: Any) -> Any:
            self.runs += 1
            return SimpleNamespace(stdout=REFUSALS[0])

        continue_session = run_session

    runner = Refusing()
    result = await ResponseEnforcer(runner, 5, list(RULES), locale="en").run_with_enforcement("s", "Write an ADR.")
    assert (result.success, result.reason, runner.runs) == (False, "refused", 2)
