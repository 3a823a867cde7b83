"""A gate: a deterministic check of a phase's output that names file and line of each fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api_client.contract.issue import ValidationIssue
from api_client.contract.phase import Phase
from worker.runners.base import Stop
from worker.verification.gates.fence import Fence
from worker.verification.gates.output_tree import Tree
from worker.verification.gates.stop import StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The place of a gate, and for whom it works.

    Attributes:
        phase: the phase whose output this is. tree: the output.
        stop: asks running programs to end. deadline: when the gates must be over, by ``time.monotonic()``.
        mark: names the processes that gates start. locale: language of issues, ``de`` or ``en``.
        scratch: where copies of the output are made; None for the system's temporary directory.
        fence: what programs run in.
    """

    phase: Phase
    tree: Tree
    stop: Stop = field(default_factory=StopRequest)
    deadline: float = math.inf
    mark: str = ""
    locale: str = "en"
    scratch: Path | None = None
    fence: Fence = field(default_factory=Fence)


#: A gate: what it finds wrong, given its options in phases.yaml.
Gate = Callable[[Mapping[str, Any], Site], Iterable[ValidationIssue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The findings of one gate.

    Attributes:
        gate: its type; a command gate's own name after a colon. issues: the faults; only errors let the gate fail.
        skipped: why it did not run, or empty. seconds: how long it took.
    """

    gate: str
    issues: tuple[ValidationIssue, ...] = ()
    skipped: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """True when it ran and found no error."""
        return not self.skipped and not any(issue.is_error for issue in self.issues)

    def to_dict(self) -> dict[str, Any]:
        """The result as a JSON-ready mapping."""
        return {
            "gate": self.gate,
            "passed": self.passed,
            "issues": [issue.to_dict() for issue in self.issues],
            "skipped": self.skipped,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The findings of all gates of a phase, in the order they ran; ``stopped`` says why they did not come to an end."""

    results: tuple[GateResult, ...] = ()
    stopped: str = ""

    @property
    def passed(self) -> bool:
        """True when every gate ran and found no error."""
        return not self.stopped and bool(self.results) and all(result.passed for result in self.results)

    @property
    def issues(self) -> tuple[ValidationIssue, ...]:
        """Return what all gates found."""
        return tuple(issue for result in self.results for issue in result.issues)

    @property
    def checks_passed(self) -> tuple[str, ...]:
        """The gates that passed."""
        return tuple(result.gate for result in self.results if result.passed)

    def to_dict(self) -> dict[str, Any]:
        """The report as a JSON-ready mapping."""
        return {
            "passed": self.passed,
            "stopped": self.stopped,
            "results": [result.to_dict() for result in self.results],
        }
