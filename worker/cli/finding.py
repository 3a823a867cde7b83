"""How a command that looks for what is wrong tells it: one line a check, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

import click

from worker.cli.output import one_line, safe, write_json

NO = 1  # exit code: something is wrong

_MARKS = {"ok": "ok", "warning": "! ", "wrong": "X "}

State = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is, and what to do about it."""

    check: str
    state: State
    message: str
    fix: str = ""


def tell(found: Iterable[Finding], *, as_json: bool) -> None:
    """Write each finding as it comes, or all as JSON. Ends the command with exit code 1 when something is wrong."""
    findings = []
    for finding in found:
        findings.append(finding)
        if not as_json:
            click.echo(f"{_MARKS[finding.state]}  {finding.check}: {one_line(finding.message, 300)}")
            if finding.fix:
                click.echo(f"      fix: {safe(finding.fix)}")
    if as_json:
        write_json([asdict(finding) for finding in findings])
    if any(finding.state == "wrong" for finding in findings):
        click.get_current_context().exit(NO)
