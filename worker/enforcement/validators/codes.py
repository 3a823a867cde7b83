"""The closed table of issue codes: severity, occasion, repair and words stand in ``codes.toml``.

The rules with options have another table, and so have the gates of a phase. docs/enforcement.md lists the same codes; a
test compares the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

from api_client.contract.declared import table_beside
from api_client.contract.issues import Severity, ValidationIssue

LOCALES = ("de", "en")
DEFAULT_LOCALE = "en"

#: Longest piece of an answer that a message quotes, in characters.
QUOTE_LIMIT = 80


@dataclass(frozen=True, slots=True)
class Code:
    """One rule that an answer can break.

    Attributes:
        severity: whether it causes a retry. when: when it is reported, one English sentence.
        repair: what repairs it besides the agent: the fallback's doing, or empty for none.
        de, en: message and fix hint as templates, in German and English.
        shortens: its repair makes the answer shorter (``ValidationIssue.shortens``).
    """

    severity: Severity
    when: str
    repair: str
    de: tuple[str, str]
    en: tuple[str, str]
    shortens: bool = False


def codes_beside(module: str) -> Mapping[str, Code]:
    """The codes of a module (its ``__file__``), from the TOML file beside it."""
    return {
        name: Code(
            severity=Severity(entry.get("severity", "error")),
            when=entry["when"],
            repair=entry.get("repair", ""),
            de=tuple(entry["de"]),
            en=tuple(entry["en"]),
            shortens=entry.get("shortens", False),
        )
        for name, entry in table_beside(module).items()
    }


CODES = codes_beside(__file__)


def words(locale: str, german: str, english: str) -> str:
    """The words for a locale: English unless the locale is German."""
    return german if locale.lower().startswith("de") else english


def issue(
    code: str, locale: str, /, *, file: str = "", line: int = 0, part: str = "", **values: object
) -> ValidationIssue:
    """Make an issue with the table's severity, and its words in ``de`` or ``en``.

    The remaining values fill the code's templates; long or unprintable ones are clipped.

    Raises:
        KeyError: the code is not in the table, or a value of its templates is missing.
    """
    return worded(CODES[code], code, locale, file=file, line=line, part=part, **values)


def worded(
    entry: Code, code: str, locale: str, /, *, file: str = "", line: int = 0, part: str = "", **values: object
) -> ValidationIssue:
    """The issue of an entry of this or of another table. Raises ``KeyError``: a value of its templates is missing."""
    message, hint = entry.de if locale.lower().startswith("de") else entry.en
    if values:
        shown = {name: clip(str(value)) for name, value in values.items()}
        message, hint = message.format_map(shown), hint.format_map(shown)
    return ValidationIssue(
        code, message, hint, entry.severity, file=file, line=line, part=part, shortens=entry.shortens
    )


def clip(text: str, limit: int = QUOTE_LIMIT) -> str:
    """A piece of foreign text as one short printable line, so that it can break no frame, log or prompt."""
    head = text[: limit + 1]
    flat = head if head.isprintable() else "".join([char if char.isprintable() else " " for char in head])
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


# The interface of a validator (ADR-038, section 1). docs/validators.md shows how to write one in ten lines.


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """The result of one validation: valid when no issue is an error."""

    valid: bool
    issues: list[ValidationIssue] = field(default_factory=list)

    @classmethod
    def of(cls, issues: Sequence[ValidationIssue]) -> ValidationResult:
        """The result that these issues make."""
        return cls(valid=not any(issue.is_error for issue in issues), issues=list(issues))

    def __bool__(self) -> bool:
        return self.valid


class ResponseValidator(ABC):
    """Judges an answer, and repairs it where a rule can be met without the agent.

    A validator keeps no state between calls: it may be used by many threads at once.
    """

    #: True when the fallback may also be applied to the files the agent wrote, each as its own text.
    mends_files: ClassVar[bool] = False
    #: True when its time and memory grow with the text alone, and it reads no file: it is then judged in place. All
    #: others are judged in a child process, where one that hangs can be ended.
    bounded: ClassVar[bool] = False
    #: Seconds it may wait for programs or models, beyond what judging takes by itself.
    patience: ClassVar[float] = 0.0

    def bounded_on(self, texts: Iterable[str]) -> bool:
        """True if its work on these texts is bounded; for a validator that only some answers make look at files."""
        return self.bounded

    @property
    @abstractmethod
    def name(self) -> str:
        """The validator's unique name, as requests name it."""

    @abstractmethod
    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Judge an answer.

        Args:
            response: the agent's complete answer.
            context: ``files`` (name to text of the files the agent wrote), ``locale``, and what the caller adds.

        Returns:
            What is wrong; empty when nothing is.
        """

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Repair an answer without the agent.

        Returns:
            The repaired answer, or None when there is nothing this validator can repair.
        """
        return None

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        """Word what the fallback changed between two texts, a line each; empty when it has no words for it."""
        return ()

    def check(self, response: str, context: Mapping[str, Any] | None = None) -> ValidationResult:
        """Judge an answer and say whether it is valid: no issue is an error."""
        return ValidationResult.of(self.validate(response, context or {}))


# Services of the machine for rules: run a program in the box, ask a configured model. The host provides both.
#
# Enforcement starts no process and opens no connection by itself: ``worker.external`` does, for workers, for the
# command line, and for your own code. docs/policy.md says who may use such rules.


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
class Ended:
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

    def run(self, program: JudgingProgram) -> Ended:
        """Run a program and wait for it.

        Raises:
            CannotRun: there is no box, it did not start, or it went over a limit.
        """

    def ask(self, question: Question) -> ModelReply:
        """Ask a model once. Raises ``CannotRun``: the model is not configured, or did not finish in time."""


class _Nothing:
    def run(self, program: JudgingProgram) -> Ended:
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
