"""Gates that run a program on a copy of the output: the phase's own command, and its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.runners.sandbox.bubblewrap import SandboxMount
from worker.verification.gates.gate import GateContext
from worker.verification.gates.gate_codes import build_gate_issue
from worker.verification.gates.gate_program import GateProgramResult, ProgramLimits, run_program
from worker.verification.gates.output_tree import MAX_BYTES, read_tree_file, temporary_copy

PYTEST = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
#: Files that may hold pytest's settings, and the text that marks such settings.
_PYTEST_SETTINGS = {
    "pytest.ini": b"",
    ".pytest.ini": b"",
    "pytest.toml": b"",
    "pyproject.toml": b"[tool.pytest",
    "tox.ini": b"[pytest]",
    "setup.cfg": b"[tool:pytest]",
}
_NO_TESTS = 5

#: Places such as ``file.py:12`` in the output of compilers, linters and pytest.
_PLACE = re.compile(r"(?:^|[\s(\"'])((?:[\w.@+-]+/)*[\w.@+-]+\.\w{1,8}):(\d{1,7})\b")
#: Lines that explain a failure in the output of pytest and most other tools.
_TELLING = re.compile(r"^(?:E   |FAILED |ERROR |.*\b(?:[Ee]rror|FAIL(?:ED)?)\b)")


def run_command_gate(options: Mapping[str, Any], site: GateContext) -> Iterator[ValidationIssue]:
    """Run a phase's command on a copy of its output, and yield an issue unless the exit code is 0."""
    argv = _command_line(options)
    name = str(options.get("name") or argv[-1 if options.get("shell") else 0])
    ran = _run_on_copy("command", argv, options, site)
    yield from _report_not_run(ran, name, site)
    if not (ran.error or ran.cause) and ran.code != 0:
        yield _failure_issue("COMMAND_FAILED", ran, site, name=name)


def run_test_gate(options: Mapping[str, Any], site: GateContext) -> Iterator[ValidationIssue]:
    """Run the tests in a phase's output, and yield an issue if the tests fail or pytest finds no tests."""
    own = options.get("command") is not None
    ran = _run_on_copy("tests_pass", _command_line(options) if own else _pytest_command(site), options, site)
    yield from _report_not_run(ran, "pytest" if not own else "tests_pass", site)
    if ran.error or ran.cause or ran.code == 0:
        return
    if not own and ran.code == _NO_TESTS:
        yield build_gate_issue("NO_TESTS", site.locale)
    elif not own and any("No module named pytest" in line for line in ran.lines[-3:]):
        yield build_gate_issue("CANNOT_RUN", site.locale, name="pytest", problem=ran.last_line)
    else:
        yield _failure_issue("TESTS_FAILED", ran, site)


def _pytest_command(site: GateContext) -> list[str]:
    there = [(name, sign) for name, sign in _PYTEST_SETTINGS.items() if name in site.tree.files]
    own = next((name for name, sign in there if sign in read_tree_file(site.tree, name, MAX_BYTES)), "/dev/null")
    return [*PYTEST, "-c", own, "--rootdir", ".", "--confcutdir", "."]


def _command_line(options: Mapping[str, Any]) -> list[str]:
    line = options["command"]
    return ["/bin/sh", "-c", str(line)] if options.get("shell") else [str(word) for word in line]


def _run_on_copy(gate: str, argv: list[str], options: Mapping[str, Any], site: GateContext) -> GateProgramResult:
    if refused := site.fence.explain_refusal(gate):
        return GateProgramResult(code=None, error=refused)
    default = ProgramLimits()
    limits = ProgramLimits(
        seconds=float(options.get("seconds", default.seconds)),
        memory_mb=int(options.get("memory_mb", default.memory_mb)),
    )
    with temporary_copy(site.tree, site.scratch) as fresh:
        mark = f"{site.mark}.gate" if site.mark else ""
        return run_program(
            argv,
            fresh / "files",
            limits=limits,
            stop=site.stop,
            deadline=site.deadline,
            mark=mark,
            home=fresh / "home",
            fence=site.fence,
            own=SandboxMount(fresh, writable=True),
        )


def _report_not_run(ran: GateProgramResult, name: str, site: GateContext) -> Iterator[ValidationIssue]:
    if ran.error:
        yield build_gate_issue("CANNOT_RUN", site.locale, name=name, problem=ran.error)
    elif ran.cause:
        yield build_gate_issue("LIMIT_REACHED", site.locale, name=name, problem=ran.problem)


def _failure_issue(code: str, ran: GateProgramResult, site: GateContext, **values: object) -> ValidationIssue:
    file, line = _find_place(ran, site)
    telling = next((text.strip() for text in ran.lines if _TELLING.match(text)), ran.last_line)
    return build_gate_issue(code, site.locale, file=file, line=line, code=ran.code, problem=telling, **values)


def _find_place(ran: GateProgramResult, site: GateContext) -> tuple[str, int]:
    for text in ran.lines:
        for file, line in _PLACE.findall(text):
            known = file.removeprefix("./")
            if known in site.tree.files:
                return known, int(line)
    return "", 0
