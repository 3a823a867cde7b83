"""Runs the gates of a phase."""

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
from worker.verification.gates.adr_valid import check_adrs
from worker.verification.gates.files_exist import check_files
from worker.verification.gates.gate import Gate, GateContext, GateReport, GateResult
from worker.verification.gates.gate_codes import build_gate_issue
from worker.verification.gates.gate_sandbox import RUNS_PROGRAMS, GateSandbox
from worker.verification.gates.output_tree import OutputTooLarge, OutputTree, scan_tree
from worker.verification.gates.program_gates import run_command_gate, run_test_gate
from worker.verification.gates.stop import CheckInterrupted
from worker.verification.gates.syntax import check_syntax

GATES: Mapping[str, Gate] = {
    "files_exist": check_files,
    "syntax": check_syntax,
    "tests_pass": run_test_gate,
    "adr_valid": check_adrs,
    "command": run_command_gate,
}


log = structlog.get_logger()

ALWAYS = ("files_exist", "syntax")


class GateSettings(TypedDict, total=False):
    """The optional settings for running the quality gates of a phase, such as a time limit."""

    stop: Stop
    deadline: float
    mark: str
    locale: str
    scratch: Path | None
    fence: GateSandbox


def run_gates(phase: Phase, directory: Path, **around: Unpack[GateSettings]) -> GateReport:
    """Run all quality gates of a phase on its output folder, and return their results."""
    results: list[GateResult] = []
    try:
        results.extend(iterate_gates(phase, directory, **around))
    except CheckInterrupted as stopped:
        return GateReport(results=tuple(results), stopped=str(stopped))
    return GateReport(results=tuple(results))


def iterate_gates(phase: Phase, directory: Path, **around: Unpack[GateSettings]) -> Iterator[GateResult]:
    """Run the quality gates of a phase one after the other, and yield the result of each gate.

    Raises ``CheckInterrupted`` after ``stop`` or ``deadline``; no process of a gate is left.
    """
    site = GateContext(phase=phase, tree=OutputTree(directory), **around)
    try:
        site = replace(site, tree=scan_tree(directory))
    except (OutputTooLarge, OSError) as error:
        yield GateResult(gate=ALWAYS[0], issues=(_unreadable_output_issue(error, site.locale),))
        return
    failed: list[str] = []
    for name, kind, options in _plan_gates(phase):
        if reason := site.stop.reason or ("deadline" if time.monotonic() >= site.deadline else ""):
            raise CheckInterrupted(reason)
        if kind in RUNS_PROGRAMS and failed:
            yield GateResult(gate=name, skipped=f"not run, because {', '.join(failed)} failed")
            continue
        result = _run_gate(name, kind, options, site)
        if not result.passed:
            failed.append(name)
        yield result


def _unreadable_output_issue(error: Exception, locale: str) -> ValidationIssue:
    if isinstance(error, OutputTooLarge):
        return build_gate_issue("OUTPUT_TOO_LARGE", locale, problem=error)
    if getattr(error, "errno", None) in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
        return build_gate_issue("NO_OUTPUT", locale)
    return build_gate_issue("GATE_ERROR", locale, name=ALWAYS[0], problem=error)


def _plan_gates(phase: Phase) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for first in ALWAYS:
        named = [gate.options for gate in phase.quality_gates if gate.type == first]
        joined = {key: [entry for options in named for entry in options.get(key, ())] for key in ("files", "ignore")}
        yield first, first, joined
    for gate in phase.quality_gates:
        if gate.type not in ALWAYS:
            title = gate.options.get("name", "")
            yield f"{gate.type}:{title}" if title else gate.type, gate.type, gate.options


def _run_gate(name: str, kind: str, options: Mapping[str, Any], site: GateContext) -> GateResult:
    started = time.monotonic()
    try:
        found = tuple(GATES[kind](options, site))
    except CheckInterrupted:
        raise
    except Exception as error:
        log.exception("phase.gate_failed", gate=name, phase=site.phase.id)
        found = (build_gate_issue("GATE_ERROR", site.locale, name=name, problem=f"{type(error).__name__}: {error}"),)
    return GateResult(
        gate=name, issues=tuple(replace(one, validator=name) for one in found), seconds=time.monotonic() - started
    )
