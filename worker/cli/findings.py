"""How ``turns validate`` writes what it found: text, JSON, SARIF 2.1.0, and annotations of GitHub's workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from worker.cli.output import one_line, safe, write_json
from worker.enforcement import CODES, Severity, ValidationIssue
from worker.enforcement.rules.codes import RULE_CODES

FORMATS = ("text", "json", "sarif", "github")

#: A file and what was found in it.
Judged = Sequence[tuple[str, Sequence[ValidationIssue]]]


def write(judged: Judged, form: str) -> None:
    """Write what was found in one of ``FORMATS``."""
    {"text": _text, "json": _json, "sarif": _sarif, "github": _github}[form](judged)


def _text(judged: Judged) -> None:
    for file, issues in judged:
        if not issues:
            click.echo(f"{safe(file)}: ok")
        for issue in issues:
            click.echo(f"{safe(file)}:{issue.line or 1}: {issue.severity} {issue.code}: {one_line(issue.message)}")
            click.echo(f"    fix: {one_line(issue.fix_hint)}")


def _json(judged: Judged) -> None:
    write_json(
        [
            {
                "file": file,
                "valid": not any(issue.is_error for issue in issues),
                "issues": [issue.to_dict() for issue in issues],
            }
            for file, issues in judged
        ]
    )


def _sarif(judged: Judged) -> None:
    codes = dict.fromkeys(issue.code for _, issues in judged for issue in issues)
    driver = {
        "name": "helix-turns",
        "rules": [{"id": code, "shortDescription": {"text": _when(code)}} for code in codes],
    }
    results = [_result(file, issue) for file, issues in judged for issue in issues]
    write_json(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
        }
    )


def _when(code: str) -> str:
    known: Mapping[str, Any] = {**CODES, **RULE_CODES}
    return known[code].when if code in known else code


def _result(file: str, issue: ValidationIssue) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": file}, "region": {"startLine": issue.line or 1}}
    return {
        "ruleId": issue.code,
        "level": "error" if issue.severity is Severity.ERROR else "warning",
        "message": {"text": f"{issue.message}. {issue.fix_hint}"},
        "locations": [{"physicalLocation": place}],
    }


def _github(judged: Judged) -> None:
    for file, issues in judged:
        for issue in issues:
            place = f"file={_escaped(file, ',:')},line={issue.line or 1},title={issue.code}"
            click.echo(f"::{issue.severity} {place}::{_escaped(f'{issue.message}. {issue.fix_hint}')}")


def _escaped(text: str, more: str = "") -> str:
    """As workflow commands want it: percent signs and line ends, in properties colons and commas too."""
    return "".join(f"%{ord(char):02X}" if char in f"%\r\n{more}" else char for char in safe(text))
