"""Base class of all rules with options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from worker.enforcement.tool_call_log import ToolCallLog
from worker.enforcement.validators.codes import DEFAULT_LOCALE
from worker.enforcement.validators.validator import ResponseValidator

#: Key of the context with the evidence that rules collected about the runs, by rule, oldest run first.
EVIDENCE = "evidence"


def option(default: Any, what: str) -> Any:
    """Return a dataclass field for an option of a rule. ``what`` describes the option to users in one sentence."""
    return field(default=default, metadata={"what": what})


@dataclass(frozen=True, kw_only=True)
class ObservedRun:
    """A finished run of the agent, from which a rule may collect evidence: facts that its validation needs later.

    Attributes:
        folder: the run's own folder, empty at its start.
        root: HELIX_ROOT.
        writable: other folders that the agent may write.
        tool_calls: None if the runner reports none.
        since: start of the turn, in seconds since the epoch.
        redact: masks secrets.
        earlier: evidence of the run that this one continued; empty if there was none, None if it continued no run.
    """

    folder: Path
    root: Path
    writable: tuple[Path, ...]
    text: str
    tool_calls: ToolCallLog | None
    since: float
    redact: Callable[[str], str] = str
    earlier: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Rule(ResponseValidator):
    """Base class of validators that are configured by their dataclass fields.

    Attributes:
        name: the rule's name in issues, metrics and requests; the policy file may set it.
        root: directory that paths in answers are relative to (HELIX_ROOT).

    Raises:
        ValueError: an option has an invalid value; the message names the option.
    """

    kind: ClassVar[str] = ""
    #: True if the rule starts programs or asks models. A request may use it only if the policy file has it.
    needs_services: ClassVar[bool] = False
    #: True if the rule implements ``collect``.
    collects: ClassVar[bool] = False

    name: str = ""
    root: Path = Path()
    locale: str = DEFAULT_LOCALE

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.kind)

    def find_locale(self, context: Mapping[str, Any]) -> str:
        """Return the locale for messages: the context's locale, or else the rule's locale."""
        return str(context.get("locale", self.locale))

    @classmethod
    def collect(cls, run: ObservedRun) -> dict[str, Any]:
        """Return the evidence that the rule needs about a finished agent run, as a dict for JSON. May block."""
        return {}
