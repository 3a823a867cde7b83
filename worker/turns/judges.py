"""Judges: child processes in which validators run, because one may hang, eat the processor or take its process down.

A regular expression that runs away holds the interpreter's lock, and with it every lease of the process it runs in.
Each thread that judges has a child of its own; one that overruns is killed, and its validators are told as
VALIDATOR_ERROR, one by one, so that only those that overran are blamed.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import structlog

from worker.enforcement.codes import issue
from worker.enforcement.issue import ValidationIssue
from worker.enforcement.judge import judge
from worker.enforcement.policy import Attempt, Policy
from worker.enforcement.registry import build_validators
from worker.enforcement.repair.repaired import Repaired, repair_attempt
from worker.enforcement.validators import ResponseValidator

log = structlog.get_logger()

Found = TypeVar("Found", Attempt, Repaired)

_PR_SET_PDEATHSIG = 1
#: A new child imports the parsers first; that is not the validators' time.
_START_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is to be judged.

    Attributes:
        text: the raw answer of a new attempt, or the judged answer that is to be repaired.
        history: the attempts before it; to repair, all of them. names: the active validators.
        root: what paths resolve against. context: what validators are told besides the answer.
        policy: which validators repair first. fresh: the agent was asked anew, by a person or as another model.
    """

    text: str
    history: tuple[Attempt, ...]
    names: tuple[str, ...]
    root: Path
    context: dict[str, Any]
    policy: Policy
    fresh: bool = False


class CannotJudge(Exception):
    """The validators cannot be made: a name nobody knows here, or an entry point that makes none."""


def _validators(case: Case) -> tuple[ResponseValidator, ...]:
    try:
        return build_validators(case.names, root=case.root, locale=case.policy.locale)
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        raise CannotJudge(str(error)) from error


def judge_case(case: Case) -> Attempt:
    """Judge a new attempt, in this process.

    Raises:
        CannotJudge: the validators cannot be made.
    """
    return judge(case.history, case.text, _validators(case), case.context, policy=case.policy, fresh=case.fresh)


def repair_case(case: Case) -> Repaired:
    """Repair a judged answer, in this process.

    Raises:
        CannotJudge: the validators cannot be made.
    """
    unknown = Attempt(number=1, text=case.text, answer=case.text)
    chosen = next((attempt for attempt in reversed(case.history) if attempt.answer == case.text), unknown)
    return repair_attempt(chosen, case.history, _validators(case), case.context)


class Judges:
    """Judges and repairs in child processes, one per calling thread, each case within ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._own = threading.local()

    def judge(self, case: Case) -> Attempt:
        """As ``judge_case``; a validator that overruns or dies is an issue VALIDATOR_ERROR of its own."""
        found = self._try(judge_case, case)
        if found is not None:
            return found
        rest, errors = self._without_the_blamed(judge_case, case)
        rest = rest or judge_case(replace(case, names=()))
        return replace(rest, issues=(*rest.issues, *errors))

    def repair(self, case: Case) -> Repaired:
        """As ``repair_case``; a validator that overruns or dies is an issue VALIDATOR_ERROR of its own."""
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
        """The child's word on a case; None when it overran or died, and is gone."""
        child: _Child = getattr(self._own, "child", None) or _Child()
        self._own.child = child
        answer = child.ask(work, case, self._seconds)
        if answer is None:
            child.kill()
            self._own.child = None
        elif isinstance(answer, CannotJudge):
            raise answer
        return answer


class _Child:
    """One child process and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
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
            answer: Found | CannotJudge = self._pipe.recv()
        except (EOFError, OSError):
            return None
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, parent: int) -> None:
    """The child: answer cases until the parent is gone, however it went."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the worker decides when this ends
    pipe.send(True)
    while True:
        try:
            work, case = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(work(case))
        except CannotJudge as error:
            pipe.send(CannotJudge(str(error)))
