"""Validates recorded answers again, in one process per CPU, with a limited number of pending batches."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from api_client.contract.settings import Settings
from worker.enforcement.policies import ChosenRules, PolicyFile, build_rules
from worker.enforcement.policy import Policy
from worker.enforcement.printed_output import divert_output
from worker.enforcement.validator_process import isolate_validators
from worker.enforcement.validators import ResponseValidator
from worker.external.local_services import provide_services
from worker.plugins.analysis.policy_replay.comparison import AnswerDecision, Comparison, RecordedTurn, replay_turn
from worker.processes.cpus import usable_cpus

#: Turns per batch, and most pending batches per process.
_BATCH, _WAITING = 16, 2
#: Seconds that a process gets to end by itself after its pipe is closed.
_END_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyShare:
    """The part of a policy that applies to one turn: rules, shadow rules and settings."""

    names: tuple[str, ...]
    shadow: tuple[str, ...] = ()
    policy: Policy


_Batch = list[tuple[RecordedTurn, PolicyShare]]


class ValidationProcessDied(Exception):
    """Raised when a process that validates answers has died."""


class ComparisonRun:
    """Validates recorded turns with a policy in several processes, and counts the verdicts.

    Use as a context manager. ``processes`` is the highest number of processes; 0: one per CPU.
    """

    def __init__(self, policy: PolicyFile, settings: Settings, comparison: Comparison, processes: int = 0) -> None:
        self._policy, self._settings, self._comparison = policy, settings, comparison
        self._most = processes or usable_cpus()
        self._processes: list[_ValidationProcess] = []
        self._next: _Batch = []
        self._under_way: deque[tuple[_Batch, _ValidationProcess]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            process.end()

    def add_turn(self, turn: RecordedTurn, given: PolicyShare) -> None:
        """Add a recorded turn to validate, with the part of the policy that applies to the turn."""
        self._next.append((turn, given))
        if len(self._next) == _BATCH:
            batch, self._next = self._next, []
            self._send_batch(batch)

    def finish(self) -> None:
        """Validate and count all added turns that are still waiting."""
        while self._under_way:
            self._receive_batch()
        with divert_output(), _RuleCache(self._policy, self._settings.root) as rules:
            for turn, given in self._next:
                self._comparison.count_decisions(turn, replay_turn(turn, rules.choose_rules(given)))
        self._next = []

    def _send_batch(self, batch: _Batch) -> None:
        if len(self._under_way) == self._most * _WAITING:
            self._receive_batch()
        if len(self._processes) < self._most:
            self._processes.append(_ValidationProcess(self._policy, self._settings))
        else:  # round robin, so that results arrive in the order of the batches
            self._processes.append(self._processes.pop(0))
        process = self._processes[-1]
        process.send_batch(batch)
        self._under_way.append((batch, process))

    def _receive_batch(self) -> None:
        batch, process = self._under_way.popleft()
        for (turn, _), found in zip(batch, process.receive_batch(), strict=True):
            self._comparison.count_decisions(turn, found)


class _ValidationProcess:
    def __init__(self, policy: PolicyFile, settings: Settings) -> None:
        started = multiprocessing.get_context("spawn")
        self._pipe, theirs = started.Pipe()
        self._process: SpawnProcess = started.Process(
            target=_validate_batches, args=(theirs, policy, settings), daemon=True
        )
        self._process.start()
        theirs.close()

    def send_batch(self, batch: _Batch) -> None:
        try:
            self._pipe.send(batch)
        except OSError:
            raise self._build_error() from None

    def receive_batch(self) -> list[list[AnswerDecision]]:
        try:
            found: list[list[AnswerDecision]] = self._pipe.recv()
        except (EOFError, OSError):
            raise self._build_error() from None
        return found

    def _build_error(self) -> ValidationProcessDied:
        self._process.join(1)
        return ValidationProcessDied(f"a process that validated answers has ended (exit code {self._process.exitcode})")

    def end(self) -> None:
        self._pipe.close()
        self._process.join(_END_SECONDS)
        self._process.terminate()
        self._process.join()


class _RuleCache(ExitStack):
    """Caches the validators of turns by rule names and language."""

    def __init__(self, policy: PolicyFile, root: Path) -> None:
        super().__init__()
        self._policy, self._root = policy, root
        self._built: dict[tuple[tuple[str, ...], str], tuple[ResponseValidator, ...]] = {}

    def choose_rules(self, given: PolicyShare) -> ChosenRules:
        return ChosenRules(self._build_rules(given.names, given), self._build_rules(given.shadow, given), given.policy)

    def _build_rules(self, names: tuple[str, ...], given: PolicyShare) -> tuple[ResponseValidator, ...]:
        locale = given.policy.locale
        if (names, locale) not in self._built:
            built = build_rules(self._policy, names, root=self._root, locale=locale)
            self._built[names, locale] = self.enter_context(isolate_validators(built))
        return self._built[names, locale]


def _validate_batches(pipe: Connection, policy: PolicyFile, settings: Settings) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    provide_services(settings)
    with divert_output(), _RuleCache(policy, settings.root) as rules, contextlib.suppress(EOFError, OSError):
        while True:
            turns: _Batch = pipe.recv()
            pipe.send([replay_turn(turn, rules.choose_rules(given)) for turn, given in turns])
