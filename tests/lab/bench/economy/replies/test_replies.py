"""One rule for replies (docs/enforcement.md), measured: a part is taken for certain, or it is asked for again."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.lab.bench.economy.play import lay_out
from tests.lab.bench.economy.replies.corpus import (
    Trial,
    answer_to,
    asked_again,
    closings,
    drafts,
    feedback_of,
    right,
    stumps,
    talk,
    tool_calls,
    whole_answers,
)
from tests.lab.bench.economy.replies.malformed import ALTERNATIVES, RULE_SETS, firsts
from worker.cli.validate import validate
from worker.enforcement import Accept, Policy, ResponseEnforcer, decide_next, validate_attempt
from worker.enforcement.policies.chosen_rules import ChosenRules
from worker.plugins.analysis.policy_replay.comparison import RecordedAttempt, RecordedTurn, replay_turn

DRAFTS = drafts()


def bad(trials: Iterable[Trial], least: int) -> list[Trial]:
    found = list(trials)
    assert len(found) >= least
    return [trial for trial in found if trial.bad]


def test_talk_errors_refusals_and_tool_calls_are_no_sections() -> None:
    assert bad(talk(DRAFTS[:4]), 3000) == []
    assert bad(tool_calls(DRAFTS), 200) == []


def test_no_closing_remark_enters_a_document() -> None:
    assert bad(closings(DRAFTS), 200) == []


def test_a_part_without_a_clear_beginning_or_end_is_asked_for_again_and_then_taken() -> None:
    assert bad(asked_again(DRAFTS), 300) == []


def test_a_right_reply_is_taken_without_another_question_and_nothing_else_changes() -> None:
    trials = list(right(DRAFTS))
    wrong = Counter(trial.kind for trial in trials if trial.bad)
    assert len(trials) >= 3000
    assert wrong.total() <= 0.01 * len(trials), wrong


def test_a_whole_valid_answer_is_never_refused(tmp_path: Path) -> None:
    assert len({first for _, _, first in firsts()}) >= 200
    assert bad(whole_answers(tmp_path), 800) == []


def test_no_text_is_glued_to_a_stump() -> None:
    assert bad(stumps(), 400) == []


class _Agent:
    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    async def run_session(self, **_options: Any) -> Any:
        return type("Result", (), {"stdout": self.texts.pop(0)})()

    continue_session = run_session


@pytest.mark.parametrize("rules", RULE_SETS)
async def test_the_enforcer_the_engine_and_a_replay_decide_alike(rules: str, tmp_path: Path) -> None:
    lay_out(tmp_path)
    validators = RULE_SETS[rules](tmp_path)
    for _, good, first in firsts():
        replies = [first, f"Gern.\n\n{good.text()}", good.text()]
        result = await ResponseEnforcer(_Agent(*replies), validators=validators).run_with_enforcement("s", "?")
        history = [validate_attempt([], first, validators, {"prompt": "?"})]
        while feedback := feedback_of(history):
            reply = replies[len(history)]
            history.append(validate_attempt(history, reply, validators, {"prompt": "?"}, feedback=feedback))
        assert [attempt.answer for attempt in result.history] == [attempt.answer for attempt in history]
        assert result.success is isinstance(decide_next(history), Accept)
        recorded = [
            RecordedAttempt(text=one.text, answer=one.answer, decision="retry", feedback=feedback_of(history[:n]))
            for n, one in enumerate(history, 1)
        ]
        turn = RecordedTurn(turn_id="t", attempts=tuple(recorded), context={"prompt": "?"})
        chosen = ChosenRules(validators=tuple(validators), shadow=(), policy=Policy())
        assert [each.accepted for each in replay_turn(turn, chosen)] == [
            isinstance(decide_next(history[:n]), Accept) for n in range(1, len(history) + 1)
        ]


#: The rules of ``RULE_SETS`` in policy files.
POLICIES = {
    "built in": [{"rule": name} for name in ("step_marker", "adr_structure", "file_existence")],
    "structure": [{"rule": "structure", "options": {"sections": list(ALTERNATIVES), "ordered": True}}],
    "forbidden": [{"rule": "forbidden", "options": {"words": ["TODO-INTERN"]}}],
    "regex": [{"rule": "regex", "options": {"must": [r"(?m)^# ADR-\d+: "], "must_not": ["ENTWURF"]}}],
}


@pytest.mark.parametrize("rules", RULE_SETS)
def test_turns_validate_judges_each_text_of_the_corpus_as_a_first_answer_is_judged(rules: str, tmp_path: Path) -> None:
    lay_out(tmp_path)
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump({"version": 1, "locale": "de", "rules": POLICIES[rules]}))
    texts = list(dict.fromkeys(text for _, good, first in firsts() for text in (first, good.text())))
    files = [tmp_path / f"{number}.md" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_bytes(text.encode())
    arguments = [*map(str, files), "--root", str(tmp_path), "--policy", str(policy), "--json"]
    shown = json.loads(CliRunner().invoke(validate, arguments).output)
    for found, text in zip(shown, texts, strict=True):
        attempt = validate_attempt([], text, RULE_SETS[rules](tmp_path), {"locale": "de"})
        assert found["valid"] is isinstance(decide_next([attempt]), Accept), text
        assert [issue["message"] for issue in found["issues"]] == [issue.message for issue in attempt.issues], text
        assert found["edits"] == list(attempt.edits), text


def test_a_reply_is_not_refused_three_times_without_a_word_in_the_feedback() -> None:
    for draft in DRAFTS:
        history = answer_to(draft, "Nein.", f"## {draft.asked}")
        for attempts in (history[:2], history[:3]):
            feedback = feedback_of(attempts)
            assert not feedback or f"## {draft.asked}\n\n…\n</part>" in feedback
