"""Services that the host provides to rules: run a program in the sandbox, ask a configured model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, Self

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


class CostMeter:
    """Context manager that adds up the cost of model calls within the block."""

    def __init__(self) -> None:
        self.spent = NOTHING_USED
        self._outer: CostMeter | None = None

    def __enter__(self) -> Self:
        self._outer = _counting.get()
        self._before = _counting.set(self)
        return self

    def __exit__(self, *_error: object) -> None:
        _counting.reset(self._before)
        if self._outer is not None:
            self._outer.spent += self.spent


def record_cost(spent: Usage) -> None:
    """Add the cost of asking a model to the active meter, if there is one."""
    if (counting := _counting.get()) is not None:
        counting.spent += spent
