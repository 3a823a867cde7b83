"""All gates of a phase, in order: files_exist, syntax, then what the phase names. A gate that fails itself fails it."""

from __future__ import annotations

import errno
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict, Unpack

import structlog

from api_client.contract.issues import ValidationIssue
from api_client.contract.phases import Phase
from worker.enforcement.validators import ADRStructureValidator
from worker.enforcement.validators.codes import codes_beside, worded
from worker.runners.base import Stop
from worker.runners.guard.box import Bind
from worker.verification.gates.gate_program import (
    RUNS_PROGRAMS,
    Fence,
    ProgramLimits,
    Ran,
    Stopped,
    Stopping,
    run_program,
)
from worker.verification.gates.output_tree import MAX_BYTES, TooLarge, Tree, content_of, copied, scan

# A gate: a deterministic check of a phase's output that names file and line of each fault.


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
    stop: Stop = field(default_factory=Stopping)
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


# The closed table of what gates find in a phase's output, ``codes.toml``: as enforcement's table.
#
# docs/WORKFLOW-SYSTEM.md lists the same codes; a test compares the two.

CODES = codes_beside(__file__)


def issue(code: str, locale: str, /, *, file: str = "", line: int = 0, **values: object) -> ValidationIssue:
    """Make an issue with the table's severity, and its words in ``de`` or ``en``.

    Raises:
        KeyError: the code is not in the table, or a value of its templates is missing.
    """
    return worded(CODES[code], code, locale, file=file, line=line, part="", **values)


# The gate adr_valid: the phase's ADRs are complete, by the rules that answers are judged by (ADR-038).

MAX_ADR = 2 * 2**20


def adr_valid(options: Mapping[str, Any], site: Site) -> Iterator[ValidationIssue]:
    """Judge the named ADRs, or all files called ADR-*.md; none at all is an error."""
    named = tuple(options.get("files", ()))
    found = named or tuple(path for path in site.tree.files if _is_adr(path))
    if not found:
        yield issue("NO_ADR", site.locale, path="ADR-*.md")
    validator = ADRStructureValidator(site.locale)
    for path in found:
        if path not in site.tree.files:
            yield issue("NO_ADR", site.locale, file=path, path=path)
            continue
        if site.tree.files[path] > MAX_ADR:
            yield issue("FILE_TOO_LARGE", site.locale, file=path, path=path)
            continue
        text = content_of(site.tree, path, MAX_ADR).decode("utf-8", "replace")
        context = {"files": {path: text}, "locale": site.locale, "expect_adr": False}
        issues = validator.validate("", context)
        if path in named and not _is_adr(path) and not issues and "adr_id" not in text:
            yield issue("NO_ADR", site.locale, file=path, path=path)
        yield from issues


def _is_adr(path: str) -> bool:
    return fnmatchcase(PurePosixPath(path).name.upper(), "ADR-*.MD")


# The gates that run a program over a copy of the output: the phase's own command, and its tests.

PYTEST = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
#: Files that may hold pytest's settings, and what shows that they do.
_PYTEST_SETTINGS = {
    "pytest.ini": b"",
    ".pytest.ini": b"",
    "pytest.toml": b"",
    "pyproject.toml": b"[tool.pytest",
    "tox.ini": b"[pytest]",
    "setup.cfg": b"[tool:pytest]",
}
#: pytest's exit code for "no tests were collected".
_NO_TESTS = 5

#: ``file.py:12`` as compilers, linters and pytest write places.
_PLACE = re.compile(r"(?:^|[\s(\"'])((?:[\w.@+-]+/)*[\w.@+-]+\.\w{1,8}):(\d{1,7})\b")
#: What says best what went wrong, in pytest's and most other tools' output.
_TELLING = re.compile(r"^(?:E   |FAILED |ERROR |.*\b(?:[Ee]rror|FAIL(?:ED)?)\b)")


def command(options: Mapping[str, Any], site: Site) -> Iterator[ValidationIssue]:
    """Run the command that the phase names; exit code 0 passes."""
    argv = _argv(options)
    name = str(options.get("name") or argv[-1 if options.get("shell") else 0])
    ran = _run_on_copy("command", argv, options, site)
    yield from _not_run(ran, name, site)
    if not (ran.error or ran.cause) and ran.code != 0:
        yield _failure("COMMAND_FAILED", ran, site, name=name)


def tests_pass(options: Mapping[str, Any], site: Site) -> Iterator[ValidationIssue]:
    """Run the tests, pytest unless the phase names a command; exit code 0 passes, no test at all does not."""
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
    """Pytest as if the output were all there is: it would look for settings and conftest.py in the folders above."""
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
    """The first place in the output that is a file of the phase."""
    for text in ran.lines:
        for file, line in _PLACE.findall(text):
            known = file.removeprefix("./")
            if known in site.tree.files:
                return known, int(line)
    return "", 0


# The gate files_exist: every expected file is there, is a plain file, and says something. Always the first gate.


def files_exist(options: Mapping[str, Any], site: Site) -> Iterator[ValidationIssue]:
    """Look for ``output_files`` and the gate's own ``files``; report links and of what is not a file."""
    tree, locale = site.tree, site.locale
    for path in tree.leaving:
        yield issue("LINK_LEAVES", locale, file=path, path=path)
    for path in tree.links:
        yield issue("LINK_NOT_FOLLOWED", locale, file=path, path=path)
    for path in tree.others:
        yield issue("NO_REGULAR_FILE", locale, file=path, path=path)
    expected = dict.fromkeys((*site.phase.output_files, *options.get("files", ())))
    if not (tree.files or expected):
        yield issue("NO_OUTPUT", locale)
    for path in expected:
        if path not in tree.files:
            yield issue("MISSING_FILE", locale, file=path, path=path, suggestion=_suggestion(path, site))
        elif tree.files[path] == 0 and not path.endswith(("__init__.py", ".gitkeep", "py.typed")):
            yield issue("EMPTY_FILE", locale, file=path, path=path)


def _suggestion(path: str, site: Site) -> str:
    near = get_close_matches(path, site.tree.files, n=1, cutoff=0.7)
    if not near:
        return ""
    return f" (there is '{near[0]}')" if site.locale.startswith("en") else f" (es gibt '{near[0]}')"


# The gate syntax: Python, YAML and JSON files parse, and relative Markdown links lead somewhere. Always second.

INSPECTION = Path(__file__).with_name("inspection.py")
#: Largest file that is parsed, in bytes.
MAX_FILE = 2 * 2**20
#: For all files together ten minutes; one file that needs longer than 30 s is blamed.
LIMITS = ProgramLimits(seconds=600.0, silence=30.0, memory_mb=2048)

#: Folders that hold what tools made, besides all that begin with a dot.
_MADE = frozenset({"node_modules", "__pycache__"})
_KNOWN = frozenset({".py", ".pyi", ".json", ".yaml", ".yml", ".md", ".markdown"})
#: More findings than this are left out; they would not help.
_MAX_FINDINGS = 200
_MAX_LINES = 50_000


def syntax(options: Mapping[str, Any], site: Site) -> Iterator[ValidationIssue]:
    """Parse every file whose ending is known, in its own process; ``ignore`` names patterns to leave out."""
    ignore = tuple(options.get("ignore", ()))
    waiting = []
    for path, size in site.tree.files.items():
        if PurePosixPath(path).suffix.lower() not in _KNOWN or _left_out(path, ignore):
            continue
        if size > MAX_FILE:
            yield issue("FILE_TOO_LARGE", site.locale, file=path, path=path)
        else:
            waiting.append(path)
    count = 0
    while waiting:
        order = {"directory": str(site.tree.directory), "files": list(site.tree.files), "inspect": waiting}
        ran = run_program(
            [sys.executable, "-P", str(INSPECTION)],
            Path("/"),
            limits=LIMITS,
            stop=site.stop,
            deadline=site.deadline,
            mark=f"{site.mark}.syntax" if site.mark else "",
            stdin=json.dumps(order).encode(),
            tail=_MAX_LINES,
            fence=site.fence,
            own=Bind(site.tree.directory),
        )
        last, done = "", False
        for line in ran.lines:
            found = json.loads(line) if line.startswith("{") else {}
            last, done = found.get("begin", last), done or bool(found.get("done"))
            if "code" in found and count < _MAX_FINDINGS:
                count += 1
                yield issue(found["code"], site.locale, file=found["file"], line=found["line"], **_shown(found))
        if done:
            return
        if not last:
            raise OSError(f"the files could not be parsed: {ran.error or ran.problem or ran.last_line}")
        # Whatever file it was at took the parser down; the others are still to be looked at.
        yield issue("CANNOT_PARSE", site.locale, file=last, problem=ran.problem or f"parser: {ran.code}")
        waiting = waiting[waiting.index(last) + 1 :]


def _shown(found: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in found["values"].items()}


def _left_out(path: str, ignore: tuple[str, ...]) -> bool:
    folders = PurePosixPath(path).parts[:-1]
    if any(folder.startswith(".") or folder in _MADE for folder in folders):
        return True
    return any(fnmatchcase(path, pattern) for pattern in ignore)


# Gates by name. The table is closed, as the contract's table of their options is: a test compares the two.

GATES: Mapping[str, Gate] = {
    "files_exist": files_exist,
    "syntax": syntax,
    "tests_pass": tests_pass,
    "adr_valid": adr_valid,
    "command": command,
}


log = structlog.get_logger()

#: The gates every phase passes first.
ALWAYS = ("files_exist", "syntax")


class Around(TypedDict, total=False):
    """The bounds of a phase's gates, and for whom they work; the defaults are those of ``Site``."""

    stop: Stop
    deadline: float
    mark: str
    locale: str
    scratch: Path | None
    fence: Fence


def check(phase: Phase, directory: Path, **around: Unpack[Around]) -> GateReport:
    """Run all gates of a phase over its output folder, in which nothing is changed."""
    results: list[GateResult] = []
    try:
        results.extend(each_gate(phase, directory, **around))
    except Stopped as stopped:
        return GateReport(results=tuple(results), stopped=str(stopped))
    return GateReport(results=tuple(results))


def each_gate(phase: Phase, directory: Path, **around: Unpack[Around]) -> Iterator[GateResult]:
    """As ``check``, one result at a time, as soon as it is there.

    Raises:
        Stopped: ``stop`` asked to end, or ``deadline`` came; no process of a gate is left.
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
    return GateResult(
        gate=name, issues=tuple(replace(one, validator=name) for one in found), seconds=time.monotonic() - started
    )
