"""Rule: files and lines that an answer cites exist (``src/app.py:12-20``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from api_client.contract.issue import ValidationIssue
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import lines_in_spans
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option
from worker.enforcement.validators.paths import PathTarget, Root

#: A path with a line or a range: ``a.py:3``, ``a.py:3-9``, ``a.py#L3-L9``. Paths without a line must be in back quotes
#: and have a slash.
_CITED = re.compile(
    r"(?<![\w/.:-])([\w.-]{1,80}(?:/[\w.-]{1,80}){0,20}\.[A-Za-z]\w{0,9})(?::|#L)(\d{1,7})(?:(?:-L?|–)(\d{1,7}))?(?![\w:/])"
)
_QUOTED = re.compile(r"`([\w.-]{1,80}(?:/[\w.-]{1,80}){1,20}\.[A-Za-z]\w{0,9})`")
MAX_BYTES = 8 * 1024 * 1024
MAX_CITED = 500


class CitedFile(NamedTuple):
    """A file that an answer cites, with the cited lines."""

    path: str
    lines: str
    last: int
    real: bool
    line: int


@dataclass(frozen=True, kw_only=True)
class CitationsRule(Rule):
    """Requires that the files and lines cited in an answer exist. Fenced code is ignored."""

    kind: ClassVar[str] = "citations"

    paths: bool = option(True, "Also check paths in back quotes that name no line.")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue for each cited file that does not exist and each cited line past a file's end.

        The codes are CITED_FILE_NOT_FOUND and CITED_LINES_NOT_FOUND.
        """
        locale, root, issues = self.find_locale(context), Root.from_path(self.root), []
        written = {name.removeprefix("output/") for name in context.get("files") or {}}
        seen: set[tuple[str, str]] = set()
        for cited in _find_citations(response, lines_only=not self.paths):
            if cited.path.removeprefix("output/") in written or (cited.path, cited.lines) in seen:
                continue
            seen.add((cited.path, cited.lines))
            if len(seen) > MAX_CITED:
                break
            kind = root.find(cited.path)
            if kind is PathTarget.MISSING and "/" in cited.path:  # host.example:8080 is not a file
                near = root.suggest_path(cited.path)
                values = {"path": cited.path, "suggestion": f": {near}?" if near else ""}
                issues.append(rule_issue("CITED_FILE_NOT_FOUND", locale, line=cited.line, **values))
            elif kind is PathTarget.FILE and cited.lines:
                count = _count_lines(Path(root.real) / cited.path)
                if count is not None and (cited.last > count or not cited.real):
                    lines: dict[str, Any] = {"path": cited.path, "lines": cited.lines, "count": count}
                    issues.append(rule_issue("CITED_LINES_NOT_FOUND", locale, line=cited.line, **lines))
        return issues


def _find_citations(text: str, *, lines_only: bool) -> Iterator[CitedFile]:
    out = parse_document(text).out
    hidden = lines_in_spans(out.code, out.headers)
    for number, line in enumerate(out.lines):
        if number in hidden or "." not in line:
            continue
        for found in _CITED.finditer(line):
            first, last = int(found[2]), int(found[3] or found[2])
            shown = f"{first}-{last}" if found[3] else str(first)
            yield CitedFile(found[1], shown, max(first, last), 1 <= first <= last, number + 1)
        for found in () if lines_only else _QUOTED.finditer(line):
            yield CitedFile(found[1], "", 0, True, number + 1)


def _count_lines(path: Path) -> int | None:
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        content = path.read_bytes()
    except OSError:
        return None
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
