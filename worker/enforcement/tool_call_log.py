"""The log of a run's tool calls: the tools used, how each call ended, and the files on disk afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

#: ``write`` changes the file in ``what``; ``run`` is a command; ``read`` changes nothing; ``sent`` is a gateway call
#: that may change something; ``other`` is unknown.
CallKind = Literal["write", "run", "read", "sent", "other"]
#: ``changed``: in this turn. ``there``: unchanged. ``missing``: looked for in vain.
OnDisk = Literal["changed", "there", "missing"]

#: Limits: calls kept per run, characters of a command or path, characters read from an output's end.
MOST_CALLS, MOST_CHARS, MOST_OUTPUT = 400, 1_000, 20_000


class Counts(NamedTuple):
    """The numbers of passed and failed tests in the output of a test program."""

    passed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call of the agent, such as writing a file or running a command, with the outcome.

    Attributes:
        what: the path, the command or the tool's name.
        ok: the call succeeded; None if unknown.
        ran: False if the call was not allowed to run.
        code: exit code of a command, if known.
        tests: the command seems to run tests.
        new: the file did not exist before.
        names: identifiers in the arguments and the result of a sent call (``find_identifiers``).
    """

    kind: CallKind
    what: str
    ok: bool | None = None
    ran: bool = True
    code: int | None = None
    tests: bool = False
    counts: Counts | None = None
    new: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallLog:
    """Keeps the tool calls of one run, or of all runs of a turn, oldest first.

    ``files`` has paths relative to the agent's folder. ``whole``: no call was dropped.
    """

    calls: tuple[ToolCall, ...] = ()
    files: Mapping[str, OnDisk] = field(default_factory=dict)
    whole: bool = True

    def __add__(self, later: ToolCallLog) -> ToolCallLog:
        files = dict(self.files)
        for path, found in later.files.items():
            files[path] = found if files.get(path) != "changed" else "changed"
        return ToolCallLog(calls=self.calls + later.calls, files=files, whole=self.whole and later.whole)

    def with_observed(self, observed: ToolCallLog) -> ToolCallLog:
        """Return the log, in which independently observed calls replace the agent's own reports of these calls."""
        seen = tuple({_SIGNS.sub("", call.what) for call in observed.calls})
        own = [call for call in self.calls if call.kind != "other" or not _SIGNS.sub("", call.what).endswith(seen)]
        return replace(self, calls=(*own, *observed.calls), whole=self.whole and observed.whole)

    def to_dict(self, redact: Callable[[str], str] = str) -> dict[str, Any]:
        """Return the log as a dict for storage, with secrets masked by ``redact``. The dict is never empty."""
        calls = [
            {each.name: value for each in fields(call) if (value := getattr(call, each.name)) is not each.default}
            | {"what": redact(call.what)}
            for call in self.calls
        ]
        return {"calls": calls, "files": dict(self.files), "whole": self.whole}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> ToolCallLog | None:
        """Return the log from its stored dict, or None if the dict is empty or has an unknown form."""
        try:
            calls = [
                ToolCall(
                    **{
                        **call,
                        "counts": Counts(*counts) if (counts := call.get("counts")) else None,
                        "names": tuple(call.get("names", ())),
                    }
                )
                for call in stored["calls"]
            ]
            return cls(calls=tuple(calls), files=dict(stored["files"]), whole=bool(stored["whole"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


class ToolCallRecorder:
    """Collects the tool calls of a run while the agent works."""

    def __init__(self) -> None:
        self._calls: dict[str, ToolCall] = {}
        self._open: set[str] = set()
        self._whole = True

    @property
    def log(self) -> ToolCallLog:
        """Return the tool calls recorded so far, without any files."""
        return ToolCallLog(calls=tuple(self._calls.values()), whole=self._whole)

    def begin(self, name: str, kind: CallKind, what: str) -> None:
        """Record a tool call's start. ``name`` is the agent's unique id of the call, ``what`` a path or command."""
        said = _HEREDOC.sub("<<", what) if kind == "run" else what
        tests = kind == "run" and runs_tests(said)
        self._calls[name] = ToolCall(kind=kind, what=said[:MOST_CHARS], tests=tests)
        self._open.add(name)
        if len(self._calls) > MOST_CALLS:
            del self._calls[next(iter(self._calls))]
            self._whole = False

    def end(
        self,
        name: str,
        *,
        ok: bool | None,
        ran: bool = True,
        output: str = "",
        code: int | None = None,
        new: bool = False,
    ) -> None:
        """Record how a tool call ended. A call whose start was not recorded is ignored."""
        self._open.discard(name)
        if (call := self._calls.get(name)) is None:
            return
        counts = parse_test_counts(output) if call.kind == "run" and ran else None
        tests = call.tests or counts is not None
        self._calls[name] = replace(call, ok=ok, ran=ran, code=code, tests=tests, counts=counts, new=new)

    def mark_unexecuted(self) -> None:
        """Mark all open calls as not executed, because the run ended with a question."""
        for name in list(self._open):
            self.end(name, ok=None, ran=False)


#: Signs that agents replace in names of tools.
_SIGNS = re.compile(r"[\W_]")
_IDENTIFIER = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z][A-Za-z0-9_]{0,31}-\d{1,9}|\d{1,18}")
#: Most identifiers of a call, and the sign that there were more.
_MOST_NAMES, ANY_NAME = 100, "*"


def find_identifiers(text: str) -> tuple[str, ...]:
    """Return the texts that may identify a record, such as ``PROJ-12``, or only ``ANY_NAME`` if there are too many."""
    found = dict[str, None]()
    for each in _IDENTIFIER.finditer(text):
        found[each[0].upper()] = None
        if len(found) > _MOST_NAMES:
            return (ANY_NAME,)
    return tuple(found)


_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w{1,40})['\"]?\n.*?^\s*\1$", re.DOTALL | re.MULTILINE)
_SEGMENT = re.compile(r"&&|\|\|?|[;\n]")
#: Programs that run no test, even with a test's name among their arguments.
_LOOKS = frozenset({
    "awk", "cat", "cd", "chmod", "cp", "curl", "diff", "du", "echo", "export", "file", "find",
    "git", "grep", "head", "less", "ls", "mkdir", "mv", "nl", "printf", "pwd", "rg", "rm",
    "sed", "sort", "stat", "tail", "tee", "test", "touch", "tree", "true", "wc", "which",
})  # fmt: skip
_RUNS = re.compile(
    r"\b(?:pytest|py\.test|unittest|nose2?|tox|nox|jest|vitest|mocha|ava|rspec|phpunit|ctest|bats|behave|cypress)\b"
    r"|(?:^|[\s/_.:-])(?:e2e|specs?|tests?)(?=$|[\s/_.:-])"
    r"|^\s*(?:\./|(?:make|just|task|npm|pnpm|yarn|bun|mvn|\S*gradlew?|bash|sh)\s.*)\b(?:checks?|verify|ci)\b",
    re.IGNORECASE,
)
_ANSI = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_RUNS_NONE = re.compile(r"\s(?:install|add|--version|--help|--collect-only|--co|--list|--listTests)\b")


def runs_tests(command: str) -> bool:
    for segment in _SEGMENT.split(command):
        program = next((word for word in segment.split() if "=" not in word), "")
        looks = program.rpartition("/")[2] in _LOOKS
        if not looks and _RUNS.search(segment) and not _RUNS_NONE.search(segment):
            return True
    return False


def changes_nothing(command: str) -> bool:
    """Return True if a command runs only programs that read files without changing them."""
    segments = [segment.split() for segment in _SEGMENT.split(command) if segment.strip()]
    return all(words[0].rpartition("/")[2] in _LOOKS and "push" not in words for words in segments)


_SUMMARIES: Sequence[re.Pattern[str]] = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        # pytest: 1 failed, 11 passed in 0.1s. The words come in any order.
        r"^=*[ ]?(?P<words>(?:\d+ (?:failed|passed|skipped|errors?|warnings?|deselected|xfailed|xpassed"
        r"|rerun)[, ]{1,2})+)in [\d.]+",
        r"^\s*Tests:?\s+(?P<words>(?:\d+ (?:failed|passed|skipped|todo|total)[, |]{0,3})+)",  # jest, vitest
        r"^test result: \w+\. (?P<passed>\d+) passed; (?P<failed>\d+) failed",  # cargo
        r"^(?P<total>\d+) examples?, (?P<failed>\d+) failures?",  # rspec
        r"^OK \((?P<passed>\d+) tests?,",  # phpunit
        r"\d+% tests passed, (?P<failed>\d+) tests? failed out of (?P<total>\d+)",  # ctest
        r"Failed:\s+(?P<failed>\d+), Passed:\s+(?P<passed>\d+)",  # dotnet
    )
]
_UNITTEST = re.compile(r"^Ran (\d+) tests? in", re.MULTILINE)
_UNITTEST_FAILED = re.compile(r"^FAILED \((?:failures=(\d+))?(?:, )?(?:errors=(\d+))?", re.MULTILINE)
_MAVEN = re.compile(r"Tests run: (\d+), Failures: (\d+), Errors: (\d+)")
_TAP = re.compile(r"^[#ℹ] (pass|fail) (\d+)", re.MULTILINE)
_MOCHA = re.compile(r"^\s+(\d+) (passing|failing)\b", re.MULTILINE)
_WORD = re.compile(r"(\d+) (failed|passed|error)")


def parse_test_counts(output: str) -> Counts | None:
    """Return how many tests passed and failed according to a test program's output, or None without a summary."""
    text = _ANSI.sub("", output[-MOST_OUTPUT:])
    for pattern in _SUMMARIES:
        if found := [each.groupdict() for each in pattern.finditer(text)]:
            counts = [_of_words(each["words"]) if each.get("words") else _of_numbers(each) for each in found]
            one = len(counts) == 1 or "words" not in found[0]
            return Counts(*(map(sum, zip(*counts, strict=True)))) if one else counts[-1]
    if ran := _UNITTEST.findall(text):
        failed = [sum(int(number or 0) for number in each) for each in _UNITTEST_FAILED.findall(text)]
        wrong = failed[-1] if failed else 0
        return Counts(int(ran[-1]) - wrong, wrong)
    if found := _MAVEN.findall(text):
        total, failures, errors = map(int, found[-1])
        return Counts(total - failures - errors, failures + errors)
    named = dict(_TAP.findall(text)) or {word[:4]: number for number, word in _MOCHA.findall(text)}
    return Counts(int(named.get("pass", 0)), int(named.get("fail", 0))) if named else None


def _of_words(words: str) -> Counts:
    named: dict[str, int] = {}
    for number, word in _WORD.findall(words):
        named[word] = named.get(word, 0) + int(number)
    return Counts(named.get("passed", 0), named.get("failed", 0) + named.get("error", 0))


def _of_numbers(found: Mapping[str, str | None]) -> Counts:
    failed = int(found.get("failed") or 0)
    return Counts(int(found.get("passed") or int(found.get("total") or 0) - failed), failed)
