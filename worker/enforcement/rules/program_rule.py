"""Rule: a program accepts the answer by its exit code, and reports problems by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from api_client.contract.issue import Severity, ValidationIssue
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option
from worker.enforcement.validators.services import ValidationProgram, get_services

#: Output of compilers and linters: ``answer.md:12:3: error: words``, also without file or column.
_LINE = re.compile(
    r"^(?:(?P<file>[\w./@+-]{1,200}):)?(?P<line>\d{1,7})(?::\d{1,5})?:?\s+(?:(?P<kind>error|warning|note)\b:?\s*)?(?P<said>\S.*)$",
    re.IGNORECASE,
)
MOST_ISSUES, BLOCKS = 20, 20


class _ProgramInput(NamedTuple):
    text: str
    before: int


@dataclass(frozen=True, kw_only=True)
class CommandRule(Rule):
    """Runs a program in the sandbox to check the answer, which the program gets as a file and on standard input."""

    kind: ClassVar[str] = "command"
    needs_services: ClassVar[bool] = True

    command: tuple[str, ...] = option((), "Program and arguments, such as [vale, --output=line, answer.md]; no shell.")
    fence: str = option("", "Check each closed fenced block of this language instead of the whole answer.")
    file: str = option("answer.md", "The file that holds the answer, or the block.")
    accepts: tuple[int, ...] = option((0,), "Exit codes that accept.")
    seconds: int = option(30, "Time for one run, in seconds.")
    memory_mb: int = option(1024, "Memory of each of its processes, in MiB.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.command or not self.command[0]:
            raise ValueError("command must name a program")
        if not 1 <= self.seconds <= 600:
            raise ValueError(f"seconds must be 1 to 600, not {self.seconds}")
        if not 16 <= self.memory_mb <= 65_536:
            raise ValueError(f"memory_mb must be 16 to 65536, not {self.memory_mb}")
        if not self.accepts:
            raise ValueError("accepts must name at least one exit code")
        if not re.fullmatch(r"[\w.-]{1,100}", self.file) or self.file.startswith("."):
            raise ValueError(f"file must be a plain file name, not {self.file!r}")

    @property
    def patience(self) -> float:  # type: ignore[override]
        """Return the time limit in seconds for all runs of the program together."""
        return float(self.seconds)

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Run the program, and return the problems in its output if its exit code rejects the answer.

        The code is COMMAND_FOUND for each line that the program names, or COMMAND_REJECTED without such a line.
        Raises ``CannotRun`` if the program was stopped before its end.
        """
        issues: list[ValidationIssue] = []
        written = {
            f"output/{name.removeprefix('output/')}": text for name, text in (context.get("files") or {}).items()
        }
        for text, before in self._program_inputs(response):
            ended = get_services().run_program(
                ValidationProgram(
                    argv=self.command,
                    files={**written, self.file: text},
                    stdin=text,
                    seconds=self.seconds,
                    memory_mb=self.memory_mb,
                )
            )
            if ended.code not in self.accepts:
                issues += self._find_issues(ended.code, ended.lines, before, self.find_locale(context))
        return issues[:MOST_ISSUES]

    def _program_inputs(self, response: str) -> Iterator[_ProgramInput]:
        if not self.fence:
            yield _ProgramInput(strip_marker(response), 0)
            return
        found = [
            block for block in parse_document(response).out.find_code_blocks() if block.language == self.fence.lower()
        ]
        for block in found[:BLOCKS]:
            yield _ProgramInput(block.text, block.line)

    def _find_issues(self, code: int, lines: tuple[str, ...], before: int, locale: str) -> list[ValidationIssue]:
        found = []
        for each in lines:
            if not (said := _LINE.match(each)) or (said["file"] or self.file).removeprefix("./") != self.file:
                continue
            weight = Severity.ERROR if (said["kind"] or "error").lower() == "error" else Severity.WARNING
            values = {"program": self.command[0], "problem": said["said"]}
            issue = rule_issue("COMMAND_FOUND", locale, line=before + int(said["line"]), **values)
            found.append(replace(issue, severity=weight))
        if any(issue.is_error for issue in found):
            return found
        last = next((each.strip() for each in reversed(lines) if each.strip()), "")
        values = {"program": self.command[0], "code": str(code), "problem": f": {last}" if last else ""}
        return [*found, rule_issue("COMMAND_REJECTED", locale, line=before, **values)]
