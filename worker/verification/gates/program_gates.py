"""Gates that run a program on a copy of the output: the phase's own command, and its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.runners.guard.box import Bind
from worker.verification.gates.gate import Site
from worker.verification.gates.gate_codes import issue
from worker.verification.gates.gate_program import ProgramLimits, Ran, run_program
from worker.verification.gates.output_tree import MAX_BYTES, content_of, copied

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


def command(options: Mapping[str, Any], site: Site) -> Iterator[ValidationIssue]:
    """Run the command of the phase; exit code 0 passes."""
    argv = _argv(options)
    name = str(options.get("name") or argv[-1 if options.get("shell") else 0])
    ran = _run_on_copy("command", argv, options, site)
    yield from _not_run(ran, name, site)
    if not (ran.error or ran.cause) and ran.code != 0:
        yield _failure("COMMAND_FAILED", ran, site, name=name)


def tests_pass(options: Mapping[str, Any], site: Site) -> Iterator[ValidationIssue]:
    """Run the tests with pytest or the phase's own command; exit code 0 passes, and pytest must find a test."""
    own = options.get("command") is not None
    ran = _run_on_copy("tests_pass", _argv(options) if own else _pytest(site), options, site)
    yield from _not_run(ran, "pytest" if not own else "tests_pass", site)
    if ran.error or ran.cause or ran.code == 0:
        return
    if not own and ran.code == _NO_TESTS:
        yield issue("NO_TESTS", site.locale)
    elif not own and any("No module named pytest" in line for line in ran.lines[-3:]):
        yield issue("CANNOT_RUN", site.locale, name="pytest", problem=ran.last_line)
    else:
        yield _failure("TESTS_FAILED", ran, site)


def _pytest(site: Site) -> list[str]:
    own = next((name for name, sign in _PYTEST_SETTINGS.items() if _holds(site, name, sign)), "/dev/null")
    return [*PYTEST, "-c", own, "--rootdir", ".", "--confcutdir", "."]


def _holds(site: Site, name: str, sign: bytes) -> bool:
    return name in site.tree.files and sign in content_of(site.tree, name, MAX_BYTES)


def _argv(options: Mapping[str, Any]) -> list[str]:
    line = options["command"]
    return ["/bin/sh", "-c", str(line)] if options.get("shell") else [str(word) for word in line]


def _run_on_copy(gate: str, argv: list[str], options: Mapping[str, Any], site: Site) -> Ran:
    if refused := site.fence.refused(gate):
        return Ran(code=None, error=refused)
    default = ProgramLimits()
    limits = ProgramLimits(
        seconds=float(options.get("seconds", default.seconds)),
        memory_mb=int(options.get("memory_mb", default.memory_mb)),
    )
    with copied(site.tree, site.scratch) as fresh:
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
            own=Bind(fresh, writable=True),
        )


def _not_run(ran: Ran, name: str, site: Site) -> Iterator[ValidationIssue]:
    if ran.error:
        yield issue("CANNOT_RUN", site.locale, name=name, problem=ran.error)
    elif ran.cause:
        yield issue("LIMIT_REACHED", site.locale, name=name, problem=ran.problem)


def _failure(code: str, ran: Ran, site: Site, **values: object) -> ValidationIssue:
    file, line = _place(ran, site)
    telling = next((text.strip() for text in ran.lines if _TELLING.match(text)), ran.last_line)
    return issue(code, site.locale, file=file, line=line, code=ran.code, problem=telling, **values)


def _place(ran: Ran, site: Site) -> tuple[str, int]:
    for text in ran.lines:
        for file, line in _PLACE.findall(text):
            known = file.removeprefix("./")
            if known in site.tree.files:
                return known, int(line)
    return "", 0
