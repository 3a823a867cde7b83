"""Judges: where validators run, because one may hang, eat the processor or take its process down.

A regular expression that runs away holds the interpreter's lock, and with it every lease of the process it runs in. So
validators run in child processes, but for our own on texts of ordinary length: their work grows with the text alone
(tests/unit/enforcement/test_foreign_input.py), and takes less time than handing it over. A child that overruns is
killed, and its validators are reported as VALIDATOR_ERROR, one by one, so that only those that overran are blamed.
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

from api_client.contract.frozen import frozen
from api_client.contract.issue import ValidationIssue
from api_client.contract.offered import BUILT_IN
from worker.enforcement.attempt import Attempt
from worker.enforcement.child import MEMORY_MB, MOST_CHARACTERS, limited
from worker.enforcement.judging import judge
from worker.enforcement.policies import PolicyFile, build
from worker.enforcement.policies.rule_file import is_rule_file
from worker.enforcement.policy import Policy
from worker.enforcement.repair import MAX_ROUNDS, RepairResult, repair_attempt
from worker.enforcement.rules import OUR_RULES
from worker.enforcement.validators import ResponseValidator
from worker.enforcement.validators.codes import issue
from worker.enforcement.validators.registry import build_validators
from worker.external import provide

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

log = structlog.get_logger()

Found = TypeVar("Found", Attempt, RepairResult)

#: Validators and rules that are ours.
_OURS = frozenset({*BUILT_IN, *OUR_RULES})

_PR_SET_PDEATHSIG = 1
#: A new child imports the parsers first; that is not the validators' time.
_START_SECONDS = 30.0


@frozen(kw_only=True)
class Case:
    """The case to judge.

    Attributes:
        text: the raw answer of a new attempt, or the judged answer that is to be repaired.
        history: the attempts before it; to repair, all of them. names: the active validators.
        file: the policy file that defines the names; None without one.
        root: what paths resolve against. context: what validators get besides the answer.
        policy: which validators repair first. fresh: a person asked again, or another model works.
        feedback: what the agent was asked this time; empty for a first or a fresh attempt.
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
        """The active validators by their rules, whatever a policy file calls them."""
        if self.file is None:
            return self.names
        called = {entry.name: entry.rule for entry in self.file.rules}
        return tuple(called.get(name, name) for name in self.names)

    @functools.cached_property
    def bounded(self) -> bool:
        """Return whether it may be judged in the worker itself: the work has a bound that is known and small.

        All of its validators are ours, they say themselves that their time grows with these texts alone and that they
        look at no file system, which may hang, and the texts are not long.
        """
        if not set(self.rules) <= _OURS:
            return False
        texts = {self.text, *(self.context.get("files") or {}).values()}
        for attempt in self.history:
            texts |= {attempt.text, attempt.answer}
        if sum(map(len, texts)) > MOST_CHARACTERS:
            return False
        try:
            return all(validator.bounded_on(texts) for validator in _validators(self))
        except CannotJudge:
            return False


class CannotJudge(Exception):
    """The validators cannot be made: a name nobody knows here, or an entry point that makes none."""


def _validators(case: Case) -> tuple[ResponseValidator, ...]:
    by_name = _ours if set(case.rules) <= set(BUILT_IN) else build_validators
    try:
        if case.file is not None and any(is_rule_file(entry.rule) for entry in case.file.rules):
            return build(case.file, case.names, root=case.root, locale=case.policy.locale)  # they may have changed
        if case.file is not None:
            return _of_file(_Made(case.file.hash, case.names, case.root, case.policy.locale, case.file))
        return by_name(case.names, root=case.root, locale=case.policy.locale)
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        raise CannotJudge(str(error)) from error


@frozen(slots=True)
class _Made:
    """The recipe of validators of a policy file; files of one hash mean the same."""

    hash: str
    names: tuple[str, ...]
    root: Path
    locale: str
    file: PolicyFile = field(compare=False)


@functools.lru_cache(maxsize=64)
def _of_file(made: _Made) -> tuple[ResponseValidator, ...]:
    """The validators of a policy file keep no state: they are made once."""
    return build(made.file, made.names, root=made.root, locale=made.locale)


@functools.lru_cache(maxsize=64)
def _ours(names: tuple[str, ...], *, root: Path, locale: str) -> tuple[ResponseValidator, ...]:
    """Our own validators keep no state: they are made once."""
    return build_validators(names, root=root, locale=locale)


def judge_case(case: Case) -> Attempt:
    """Judge a new attempt, in this process. Raises ``CannotJudge``: the validators cannot be made."""
    rules = _validators(case)
    return judge(
        case.history, case.text, rules, case.context, policy=case.policy, feedback=case.feedback, fresh=case.fresh
    )


def repair_case(case: Case) -> RepairResult:
    """Repair a judged answer, in this process. Raises ``CannotJudge``: the validators cannot be made."""
    unknown = Attempt(number=1, text=case.text, answer=case.text)
    chosen = next((attempt for attempt in reversed(case.history) if attempt.answer == case.text), unknown)
    return repair_attempt(chosen, case.history, _validators(case), case.context)


class Judges:
    """Judges and repairs, each case within ``seconds``. One per process, used by many threads.

    That time is of validators in a child, besides what they wait for programs and models. ``children``: how many cases
    are judged so at once; the next one waits. ``memory_mb``: what they may take, in MiB; beyond it they raise
    MemoryError.
    """

    def __init__(self, seconds: float, children: int | None = None, memory_mb: int = MEMORY_MB) -> None:
        self._seconds = seconds
        self._children = _Children(children or os.cpu_count() or 1, memory_mb)

    def judge(self, case: Case) -> Attempt:
        """As ``judge_case``; a validator that overruns or dies is a separate issue VALIDATOR_ERROR."""
        found = self._try(judge_case, case)
        if found is not None:
            return found
        rest, errors = self._without_the_blamed(judge_case, case)
        rest = rest or judge_case(replace(case, names=()))
        return replace(rest, issues=(*rest.issues, *errors))

    def repair(self, case: Case) -> RepairResult:
        """As ``repair_case``; a validator that overruns or dies is a separate issue VALIDATOR_ERROR."""
        found = self._try(repair_case, case)
        if found is not None:
            return found
        rest, errors = self._without_the_blamed(repair_case, case)
        rest = rest or repair_case(replace(case, names=()))
        return replace(rest, issues=(*rest.issues, *errors))

    def _without_the_blamed(
        self, work: Callable[[Case], Found], case: Case
    ) -> tuple[Found | None, list[ValidationIssue]]:
        """Find out which validators overrun or die, one by one, and what the others say together."""
        sound = tuple(name for name in case.names if self._try(work, replace(case, names=(name,))) is not None)
        blamed = [name for name in case.names if name not in sound]
        log.error("validators.overran", validators=blamed, seconds=self._seconds)
        problem = f"took longer than {self._seconds:g} s, or took its process down"
        errors = [
            replace(issue("VALIDATOR_ERROR", case.policy.locale, validator=name, problem=problem), validator=name)
            for name in blamed
        ]
        return self._try(work, replace(case, names=sound)), errors

    def _try(self, work: Callable[[Case], Found], case: Case) -> Found | None:
        """The word on a case; None when what judged it failed, overran or died."""
        if case.bounded:
            try:
                return work(case)
            except CannotJudge:
                raise
            except Exception:
                log.exception("validators.failed", validators=case.names)
                return None
        answer = self._children.ask(work, case, self._seconds)
        if isinstance(answer, CannotJudge):
            raise answer
        return answer


class _Children:
    """The children of one process: started when they are needed, kept, and handed from thread to thread."""

    def __init__(self, most: int, memory_mb: int) -> None:
        self._memory_mb = memory_mb
        self._places = threading.Semaphore(most)
        self._idle: list[_Child] = []
        # A child ends with the thread that started it: so one thread starts all, and lives as long as this object.
        self._starter = ThreadPoolExecutor(1, "judges")

    def ask(self, work: Callable[[Case], Found], case: Case, seconds: float) -> Found | CannotJudge | None:
        """A child's answer; None when it overran or died, and is gone."""
        with self._places:
            child = self._take()
            answer = child.ask(work, case, seconds)
            if answer is None:
                child.kill()
            else:
                self._idle.append(child)
            return answer

    def _take(self) -> _Child:
        """An idle child that lives; a new one when there is none. What took an idle one down was no validator."""
        while self._idle:
            try:
                child = self._idle.pop()
            except IndexError:  # another thread was faster
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
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, os.getpid(), memory_mb), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    def ask(self, work: Callable[[Case], Found], case: Case, seconds: float) -> Found | CannotJudge | None:
        """The answer, or None when there was none in time."""
        try:
            if not self._ready and not self._pipe.poll(_START_SECONDS):
                return None
            if not self._ready:
                self._ready = bool(self._pipe.recv())
            self._pipe.send((work, case))
            if not self._pipe.poll(seconds):
                return None
            patience: float | CannotJudge = self._pipe.recv()
            if isinstance(patience, CannotJudge):
                return patience
            if not self._pipe.poll(seconds + patience):
                return None
            answer: Found | CannotJudge = self._pipe.recv()
        except (EOFError, OSError):
            return None
        return answer

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, parent: int, memory_mb: int) -> None:
    """The child: answer cases until the parent is gone, however it went."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the worker decides when this ends
    provide()
    pipe.send(True)
    while True:
        try:
            work, case = pipe.recv()
        except EOFError:
            return
        try:
            # The seconds that its validators may wait for programs and models; a repair judges several times.
            pipe.send(MAX_ROUNDS * sum(validator.patience for validator in _validators(case)))
            with limited(memory_mb):
                found = work(case)
            pipe.send(found)
        except CannotJudge as error:
            pipe.send(CannotJudge(str(error)))
