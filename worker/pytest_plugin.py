"""The pytest fixture ``helix_turns`` for tests of rules (docs/validators.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from worker.enforcement import EnforcementResult, Policy, ResponseValidator, ValidationIssue


@dataclass(frozen=True, slots=True)
class _Answer:
    stdout: str


class ScriptedAgent:
    """A fake agent that gives the listed answers one after another and then repeats the last one."""

    def __init__(self, answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.prompts: list[str] = []

    async def run_session(self, *, prompt: str, **_options: Any) -> _Answer:
        """Record the prompt, and return the next of the listed answers."""
        self.prompts.append(prompt)
        return _Answer(self._answers[min(len(self.prompts), len(self._answers)) - 1])

    continue_session = run_session


class RulesUnderTest:
    """Runs validation rules in a test and asserts their verdicts on answers.

    Args:
        rules: validators or names of installed validators.
        policy: path or text of a policy file, instead of rules; a str that ends in ``.yaml`` or ``.yml`` is a path.
        root: folder of relative paths in answers.
    """

    def __init__(
        self, *rules: ResponseValidator | str, policy: str | Path = "", root: str | Path = ".", locale: str = "en"
    ) -> None:
        from worker.enforcement import Policy, build_validators
        from worker.external.local_services import provide_services

        provide_services()

        self.locale = locale
        self.policy: Policy = Policy(locale=locale)
        self.validators: tuple[ResponseValidator, ...] = tuple(
            build_validators([rule], root=Path(root), locale=locale)[0] if isinstance(rule, str) else rule
            for rule in rules
        )
        for each in self.validators:
            if isinstance(each, type) or not callable(getattr(each, "validate", None)):
                raise TypeError(f"{each!r} is not a validator; a class is called: MyRule()")
        if policy:
            self._read_policy(policy, Path(root))

    def _read_policy(self, policy: str | Path, root: Path) -> None:
        from worker.enforcement.policies import PolicySubject, choose_rules, read_policy

        named = isinstance(policy, Path) or policy.endswith((".yaml", ".yml"))
        text = Path(policy).read_text(encoding="utf-8") if named else str(policy)
        chosen = choose_rules(read_policy(text), PolicySubject(), root=root, locale=self.locale)
        self.validators, self.policy = chosen.validators, chosen.policy

    def judge(self, answer: str, **context: Any) -> list[ValidationIssue]:
        """Return the issues that the rules report for an answer.

        ``context`` is passed to ``ResponseValidator.validate``.
        """
        from worker.enforcement import demote_issues, run_validators

        return list(
            demote_issues(run_validators(answer, self.validators, {"locale": self.locale, **context}), self.policy)
        )

    def assert_accepted(self, answer: str, **context: Any) -> None:
        """Assert that no rule reports an error for the answer. Warnings are allowed."""
        errors = [issue for issue in self.judge(answer, **context) if issue.is_error]
        assert not errors, "rejected: " + "; ".join(f"{issue.code} {issue.message}" for issue in errors)

    def assert_rejected(self, answer: str, *codes: str, **context: Any) -> list[ValidationIssue]:
        """Assert that the rules report errors for an answer, with exactly the given codes if any. Return the errors."""
        errors = [issue for issue in self.judge(answer, **context) if issue.is_error]
        assert errors, "accepted"
        found = {issue.code for issue in errors}
        assert not codes or found == set(codes), f"rejected by {sorted(found)}"
        return errors

    def assert_repaired(self, answer: str, repaired: str | None = None, **context: Any) -> str:
        """Assert that the rules reject an answer but can repair it, to ``repaired`` if given.

        Return the repaired answer.
        """
        from worker.enforcement import repair_answer

        self.assert_rejected(answer, **context)
        found = repair_answer(answer, self.validators, {"locale": self.locale, **context})
        left = [issue.code for issue in found.issues if issue.is_error]
        assert not left, f"the repaired answer is still rejected by {left}"
        assert repaired is None or found.text == repaired, found.text
        return found.text

    def run(self, *answers: str, prompt: str = "question", max_retries: int = 2) -> EnforcementResult:
        """Enforce the rules on a fake agent that gives these answers in order, and return the result."""
        from worker.enforcement import ResponseEnforcer

        enforcer = ResponseEnforcer(
            ScriptedAgent(answers),
            max_retries,
            self.validators,
            policy=self.policy,
            locale=self.locale,
            validation_seconds=0,  # in this process, so that debugger and coverage see the rule
        )

        def run_enforcement() -> EnforcementResult:
            return asyncio.run(enforcer.run_with_enforcement(session_id="test", prompt=prompt))

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return run_enforcement()
        with ThreadPoolExecutor(1) as thread:  # an asynchronous test already runs an event loop
            return thread.submit(run_enforcement).result()

    def check_corpus(self, folder: str | Path) -> int:
        """Check that the rules accept all ``accepted/*.md`` and reject all ``rejected/*.md``. Return the file count.

        Raises ``AssertionError`` for a wrong verdict, or if the folder has no answers.
        """
        judged = (
            (path, self.judge(path.read_text(encoding="utf-8")), accepted)
            for path, accepted in _list_corpus(Path(folder))
        )
        wrong = [path.name for path, issues, accepted in judged if accepted == any(each.is_error for each in issues)]
        assert not wrong, f"validated the other way: {', '.join(wrong)}"
        count = sum(1 for _ in _list_corpus(Path(folder)))
        assert count, f"no accepted/*.md and no rejected/*.md in {folder}"
        return count


def _list_corpus(folder: Path) -> Iterator[tuple[Path, bool]]:
    for name, accepted in (("accepted", True), ("rejected", False)):
        for path in sorted((folder / name).glob("*.md")):
            yield path, accepted


@pytest.fixture
def helix_turns() -> type[RulesUnderTest]:
    """Provide a fixture that builds ``RulesUnderTest`` from rules or from a policy."""
    return RulesUnderTest
