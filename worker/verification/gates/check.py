"""All gates of a phase, in order: files_exist, syntax, then what the phase names. A gate that fails itself fails it."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from api_client.contract.issues.issue import ValidationIssue
from api_client.contract.phases.phase import Phase
from worker.runners.base import Stop
from worker.verification.gates.base import GateReport, GateResult, Site
from worker.verification.gates.codes import issue
from worker.verification.gates.fence import RUNS_PROGRAMS, Fence
from worker.verification.gates.output_tree import TooLarge, Tree, scan
from worker.verification.gates.registry import GATES
from worker.verification.gates.stop import Stopped, Stopping

log = structlog.get_logger()

#: The gates every phase passes first.
ALWAYS = ("files_exist", "syntax")


def check(
    phase: Phase,
    directory: Path,
    *,
    stop: Stop | None = None,
    deadline: float = math.inf,
    mark: str = "",
    locale: str = "en",
    scratch: Path | None = None,
    fence: Fence | None = None,
) -> GateReport:
    """Run all gates of a phase over its output.

    Args:
        phase: the phase.
        directory: its output folder; nothing in it is changed.
        stop: asks running programs to end.
        deadline: when the gates must be over, by ``time.monotonic()``.
        mark: names the processes that gates start; made up when empty.
        locale: language of issues, ``de`` or ``en``.
        scratch: where copies of the output are made; None for the system's temporary directory.
        fence: what programs run in; None: a box where one can be made, and as you where none can.
    """
    results: list[GateResult] = []
    found = each_gate(
        phase, directory, stop=stop, deadline=deadline, mark=mark, locale=locale, scratch=scratch, fence=fence
    )
    try:
        results.extend(found)
    except Stopped as stopped:
        return GateReport(results=tuple(results), stopped=str(stopped))
    return GateReport(results=tuple(results))


def each_gate(
    phase: Phase,
    directory: Path,
    *,
    stop: Stop | None = None,
    deadline: float = math.inf,
    mark: str = "",
    locale: str = "en",
    scratch: Path | None = None,
    fence: Fence | None = None,
) -> Iterator[GateResult]:
    """As ``check``, one result at a time, as soon as it is there.

    Raises:
        Stopped: ``stop`` asked to end, or ``deadline`` came; no process of a gate is left.
    """
    site = Site(
        phase=phase,
        tree=Tree(directory),
        stop=stop or Stopping(),
        deadline=deadline,
        mark=mark,
        locale=locale,
        scratch=scratch,
        fence=fence or Fence(),
    )
    try:
        site = replace(site, tree=scan(directory))
    except (TooLarge, OSError) as error:
        yield GateResult(gate=ALWAYS[0], issues=(_unseen(error, locale),))
        return
    failed: list[str] = []
    for name, kind, options in _plan(phase):
        if reason := site.stop.reason or ("deadline" if time.monotonic() >= deadline else ""):
            raise Stopped(reason)
        if kind in RUNS_PROGRAMS and failed:
            yield GateResult(gate=name, skipped=f"not run, because {', '.join(failed)} failed")
            continue
        result = _run(name, kind, options, site)
        if not result.passed:
            failed.append(name)
        yield result


def _unseen(error: Exception, locale: str) -> ValidationIssue:
    """Return why the output could not be looked at."""
    if isinstance(error, TooLarge):
        return issue("OUTPUT_TOO_LARGE", locale, problem=error)
    if getattr(error, "errno", None) in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
        return issue("NO_OUTPUT", locale)
    return issue("GATE_ERROR", locale, name=ALWAYS[0], problem=error)


def _plan(phase: Phase) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Name, type and options of each gate. What a phase says about one of the first two is joined with them."""
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
    except Stopped:
        raise
    except Exception as error:
        # A gate that cannot judge does not let pass; what broke it is reported, and the others go on.
        log.exception("phase.gate_failed", gate=name, phase=site.phase.id)
        found = (issue("GATE_ERROR", site.locale, name=name, problem=f"{type(error).__name__}: {error}"),)
    return GateResult(gate=name, issues=tuple(_signed(name, one) for one in found), seconds=time.monotonic() - started)


def _signed(name: str, found: ValidationIssue) -> ValidationIssue:
    return replace(found, validator=name)
