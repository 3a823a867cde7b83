"""Fenced code parses in the language that its fence names. Nothing is run."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml

from worker.enforcement.documents.document import parse
from worker.enforcement.issue import ValidationIssue
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option

#: A longer block is not parsed, in characters: parsers of foreign text are bounded.
MAX_BLOCK = 200_000
_ALSO = {"py": "python", "python3": "python", "yml": "yaml"}


@dataclass(frozen=True, kw_only=True)
class CodeBlocks(Rule):
    """Parses each closed fence of a known language. An ellipsis line (``...``) marks an excerpt, which is left out."""

    kind: ClassVar[str] = "code"

    languages: tuple[str, ...] = option(("python", "json", "yaml"), "Languages whose blocks must parse.")

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [language for language in self.languages if language not in _PARSERS]
        if unknown:
            raise ValueError(f"languages: {', '.join(unknown)} is not one of {', '.join(_PARSERS)}")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """CODE_DOES_NOT_PARSE with the line in the answer."""
        out, issues = parse(response).out, []
        for fence in out.fences:
            word = fence.info.split(maxsplit=1)[0].lower() if fence.info.split() else ""
            language = _ALSO.get(word, word)
            if language not in self.languages or not fence.closed:
                continue
            lines = [line[min(fence.indent, len(line) - len(line.lstrip(" "))) :] for line in _inside(out.lines, fence)]
            block = "\n".join(lines) + "\n"
            if len(block) > MAX_BLOCK or any(line.strip() in ("...", "…", "# ...", "# …") for line in lines):
                continue
            if problem := _PARSERS[language](block):
                line, words = problem
                at = fence.start + 1 + line
                values = {"language": language, "problem": words}
                issues.append(rule_issue("CODE_DOES_NOT_PARSE", self.words_in(context), line=at, **values))
        return issues


def _inside(lines: list[str], fence: Any) -> list[str]:
    return lines[fence.start + 1 : fence.end - 1]


Problem = tuple[int, str]  # line within the block, from 1, and words


def _python(block: str) -> Problem | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(block)
    except SyntaxError as error:
        return error.lineno or 1, error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        return 1, str(error) or type(error).__name__
    return None


def _json(block: str) -> Problem | None:
    try:
        json.loads(block)
    except json.JSONDecodeError as error:
        return error.lineno, error.msg
    except (ValueError, RecursionError) as error:
        return 1, str(error) or type(error).__name__
    return None


def _yaml(block: str) -> Problem | None:
    try:
        for _ in yaml.parse(block, yaml.SafeLoader):  # events alone: no alias is followed, nothing is built
            pass
    except yaml.MarkedYAMLError as error:
        return (error.problem_mark.line + 1 if error.problem_mark else 1), error.problem or "not YAML"
    except (yaml.YAMLError, RecursionError) as error:
        return 1, str(error) or type(error).__name__
    return None


_PARSERS: Mapping[str, Callable[[str], Problem | None]] = {"python": _python, "json": _json, "yaml": _yaml}
