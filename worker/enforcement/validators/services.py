"""Services of the machine for rules: run a program in the box, ask a configured model. The host provides both.

Enforcement starts no process and opens no connection by itself: ``worker.external`` does, for workers, for the
command line, and for your own code. docs/policy.md says who may use such rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, Self


class CannotRun(Exception):
    """A program or a model could not judge: it did not start, was ended, or gave no verdict. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingProgram:
    """A program that judges.

    Attributes:
        argv: program and arguments; no shell has a part in it.
        files: texts by their paths, laid into the folder it runs in. stdin: what it reads.
        seconds: time for all of it. memory_mb: address space of each of its processes, in MiB.
    """

    argv: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    seconds: float = 30
    memory_mb: int = 1024


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """The end of a program: its exit code, and the last lines of its output, standard error among them."""

    code: int
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question to a model: its name in the settings, the prompt, and the time limit in seconds."""

    model: str
    prompt: str
    seconds: float = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingCost:
    """The use of models while rules judged: tokens in and out, US dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.input_tokens or self.output_tokens or self.cost_usd)

    def __add__(self, other: JudgingCost) -> JudgingCost:
        return JudgingCost(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )


NOTHING_SPENT = JudgingCost()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A model's answer and what it used."""

    text: str
    spent: JudgingCost = NOTHING_SPENT


class Services(Protocol):
    """Runs programs and asks models."""

    def run(self, program: JudgingProgram) -> ProgramEnd:
        """Run a program and wait for it.

        Raises:
            CannotRun: there is no box, it did not start, or it went over a limit.
        """

    def ask(self, question: Question) -> ModelReply:
        """Ask a model once. Raises ``CannotRun``: the model is not configured, or did not finish in time."""


class _Nothing:
    def run(self, program: JudgingProgram) -> ProgramEnd:
        raise CannotRun("this process runs no programs; call worker.external.provide() first")

    def ask(self, question: Question) -> ModelReply:
        raise CannotRun("this process asks no models; call worker.external.provide() first")


NOTHING: Services = _Nothing()
_provided: list[Services] = [NOTHING]
_counting: ContextVar[SpendingCount | None] = ContextVar("counting", default=None)


def provide(services: Services) -> None:
    """Set what the rules of this process run programs and ask models with."""
    _provided[0] = services


def services() -> Services:
    """Return what this process provides; without any, both calls raise ``CannotRun``."""
    return _provided[0]


class SpendingCount:
    """Counts what rules use of models inside ``with``; an outer count counts it too. ``spent`` is the sum so far."""

    def __init__(self) -> None:
        self.spent = NOTHING_SPENT
        self._outer: SpendingCount | None = None

    def __enter__(self) -> Self:
        self._outer = _counting.get()
        self._before = _counting.set(self)
        return self

    def __exit__(self, *_error: object) -> None:
        _counting.reset(self._before)
        if self._outer is not None:
            self._outer.spent += self.spent


def spend(spent: JudgingCost) -> None:
    """Count a use in the innermost count."""
    if (counting := _counting.get()) is not None:
        counting.spent += spent
