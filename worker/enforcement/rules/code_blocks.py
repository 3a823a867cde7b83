"""Rule: fenced code parses in the language of its fence. Nothing is executed."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml

from api_client.contract.issue import ValidationIssue
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import CodeBlock
from worker.enforcement.documents.part_names import fence_part
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option
from worker.enforcement.validators.codes import choose_text
from worker.enforcement.validators.services import CannotRun, ValidationProgram, get_services

MAX_BLOCK = 200_000
#: Deepest YAML nesting: the parser's time grows with the square of the depth.
DEEPEST = 100
_LEFT_OUT = frozenset({"...", "…", "# ...", "# …"})
SHELL = "shell"
#: From this length an f-string may be slow: Python 3.11 parses it in quadratic time.
LONG = 16_384
_F_STRING = re.compile(r"(?i)(?<!\w)(?:f|fr|rf)[\"']")
_TRAILING = re.compile(r'("(?:[^"\\\n]|\\.)*"?)|,(?=\s*[\]}])')


_CHECK = 'for each; do bash --norc -n "./$each"; done; exit 0'
_SAID = re.compile(r"^(?:\./)?(\d+)\.sh: line (\d+): (.*)$")
_SHELL_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class CodeBlocksRule(Rule):
    """Requires that the code blocks of an answer parse, except excerpts with an ellipsis line (``...``)."""

    kind: ClassVar[str] = "code"

    languages: tuple[str, ...] = option(
        ("python", "json", "yaml"), "Languages whose blocks must parse: python, json, yaml, shell."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [language for language in self.languages if language not in (*_PARSERS, SHELL)]
        if unknown:
            raise ValueError(f"languages: {', '.join(unknown)} is not one of {', '.join((*_PARSERS, SHELL))}")

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """Return False if the rule checks shell code, which it parses with an external program."""
        return SHELL not in self.languages

    def takes_bounded_time(self, texts: Iterable[str]) -> bool:
        """Return False if parsing these texts may take long, for example if they contain shell code."""
        slow = "python" in self.languages and any(len(text) > LONG and _F_STRING.search(text) for text in texts)
        return self.bounded and not slow

    @property
    def needs_services(self) -> bool:  # type: ignore[override]
        """Return True if the rule checks shell code, because it runs an external program to parse shell code."""
        return SHELL in self.languages

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue, with its line, for each code block that does not parse. Raises ``CannotRun``."""
        found = [
            block
            for block in parse_document(response).out.find_code_blocks()
            if block.language in self.languages and _is_complete(block)
        ]
        wrong = {}
        for place, block in enumerate(found):
            if block.language != SHELL and (problem := _PARSERS[block.language](block.text)):
                wrong[place] = problem
        scripts = [place for place, block in enumerate(found) if block.language == SHELL]
        for number, line, said in _shell_problems([found[place].text for place in scripts]) if scripts else ():
            wrong[scripts[number]] = line, said
        locale = self.find_locale(context)
        return [
            rule_issue(
                "CODE_DOES_NOT_PARSE",
                locale,
                line=found[place].line + line,
                part=fence_part(found[place].language, found[place].number),
                language=found[place].language,
                problem=said,
            )
            for place, (line, said) in sorted(wrong.items())
        ]

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Return the answer without trailing commas in JSON blocks, or None if that does not repair the answer."""
        lines = response.split("\n")
        for block in parse_document(response).out.find_code_blocks():
            if (
                block.language != "json"
                or "json" not in self.languages
                or not _is_complete(block)
                or not _parse_json(block.text)
            ):
                continue
            repaired = _TRAILING.sub(lambda found: found[1] or "", block.text)
            if not _parse_json(repaired):
                own = lines[block.line : block.line + len(block.text.split("\n")) - 1]
                for place, (before, shown, after) in enumerate(
                    zip(own, block.text.split("\n"), repaired.split("\n"), strict=False)
                ):
                    if shown != after:
                        lines[block.line + place] = before[: len(before) - len(shown)] + after
        after = "\n".join(lines)
        return None if after == response else after

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        return [
            choose_text(
                self.find_locale(context), "Überzählige Kommas im JSON entfernt", "Trailing commas in JSON removed"
            )
        ]


def _is_complete(block: CodeBlock) -> bool:
    return len(block.text) <= MAX_BLOCK and not any(line.strip() in _LEFT_OUT for line in block.text.split("\n"))


Problem = tuple[int, str]  # line within the block, from 1, and message


def _parse_python(block: str) -> Problem | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(block)
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        return 1, str(error) or type(error).__name__
    return None


def _parse_json(block: str) -> Problem | None:
    try:
        json.loads(block)
    except json.JSONDecodeError as error:
        return error.lineno, error.msg
    except (ValueError, RecursionError) as error:
        return 1, str(error) or type(error).__name__
    return None


def _parse_yaml(block: str) -> Problem | None:
    try:
        depth = 0
        for event in yaml.parse(block, yaml.SafeLoader):  # events only: no alias is followed, nothing is built
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                return (event.start_mark.line + 1 if event.start_mark else 1), "nested too deeply"
    except yaml.MarkedYAMLError as error:
        return (error.problem_mark.line + 1 if error.problem_mark else 1), error.problem or "not YAML"
    except (yaml.YAMLError, RecursionError) as error:
        return 1, str(error) or type(error).__name__
    return None


_PARSERS: Mapping[str, Callable[[str], Problem | None]] = {
    "python": _parse_python,
    "json": _parse_json,
    "yaml": _parse_yaml,
}


def _shell_problems(scripts: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the first syntax error of each script: the script's index, the line and the message.

    Raises ``CannotRun`` if the syntax cannot be checked.
    """
    names = [f"{number}.sh" for number in range(len(scripts))]
    ended = get_services().run_program(
        ValidationProgram(
            argv=["bash", "-c", _CHECK, "bash", *names],
            files=dict(zip(names, scripts, strict=True)),
            seconds=_SHELL_SECONDS,
        )
    )
    if ended.code:
        raise CannotRun(f"bash ended with {ended.code}: {(ended.lines or ('',))[-1]}")
    found: dict[int, tuple[int, int, str]] = {}
    for line in ended.lines:
        if said := _SAID.match(line):
            found.setdefault(int(said[1]), (int(said[1]), int(said[2]), said[3]))
    return list(found.values())
