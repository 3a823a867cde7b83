"""Validation pool: runs validators in child processes, with limits on time and memory.

A runaway regular expression holds the interpreter lock, and would cost all leases of the process. A child that overruns
is killed; then the validators are run one by one to find the guilty ones.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from api_client.contract.frozen import checked_frozen
from api_client.contract.issue import ValidationIssue
from api_client.contract.validator_names import BUILT_IN
from worker.enforcement.attempt import Attempt, find_best_attempt, latest_attempts
from worker.enforcement.attempt_validation import validate_attempt
from worker.enforcement.content_guard import GUARD, NOT_JUDGED
from worker.enforcement.policies import PolicyFile, build_rules
from worker.enforcement.policies.rule_file import is_rule_file
from worker.enforcement.policy import Policy
from worker.enforcement.printed_output import divert_output
from worker.enforcement.process_family import adopt_orphans, kill_descendants, kill_family, list_children
from worker.enforcement.repair import MAX_ROUNDS, RepairResult, repair_attempt
from worker.enforcement.rules import OUR_RULES
from worker.enforcement.validator_process import (
    MEMORY_MB,
    MOST_CHARACTERS,
    MOST_OVERRUNS,
    limit_memory,
    read_private_memory,
)
from worker.enforcement.validators import ResponseValidator
from worker.enforcement.validators.codes import make_issue
from worker.enforcement.validators.registry import build_validators
from worker.external.local_services import provide_services
from worker.runners.sandbox.guard_client import shared_processes
from worker.runners.sandbox.proxy_client import find_proxy_process

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

log = structlog.get_logger()

Found = TypeVar("Found", Attempt, RepairResult)

_OURS = frozenset({*BUILT_IN, *OUR_RULES})

_PR_SET_PDEATHSIG = 1
#: Time for a new child to import the parsers, in seconds; not counted as validation.
_START_SECONDS = 30.0
#: A child is replaced once validators have left more than this part of its memory limit occupied: 1 / _KEPT_SHARE.
_KEPT_SHARE = 4


@checked_frozen(kw_only=True)
class ValidationCase:
    """An answer with everything that another process needs to validate or repair it.

    Attributes:
        text: the raw answer of a new attempt, or the validated answer to repair.
        history: the earlier attempts; all attempts for a repair.
        file: the policy file that defines the names, if any.
        fresh: whether a person asked again or another model took over.
        feedback: the feedback given to the agent; empty for a first or fresh attempt.
    """

    text: str
    history: tuple[Attempt, ...]
    names: tuple[str, ...]
    root: Path
    context: dict[str, Any]
    policy: Policy
    file: PolicyFile | None = None
    fresh: bool = False
    feedback: str = ""

    @functools.cached_property
    def rules(self) -> tuple[str, ...]:
        """Return the names of the rules behind the active validators, because a policy file may rename rules."""
        if self.file is None:
            return self.names
        called = {entry.name: entry.rule for entry in self.file.rules}
        return tuple(called.get(name, name) for name in self.names)

    @functools.cached_property
    def bounded(self) -> bool:
        """Return True if validation is so quick that it needs no child process.

        All validators must be ours, declare their time bounded by these texts, and not touch the file system.
        """
        if not set(self.rules) <= _OURS:
            return False
        texts = {self.text, *(self.context.get("files") or {}).values()}
        for attempt in self.history:
            texts |= {attempt.text, attempt.answer}
        if sum(map(len, texts)) > MOST_CHARACTERS:
            return False
        try:
            return all(validator.takes_bounded_time(texts) for validator in _build_case_validators(self))
        except ValidatorsUnavailable:
            return False


class ValidatorsUnavailable(Exception):
    """Raised when validators cannot be built, because a name is unknown or a plug-in cannot be loaded."""


def _build_case_validators(case: ValidationCase) -> tuple[ResponseValidator, ...]:
    by_name = _build_own_validators if set(case.rules) <= set(BUILT_IN) else build_validators
    try:
        if case.file is not None and any(is_rule_file(entry.rule) for entry in case.file.rules):
            # Their files may have changed.
            return build_rules(case.file, case.names, root=case.root, locale=case.policy.locale)
        if case.file is not None:
            return _build_file_validators(
                _ValidatorRecipe(case.file.hash, case.names, case.root, case.policy.locale, case.file)
            )
        return by_name(case.names, root=case.root, locale=case.policy.locale)
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        raise ValidatorsUnavailable(str(error)) from error


@checked_frozen(slots=True)
class _ValidatorRecipe:
    """Cache key for the validators of a policy file. The file is compared by its hash."""

    hash: str
    names: tuple[str, ...]
    root: Path
    locale: str
    file: PolicyFile = field(compare=False)


@functools.lru_cache(maxsize=64)
def _build_file_validators(made: _ValidatorRecipe) -> tuple[ResponseValidator, ...]:
    return build_rules(made.file, made.names, root=made.root, locale=made.locale)


@functools.lru_cache(maxsize=64)
def _build_own_validators(names: tuple[str, ...], *, root: Path, locale: str) -> tuple[ResponseValidator, ...]:
    return build_validators(names, root=root, locale=locale)


def validate_case(case: ValidationCase) -> Attempt:
    """Validate a new answer in this process and return the attempt. Raises ``ValidatorsUnavailable``."""
    rules = _build_case_validators(case)
    return validate_attempt(
        case.history, case.text, rules, case.context, policy=case.policy, feedback=case.feedback, fresh=case.fresh
    )


def repair_case(case: ValidationCase) -> RepairResult:
    """Repair a validated answer in this process. Raises ``ValidatorsUnavailable``."""
    return repair_attempt(_find_chosen(case), case.history, _build_case_validators(case), case.context)


def _find_chosen(case: ValidationCase) -> Attempt:
    unknown = Attempt(number=1, text=case.text, answer=case.text)
    return next((attempt for attempt in reversed(case.history) if attempt.answer == case.text), unknown)


class ValidationPool:
    """Validates and repairs answers in child processes with a time limit. Thread-safe.

    ``seconds`` limits a validation without waits for programs and models, ``children`` the concurrent validations, and
    ``memory_mb`` the memory of a child, in MiB.
    """

    def __init__(self, seconds: float, children: int | None = None, memory_mb: int = MEMORY_MB) -> None:
        self._seconds = seconds
        self._children = _ChildPool(children or os.cpu_count() or 1, memory_mb)

    def validate_answer(self, case: ValidationCase) -> Attempt:
        """Validate a new answer. Report a validator that takes too long or crashes as ``VALIDATOR_ERROR``."""
        found = self._work_in_parts(validate_case, case)
        if found is not None:
            return found
        kept = None if case.fresh else find_best_attempt(latest_attempts(case.history))
        answer, issues = (kept.answer, kept.issues) if kept else (case.text, ())
        issues = (*issues, self._report_overrun(GUARD, case))
        unread = Attempt(number=len(case.history) + 1, text=case.text, answer=answer, issues=issues)
        return replace(unread, feedback=case.feedback, fresh=case.fresh)

    def repair(self, case: ValidationCase) -> RepairResult:
        """Repair a validated answer."""
        found = self._work_in_parts(repair_case, case)
        if found is not None:
            return found
        issues = (*_find_chosen(case).issues, self._report_overrun(GUARD, case))
        return RepairResult(text=case.text, issues=issues)

    def _work_in_parts(self, work: Callable[[ValidationCase], Found], case: ValidationCase) -> Found | None:
        """Return the result with an issue for each validator that takes too long or crashes.

        A validator that did so in an earlier attempt is tried alone first; after ``MOST_OVERRUNS`` such attempts it is
        not run.
        """
        guilty = {name for name in case.names if self._overruns_again(work, name, case)}
        rest = replace(case, names=tuple(name for name in case.names if name not in guilty))
        found = self._try_work(work, rest)
        if found is None:
            bare = self._try_work(work, replace(rest, names=())) if rest.names else None
            if bare is None:
                return None
            guilty |= {name for name in rest.names if self._try_work(work, replace(rest, names=(name,))) is None}
            sound = tuple(name for name in rest.names if name not in guilty)
            found = self._try_work(work, replace(rest, names=sound)) or bare
        if not guilty:
            return found
        blamed = tuple([self._report_overrun(name, case) for name in case.names if name in guilty])
        joined: Found = replace(found, issues=found.issues + blamed)
        return joined

    def _overruns_again(self, work: Callable[[ValidationCase], Found], name: str, case: ValidationCase) -> bool:
        """Return True if a validator that overran in an earlier attempt does so again, or did so too often."""
        attempts = () if case.fresh else latest_attempts(case.history)
        failed = [each for attempt in attempts for each in attempt.issues if each.code == NOT_JUDGED]
        messages = [each.message for each in failed if each.validator == name]
        overran = messages.count(self._describe_overrun(name, case).message) if messages else 0
        if overran >= MOST_OVERRUNS:
            return True
        return overran > 0 and self._try_work(work, replace(case, names=(name,))) is None

    def _report_overrun(self, name: str, case: ValidationCase) -> ValidationIssue:
        log.error("validators.overran", validator=name, seconds=self._seconds)
        return self._describe_overrun(name, case)

    def _describe_overrun(self, name: str, case: ValidationCase) -> ValidationIssue:
        problem = f"took longer than {self._seconds:g} s, or took its process down"
        issue = make_issue(NOT_JUDGED, case.policy.locale, validator=name, problem=problem)
        return replace(issue, validator=name)

    def _try_work(self, work: Callable[[ValidationCase], Found], case: ValidationCase) -> Found | None:
        """Validate or repair an answer. Return None if a validator raises, crashes or takes too long."""
        if case.bounded:
            try:
                return work(case)
            except ValidatorsUnavailable:
                raise
            except Exception:
                log.exception("validators.failed", validators=case.names)
                return None
        answer = self._children.run_case(work, case, self._seconds)
        if isinstance(answer, ValidatorsUnavailable):
            raise answer
        return answer


class _ChildPool:
    """A pool of reusable child processes that run validators."""

    def __init__(self, most: int, memory_mb: int) -> None:
        self._memory_mb = memory_mb
        self._places = threading.Semaphore(most)
        self._idle: list[_Child] = []
        # A child ends with the thread that started it, so one long-lived thread starts all children.
        self._starter = ThreadPoolExecutor(1, "validators")

    def run_case(
        self, work: Callable[[ValidationCase], Found], case: ValidationCase, seconds: float
    ) -> Found | ValidatorsUnavailable | None:
        """Run ``work`` in a child process and return the result, or None if the child dies or takes too long."""
        with self._places:
            child = self._acquire_child()
            try:
                answer = child.run_case(work, case, seconds)
            except BaseException:
                child.kill()
                raise
            if answer is None or child.has_grown:
                child.kill()
            else:
                self._idle.append(child)
            return answer

    def _acquire_child(self) -> _Child:
        while self._idle:
            try:
                child = self._idle.pop()
            except IndexError:  # another thread took the child
                break
            if child.alive:
                return child
            child.kill()
        return self._starter.submit(_Child, self._memory_mb).result()


class _Child:
    def __init__(self, memory_mb: int) -> None:
        import multiprocessing  # most workers never need it

        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve_cases, args=(theirs, os.getpid(), memory_mb), daemon=True
        )
        self._process.start()
        theirs.close()
        self._ready = False
        #: True once the validators have left so much memory occupied that another child must take the next case.
        self.has_grown = False

    def run_case(
        self, work: Callable[[ValidationCase], Found], case: ValidationCase, seconds: float
    ) -> Found | ValidatorsUnavailable | None:
        try:
            if not self._ready and not self._pipe.poll(_START_SECONDS):
                return None
            if not self._ready:
                self._ready = bool(self._pipe.recv())
            self._pipe.send((work, case))
            if not self._pipe.poll(seconds):
                return None
            patience: float | ValidatorsUnavailable
            patience, _ = self._pipe.recv()
            if isinstance(patience, ValidatorsUnavailable):
                return patience
            if not self._pipe.poll(seconds + patience):
                return None
            answer: Found | ValidatorsUnavailable
            answer, self.has_grown = self._pipe.recv()
        except (EOFError, OSError):
            return None
        return answer

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        if self._process.pid and self.alive:  # else its id may be that of another process
            kill_family(self._process.pid)
        self._process.join()
        self._pipe.close()


def _serve_cases(pipe: Connection, parent: int, memory_mb: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        return
    # Ctrl-C reaches the whole process group; the worker decides when this child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    with divert_output():  # standard output is the worker's own
        _answer_cases(pipe, memory_mb)


def _answer_cases(pipe: Connection, memory_mb: int) -> None:
    own_pid, kept = os.getpid(), list[int]()

    def send_answer(answer: object, *, has_grown: bool = False) -> None:
        if os.getpid() != own_pid:
            os._exit(0)  # a validator forked; its copy of this child must not answer as well
        kill_descendants(spared={*kept, shared_processes().guard_pid, find_proxy_process()})
        pipe.send((answer, has_grown))

    provide_services()
    most_memory = read_private_memory() + memory_mb * 2**20 // _KEPT_SHARE
    pipe.send(True)
    while True:
        try:
            work, case = pipe.recv()
        except EOFError:
            return
        try:
            patience = MAX_ROUNDS * sum(validator.patience for validator in _build_case_validators(case))
            kept[:] = list_children(own_pid)  # what a rule starts when it is built may serve later answers too
            send_answer(patience)
            with limit_memory(memory_mb):
                found = work(case)
            send_answer(found, has_grown=read_private_memory() > most_memory)
        except ValidatorsUnavailable as error:
            send_answer(ValidatorsUnavailable(str(error)))
