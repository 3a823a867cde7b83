"""ADR-038's Python API: run an agent in this process until validators accept its answer (section 5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from api_client.contract.issue import ValidationIssue
from api_client.contract.step_marker import UNKNOWN
from worker.enforcement.answer_continuation import append_continuation, find_unfinished_text
from worker.enforcement.attempt import Attempt
from worker.enforcement.attempt_validation import validate_attempt
from worker.enforcement.documents.step import extract_step, step_of
from worker.enforcement.error_stream import error_frames
from worker.enforcement.policy import Accept, Fail, Policy, Retry, decide_next, demote_issues
from worker.enforcement.repair import RepairResult, repair_attempt
from worker.enforcement.validator_process import SECONDS, are_long, isolate_validators, runs_in_place
from worker.enforcement.validators import ResponseValidator
from worker.enforcement.validators.codes import make_issue
from worker.enforcement.validators.registry import UnknownValidatorError, check_unique_names, select_validators

MAX_RETRIES = 2

Found = TypeVar("Found", Attempt, RepairResult)


class SessionRunner(Protocol):
    """Interface for running an agent.

    A result has ``stdout`` and, where known, ``success``, ``exit_code`` and ``complete``.
    """

    async def run_session(self, *, session_id: str, prompt: str, **_options: Any) -> Any:
        """Start the agent with the user's prompt and return the result of the run."""

    async def continue_session(self, *, session_id: str, prompt: str, **_options: Any) -> Any:
        """Run the agent again in the same session, with feedback as the prompt, and return the result."""


@dataclass(slots=True)
class EnforcementResult:
    """The outcome of running an agent with validation. It is true if the answer was accepted.

    Attributes:
        success: every active validator accepted the answer, as written or after a fallback.
        response: the answer; without success the best one, repaired as far as possible.
        issues: the remaining warnings; without success errors too.
        changes: descriptions of the repairs, for the user.
        step_source: ``marker``, ``inferred`` or ``unknown``.
        reason: without success: the reason of the policy's ``Fail``.
    """

    success: bool
    response: str
    attempts: int
    issues: list[ValidationIssue]
    fallback_applied: bool = False
    fixed_issues: list[ValidationIssue] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    step: str = UNKNOWN
    step_source: str = "unknown"
    reason: str = ""
    history: tuple[Attempt, ...] = ()

    def __bool__(self) -> bool:
        return self.success


class ResponseEnforcer:
    """Runs an agent until all active validators accept its answer, and repairs the answer if retries do not help."""

    def __init__(
        self,
        runner: SessionRunner,
        max_retries: int = MAX_RETRIES,
        validators: Sequence[ResponseValidator] | None = None,
        *,
        policy: Policy | None = None,
        locale: str | None = None,
        validation_seconds: float = SECONDS,
    ) -> None:
        """Create an enforcer that runs the agent with ``runner`` and checks its answers with ``validators``.

        Args:
            max_retries: most retries; the agent runs once more than that.
            policy: reactions to errors; its ``max_attempts`` replaces ``max_retries``.
            locale: language of feedback and issues, ``de`` or ``en``.
            validation_seconds: time limit of a validator, and of each step of our own code, for one answer; 0 for none.
                Unbounded validators and texts above 64 kB run in a child process.

        Raises:
            ValueError: ``max_retries`` or ``validation_seconds`` is negative, or two validators have the same name.
            TypeError: the runner lacks a method, or an entry of ``validators`` is not a validator.
        """
        if missing := [name for name in ("run_session", "continue_session") if not hasattr(runner, name)]:
            raise TypeError(f"the runner ({type(runner).__name__}) has no method {' and no '.join(missing)}")
        if max_retries < 0:
            raise ValueError(f"max_retries must not be negative: {max_retries}")
        if validation_seconds < 0:
            raise ValueError(f"validation_seconds must not be negative: {validation_seconds}")
        self.validation_seconds = validation_seconds
        self.runner = runner
        policy = policy or Policy(max_attempts=max_retries + 1)
        self.policy = replace(policy, locale=locale) if locale else policy
        self.locale = locale
        self.validators = list(check_unique_names(_check_validators(validators or ())))

    @property
    def max_retries(self) -> int:
        """Return how many times the agent may run again after its first answer."""
        return self.policy.max_attempts - 1

    def add_validator(self, validator: ResponseValidator) -> None:
        """Add a validator. Raises ``DuplicateValidatorError`` if another validator has the same name."""
        self.validators = list(check_unique_names(_check_validators([*self.validators, validator])))

    def remove_validator(self, name: str) -> ResponseValidator:
        """Remove the validator with this name and return it. Raises ``UnknownValidatorError`` if there is none."""
        for validator in self.validators:
            if validator.name == name:
                self.validators.remove(validator)
                return validator
        raise UnknownValidatorError(name, [validator.name for validator in self.validators])

    async def run_with_enforcement(
        self,
        session_id: str,
        prompt: str,
        validator_names: Sequence[str] | None = None,
        context: Mapping[str, Any] | None = None,
        **runner_kwargs: Any,
    ) -> EnforcementResult:
        """Run the agent until its answer is accepted or retries are used up, and return the outcome.

        A last answer that is still rejected is repaired by the fallbacks.

        Args:
            session_id: the agent's session; retries continue it.
            validator_names: the active validators; None for all.
            context: for the validators only (``files``, ...).
            **runner_kwargs: passed to the runner.

        Raises:
            UnknownValidatorError: a name is not among the validators; the agent does not run.
            TypeError: the runner's result has no text ``stdout``.
        """
        active = select_validators(self.validators, validator_names)
        judged = ({"locale": self.locale} if self.locale else {}) | {"prompt": prompt} | dict(context or {})
        history: list[Attempt] = []
        feedback = so_far = ""
        while True:
            start = self.runner.continue_session if history else self.runner.run_session
            result = await start(session_id=session_id, prompt=feedback or prompt, **runner_kwargs)
            text, complete = _read_result(result)
            if so_far:
                continued = append_continuation(so_far, text, complete=complete)
                text, complete = continued.text, complete and continued.fits
            validating = partial(validate_attempt, history, text, context=judged, policy=self.policy)
            validating = partial(validating, complete=complete, feedback=feedback)
            texts = [text, *(each.answer for each in history)]
            history.append(await self._run_guarded(active, texts, judged, validating))
            decision = decide_next(history, self.policy)
            if not isinstance(decision, Retry):
                break
            feedback = decision.feedback
            so_far = find_unfinished_text(history) if decision.goes_on else ""
        chosen = history[decision.attempt - 1]
        if isinstance(decision, Accept):
            return self._settled_result(history, chosen, success=True)
        if isinstance(decision, Fail):
            return self._settled_result(history, chosen, success=False, reason=decision.fault or decision.reason)
        repaired = await self._run_guarded(
            active, [chosen.answer], judged, partial(repair_attempt, chosen, history, context=judged)
        )
        return self._repaired_result(history, chosen, repaired)

    async def _run_guarded(
        self,
        active: Sequence[ResponseValidator],
        texts: Sequence[str],
        context: Mapping[str, Any],
        work: Callable[..., Found],
    ) -> Found:
        """Run a validation or repair and return its result. Use a thread if the event loop might block."""
        texts = [*texts, *(context.get("files") or {}).values()]
        in_place = not are_long(texts) and all(runs_in_place(validator, texts) for validator in active)
        if in_place or not self.validation_seconds:
            return work(validators=active)
        with isolate_validators(active, seconds=self.validation_seconds) as guarded:
            return await asyncio.to_thread(work, validators=guarded)

    async def stream_enforcement_error(self, issues: Sequence[ValidationIssue]) -> AsyncIterator[str]:
        """Yield the error message of a rejected answer as server-sent events for an OpenAI client."""
        for frame in error_frames(issues, self.policy.locale):
            yield frame

    def _settled_result(
        self, history: Sequence[Attempt], chosen: Attempt, *, success: bool, reason: str = ""
    ) -> EnforcementResult:
        issues = list(demote_issues(chosen.issues, self.policy, final=success))
        if reason == "incomplete":
            issues.insert(0, make_issue("INCOMPLETE_RESPONSE", self.policy.locale))
        step, source = step_of(chosen.answer)
        inferred = chosen.changes and step != extract_step(chosen.text)  # a policy that repairs first wrote the marker
        return EnforcementResult(
            success=success,
            response=chosen.answer,
            attempts=len(history),
            issues=issues,
            fallback_applied=bool(chosen.changes),
            fixed_issues=list(chosen.fixed_issues),
            changes=list(chosen.changes),
            step=step,
            step_source="inferred" if inferred and source == "marker" else source,
            reason=reason,
            history=tuple(history),
        )

    def _repaired_result(
        self, history: Sequence[Attempt], chosen: Attempt, repaired: RepairResult
    ) -> EnforcementResult:
        issues = list(demote_issues(repaired.issues, self.policy, final=True))
        success = not any(found.is_error for found in issues)
        return EnforcementResult(
            success=success,
            response=repaired.text,
            attempts=len(history),
            issues=issues,
            fallback_applied=bool(repaired.changes),
            fixed_issues=[*chosen.fixed_issues, *repaired.fixed_issues],
            changes=[*chosen.changes, *repaired.changes],
            step=repaired.step,
            step_source=repaired.step_source,
            reason="" if success else "rejected",
            history=tuple(history),
        )


def _check_validators(given: Sequence[ResponseValidator]) -> Sequence[ResponseValidator]:
    for each in given:
        if isinstance(each, type):
            raise TypeError(f"{each.__name__} is a class: write {each.__name__}()")
        if not hasattr(each, "validate"):
            raise TypeError(f"{each!r} is not a validator; names of offered ones: worker.enforcement.build_validators")
    return given


def _read_result(result: Any) -> tuple[str, bool]:
    text = getattr(result, "stdout", None)
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if not isinstance(text, str):
        raise TypeError(f"the runner returned {type(result).__name__}: it needs an attribute stdout that is a text")
    fine = getattr(result, "complete", None) is not False and getattr(result, "success", None) is not False
    return text, fine and getattr(result, "exit_code", None) in (None, 0) and bool(text.strip())
