"""Services that the host provides to rules: run a program in the sandbox, ask a configured model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from api_client.contract.usage import NOTHING_USED, Usage


class CannotRun(Exception):
    """Raised if a program or model gives no verdict, for example because it did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationProgram:
    """A program that checks an answer, with its input and its limits.

    Attributes:
        files: texts by path, written into the program's working directory.
        memory_mb: address space of each process, in MiB.
    """

    argv: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    seconds: float = 30
    memory_mb: int = 1024


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The result of a program: the exit code, and the last lines of output and error output."""

    code: int
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrompt:
    """A prompt for a configured model, with a time limit in seconds."""

    model: str
    prompt: str
    seconds: float = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """The answer of a model to a prompt, with the cost of the answer."""

    text: str
    spent: Usage = NOTHING_USED


class RuleServices(Protocol):
    """Interface through which rules run programs and ask language models."""

    def run_program(self, program: ValidationProgram) -> ProgramResult:
        """Run a program and return its result. Raises ``CannotRun`` if there is no sandbox or a limit is exceeded."""

    def ask_model(self, question: ModelPrompt) -> ModelReply:
        """Ask a model once and return its reply. Raises ``CannotRun`` if there is none in time."""


class _NoServices:
    def run_program(self, program: ValidationProgram) -> ProgramResult:
        raise CannotRun("this process runs no programs; call worker.external.local_services.provide() first")

    def ask_model(self, question: ModelPrompt) -> ModelReply:
        raise CannotRun("this process asks no models; call worker.external.local_services.provide() first")


NOTHING: RuleServices = _NoServices()
_provided: list[RuleServices] = [NOTHING]
_counting: ContextVar[CostMeter | None] = ContextVar("counting", default=None)


def provide_services(services: RuleServices) -> None:
    """Set the services that rules in this process use to run programs and ask models."""
    _provided[0] = services


def get_services() -> RuleServices:
    """Return the services that rules in this process use to run programs and ask models."""
    return _provided[0]


@dataclass(slots=True)
class CostMeter:
    """The cost of the model calls in a ``measure_cost`` block so far."""

    spent: Usage = NOTHING_USED


@contextmanager
def measure_cost() -> Iterator[CostMeter]:
    """Add up the cost of model calls within the block. The meters of outer blocks include this cost afterwards."""
    outer, meter = _counting.get(), CostMeter()
    before = _counting.set(meter)
    try:
        yield meter
    finally:
        _counting.reset(before)
        if outer is not None:
            outer.spent += meter.spent


def record_cost(spent: Usage) -> None:
    """Add the cost of asking a model to the active meter, if there is one."""
    if (counting := _counting.get()) is not None:
        counting.spent += spent
