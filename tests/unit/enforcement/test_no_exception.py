"""No exception of our own judging code leaves it: every rule, answer and reply ends in a decision."""

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.tasks import VALIDATE, ChainTask
from api_client.contract.turn import Outcome
from tests.fault.matrix import WHOLE
from tests.unit.enforcement.samples import ADR, codes
from tests.unit.enforcement.test_response_enforcer import Runner
from tests.unit.turns.test_transitions import turn_to_escalate
from worker.cli.validate import validate
from worker.enforcement import ResponseEnforcer, ResponseValidator, attempt_validation, build_validators, policy, repair
from worker.enforcement.content_guard import GUARD
from worker.enforcement.policy import Policy
from worker.enforcement.rules import RULES, LengthRule
from worker.enforcement.validators import StepMarkerValidator
from worker.turns import validation
from worker.turns.validation_pool import ValidationCase, ValidationPool

ROOT = Path("/nonexistent-project")
MODELS = "tests.unit.enforcement.rules.models"
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "forbidden": [{"words": ["Cache", "model A"]}],
    "json_schema": [{"schema": {"type": "object", "required": ["a"]}, "where": where} for where in ("fence", "whole")],
    "pydantic_model": [{"model": f"{MODELS}:Plan", "where": where} for where in ("fence", "any")],
    "regex": [{"must": ["^(yes|no)$"]}, {"must": ["Decision"], "must_not": ["draft"]}],
    "length": [{"min_words": 3, "max_chars": 400}],
    "structure": [{"preset": "adr-nygard"}, {"sections": ["Context", "Decision"], "filled": True}],
    "code_blocks": [{}],
}
#: Rules that start programs or ask models: what they do is fuzzed by themselves (rules/test_faults.py).
REACH_OUT = {"command", "llm_judge"}
TEXTS = [
    "",
    " \n",
    "No JSON here.",
    "Still none.",
    "yes",
    "```json\n{}\n```",
    '```json\n{"a": 1,}\n```\n\n```json\n{"a": 2}\n```',
    '{"a": [1, {"b": "```"}]}',
    "```json\n",
    "```\nx = (\n```\n\n```python\nx = (\n```",
    ADR,
    ADR + "\n<!-- STEP: done -->",
    ADR.replace("## Entscheidung", "## Decision"),
    ADR[:150],
    ADR + ADR,
    "## Decision\n\nWe take a cache.",
    "## Entscheidung",
    "---\nadr_id: [\n---\n",
    "---\ntitle: x\n---\n---\nadr_id: 1\n---\n# ADR-1\n",
    "- [ ] a\n- [x] b\n\n| a | b |\n|---|---|\n| 1 |\n",
    "[a](http://x) [b]: <\n\n> quote\n\n    code\n",
    "-----BEGIN PRIVATE KEY-----\nMIIEpA\n",
    "<part>\x00\ud800\u2028\ufeff</part>\r\n\r\n<!-- STEP: quatsch -->",
    "I cannot help with that.",
    "The file `src/a.py` was changed; all 3 tests pass [1].",
]


def rules() -> Iterator[ResponseValidator]:
    for kind, made in sorted(RULES.items()):
        for number, options in enumerate(OPTIONS.get(kind, [{}]) if kind not in REACH_OUT else []):
            yield made(name=f"{kind}-{number}", root=ROOT, locale="en", **options)
    yield from build_validators(["step_marker", "adr_structure", "file_existence"], root=ROOT, locale="en")


CASES = [*itertools.product(rules(), TEXTS, TEXTS)]
_SAMPLE = CASES if WHOLE else random.Random(43).sample(CASES, 1200)


async def enforced(validators: Sequence[ResponseValidator], *texts: str, **more: Any) -> Any:
    enforcer = ResponseEnforcer(Runner(*texts), validators=validators, validation_seconds=0, locale="en", **more)
    return await enforcer.run_with_enforcement("s-1", "Question?")


async def test_no_exception_leaves_for_any_rule_answer_and_reply() -> None:
    for rule, first, reply in _SAMPLE:
        result = await enforced([rule], first, reply)
        found = [issue for attempt in result.history for issue in attempt.issues if issue.validator == GUARD]
        assert "VALIDATOR_ERROR" not in codes(found), (rule.name, first, reply, found)


async def test_the_same_with_rules_together_which_repair_first_and_texts_that_were_cut() -> None:
    dice, every = random.Random(7), list(rules())
    for _ in range(3000 if WHOLE else 150):
        together = dice.sample(every, 3)
        order = {dice.choice(together).name: dice.choice([("repair", "retry", "fail"), ("fallback",), ("warn",)])}
        texts = [dice.choice(TEXTS)[: dice.choice((9, 60, 9999))] + dice.choice(TEXTS) for _ in range(3)]
        result = await enforced(together, *texts, policy=Policy(order=order, locale="en"))
        assert ".py:" not in result.reason, "a decision raised"


def test_turns_validate_takes_every_text(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.md").write_bytes(text.encode("utf-8", "surrogatepass"))
    (tmp_path / "policy.yaml").write_text(
        "rules: [forbidden, code_blocks, {rule: json_schema, options: {where: fence, schema: {type: object}}}]\n"
    )
    files = [str(path) for path in sorted(tmp_path.glob("*.md"))]
    found = CliRunner().invoke(validate, [*files, "--policy", str(tmp_path / "policy.yaml"), "--root", str(tmp_path)])
    assert (found.exit_code, type(found.exception)) in {(0, type(None)), (1, SystemExit), (2, SystemExit)}, found.output


@pytest.mark.parametrize(
    "step",
    [
        "list_candidates",
        "run_validators",
        "_find_losses",
        "_find_refusal",
        "_describe_edits",
        "restore_sections",
        "_apply_policy",
    ],
)
async def test_a_step_that_raises_is_an_issue_and_nothing_passes_by_it(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object, **__: object) -> None:
        raise KeyError(step)

    for module in (attempt_validation, repair, policy):
        monkeypatch.setattr(module, step, raises, raising=False)
    marker = build_validators(["step_marker"], root=ROOT, locale="en")
    order = {} if step == "restore_sections" else {"step_marker": ("retry", "fail")}
    result = await enforced(marker, "An answer.", "Another answer.", policy=Policy(max_attempts=2, order=order))
    found = [issue for attempt in result.history for issue in attempt.issues] + result.issues
    said = result.reason if step == "_apply_policy" else next((i.fix_hint for i in found if step in i.message), "")
    assert not result.success
    assert "test_no_exception.py:" in said


@pytest.mark.parametrize(
    "step", ["list_candidates", "_find_losses", "restore_sections", "find_unresolved_losses", "_describe_edits"]
)
@pytest.mark.parametrize("bounded", [True, False])
async def test_the_worker_judges_on_when_a_step_raises(
    step: str, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object, **__: object) -> None:
        raise RecursionError(step)

    names, judges = ("adr_structure", "step_marker"), ValidationPool(30)
    first = case("A text." if step != "restore_sections" else ADR, (), names)
    before = judges.validate_answer(first)
    for module in (attempt_validation, repair, policy):
        monkeypatch.setattr(module, step, raises, raising=False)
    after = judges.validate_answer(case("Another text.", (before,), names, feedback="Repair it."))
    if step in {"restore_sections", "find_unresolved_losses"}:
        repaired = judges.repair(case(after.answer, (before, after), names))
        assert not repaired.accepted
        return
    assert {"MISSING_STEP_MARKER"} <= set(codes(after.issues))
    assert [issue.validator for issue in after.issues if issue.code == "VALIDATOR_ERROR"] == [GUARD]


@pytest.mark.parametrize(
    "step",
    [
        *(
            "weigh_attempts",
            "normalise_answer",
            "describe_edit",
            "find_best_attempt",
            "latest_attempts",
            "list_candidates",
        ),
        *("_describe_edits", "repair_answer", "find_lost_content", "find_unresolved_losses", "repeated_percent"),
        "is_refusal",
    ],
)
def test_an_attempt_is_judged_by_the_other_rules_whatever_step_raises(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, length = StepMarkerValidator(), LengthRule(min_chars=9000)
    first = attempt_validation.validate_attempt([], "A text.", [marker, length])
    policy_ = Policy(order={"step_marker": ("repair", "retry")})

    def raises(*_: object, **__: object) -> None:
        raise MemoryError(step)

    monkeypatch.setattr(attempt_validation, step, raises)
    refusal = "<think>Hm.</think>I'm sorry, but I can't help with that."
    after = attempt_validation.validate_attempt([first], refusal, [marker, length], policy=policy_)
    faults = [issue for issue in after.issues if issue.code == "VALIDATOR_ERROR"]
    assert {issue.validator for issue in faults} == {GUARD}
    assert step in faults[0].message
    assert "ANSWER_TOO_SHORT" in codes(after.issues)


def case(text: str, history: tuple[Any, ...], names: tuple[str, ...], feedback: str = "") -> ValidationCase:
    return ValidationCase(
        text=text,
        history=history,
        names=names,
        root=ROOT,
        context={"locale": "en"},
        policy=Policy(locale="en"),
        feedback=feedback,
    )


@pytest.mark.parametrize(("module", "step"), [(validation, "after_validation"), (policy, "_apply_policy")])
def test_a_decision_that_raises_ends_the_turn_honestly_and_is_logged(
    module: ModuleType, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = case("A text.", (), ("step_marker",))
    attempt = ValidationPool(30).validate_answer(what)
    monkeypatch.setattr(module, step, lambda *_: {}["gone"])
    record, turn = AttemptRecord(number=1, text="A text."), turn_to_escalate()
    with capture_logs() as lines:
        move = validation._decide_transition(turn, ChainTask(VALIDATE, 1), what, attempt, record)
    failing = move.fields.values["failing"]
    assert (failing.outcome, failing.code) == (Outcome.ERROR, "internal_error")
    assert "KeyError: 'gone'" in failing.reason
    assert [(line["event"], line["turn_id"]) for line in lines] == [("judging.failed", turn.turn_id)]
