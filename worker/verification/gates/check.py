"""Run the gates of a phase. A test compares the gates here with the contract's table of gate options."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import structlog

from api_client.contract.issue import ValidationIssue
from api_client.contract.phase import Phase
from worker.runners.base import Stop
from worker.verification.gates.adr_valid import adr_valid
from worker.verification.gates.fence import RUNS_PROGRAMS, Fence
from worker.verification.gates.files_exist import files_exist
from worker.verification.gates.gate import Gate, GateReport, GateResult, Site
from worker.verification.gates.gate_codes import issue
from worker.verification.gates.output_tree import TooLarge, Tree, scan
from worker.verification.gates.program_gates import command, tests_pass
from worker.verification.gates.stop import CheckStopped
from worker.verification.gates.syntax import syntax

GATES: Mapping[str, Gate] = {
    "files_exist": files_exist,
    "syntax": syntax,
    "tests_pass": tests_pass,
    "adr_valid": adr_valid,
    "command": command,
}


log = structlog.get_logger()

#: Gates that every phase must pass first.
ALWAYS = ("files_exist", "syntax")


class Around(TypedDict, total=False):
    """Optional settings of gates; the defaults are those of ``Site``."""

    stop: Stop
    deadline: float
    mark: str
    locale: str
    scratch: Path | None
    fence: Fence


def check(phase: Phase, directory: Path, **around: Unpack[Around]) -> GateReport:
    """Run all gates of a phase on its output folder, which is not changed."""
    results: list[GateResult] = []
    try:
        results.extend(each_gate(phase, directory, **around))
    except CheckStopped as stopped:
        return GateReport(results=tuple(results), stopped=str(stopped))
    return GateReport(results=tuple(results))


def each_gate(phase: Phase, directory: Path, **around: Unpack[Around]) -> Iterator[GateResult]:
    """Run the gates of a phase one after the other and yield each result.

    Raises:
        CheckStopped: ``stop`` was set or ``deadline`` passed; no process of a gate is left.
    """
    site = Site(phase=phase, tree=Tree(directory), **around)
    try:
        site = replace(site, tree=scan(directory))
    except (TooLarge, OSError) as error:
        yield GateResult(gate=ALWAYS[0], issues=(_unseen(error, site.locale),))
        return
    failed: list[str] = []
    for name, kind, options in _plan(phase):
        if reason := site.stop.reason or ("deadline" if time.monotonic() >= site.deadline else ""):
            raise CheckStopped(reason)
        if kind in RUNS_PROGRAMS and failed:
            yield GateResult(gate=name, skipped=f"not run, because {', '.join(failed)} failed")
            continue
        result = _run(name, kind, options, site)
        if not result.passed:
            failed.append(name)
        yield result


def _unseen(error: Exception, locale: str) -> ValidationIssue:
    if isinstance(error, TooLarge):
        return issue("OUTPUT_TOO_LARGE", locale, problem=error)
    if getattr(error, "errno", None) in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
        return issue("NO_OUTPUT", locale)
    return issue("GATE_ERROR", locale, name=ALWAYS[0], problem=error)


def _plan(phase: Phase) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for first in ALWAYS:
        named = [gate.options for gate in phase.quality_gates if gate.type == first]
        joined = {key: [entry for options in named for entry in options.get(key, ())] for key in ("files", "ignore")}
        yield first, first, joined
    for gate in phase.quality_gates:
        if gate.type not in ALWAYS:
            title = gate.options.get("name", "")
            yield f"{gate.type}:{title}" if title else gate.type, gate.type, gate.options


def _run(name: str, kind: str, options: Mapping[str, Any], site: Site) -> GateResult:
    started = time.monotonic()
    try:
        found = tuple(GATES[kind](options, site))
    except CheckStopped:
        raise
    except Exception as error:
        # A gate that crashes fails; the other gates still run.
        log.exception("phase.gate_failed", gate=name, phase=site.phase.id)
        found = (issue("GATE_ERROR", site.locale, name=name, problem=f"{type(error).__name__}: {error}"),)
    return GateResult(
        gate=name, issues=tuple(replace(one, validator=name) for one in found), seconds=time.monotonic() - started
    )
