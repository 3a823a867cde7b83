"""The interface of gates: deterministic checks of a phase's output that report file and line of each fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api_client.contract.issue import ValidationIssue
from api_client.contract.phase import Phase
from worker.runners.base import Stop
from worker.verification.gates.gate_sandbox import GateSandbox
from worker.verification.gates.output_tree import OutputTree
from worker.verification.gates.stop import StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class GateContext:
    """The input of a quality gate that checks the output of a phase, such as its files and the time limit.

    Attributes:
        stop: stops running programs when its reason is set.
        mark: process tag of the programs that gates start.
        scratch: folder for copies of the output; None: the system's temporary folder.
    """

    phase: Phase
    tree: OutputTree
    stop: Stop = field(default_factory=StopRequest)
    deadline: float = math.inf
    mark: str = ""
    locale: str = "en"
    scratch: Path | None = None
    fence: GateSandbox = field(default_factory=GateSandbox)


#: A gate: a function of its options in phases.yaml and of its context that yields issues.
Gate = Callable[[Mapping[str, Any], GateContext], Iterable[ValidationIssue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The issues that a quality gate found, or the reason why the gate did not run.

    ``gate`` is the gate's type, or ``command:NAME``; ``skipped`` says why the gate did not run.
    """

    gate: str
    issues: tuple[ValidationIssue, ...] = ()
    skipped: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Return True if the gate ran and found no error."""
        return not self.skipped and not any(issue.is_error for issue in self.issues)

    def to_dict(self) -> dict[str, Any]:
        return {
            "gate": self.gate,
            "passed": self.passed,
            "issues": [issue.to_dict() for issue in self.issues],
            "skipped": self.skipped,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The results of all quality gates of a phase, in order.

    ``stopped`` is the reason if the gates were stopped early.
    """

    results: tuple[GateResult, ...] = ()
    stopped: str = ""

    @property
    def passed(self) -> bool:
        """Return True if every gate ran and found no error."""
        return not self.stopped and bool(self.results) and all(result.passed for result in self.results)

    @property
    def issues(self) -> tuple[ValidationIssue, ...]:
        return tuple(issue for result in self.results for issue in result.issues)

    @property
    def checks_passed(self) -> tuple[str, ...]:
        return tuple(result.gate for result in self.results if result.passed)

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "stopped": self.stopped,
            "results": [result.to_dict() for result in self.results],
        }
