"""The findings of ``turns doctor``, and their output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

import click

from worker.cli import NO
from worker.cli.output import fit_line, strip_control, write_json

_MARKS = {"ok": "ok", "warning": "! ", "wrong": "X "}

State = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, with advice on how to fix a problem."""

    check: str
    state: State
    message: str
    fix: str = ""


def print_findings(found: Iterable[Finding], *, as_json: bool) -> None:
    """Print each finding as soon as it is known, or all findings as JSON. Exit with code 1 if one is wrong.

    The JSON is an object with ``findings`` and the number of those that are ``wrong``.
    """
    findings = []
    for finding in found:
        findings.append(finding)
        if not as_json:
            click.echo(f"{_MARKS[finding.state]}  {finding.check}: {fit_line(finding.message, 300)}")
            if finding.fix and finding.state != "ok":
                click.echo(f"      fix: {strip_control(finding.fix)}")
    listed, wrong = [asdict(finding) for finding in findings], sum(one.state == "wrong" for one in findings)
    if as_json:
        write_json({"wrong": wrong, "findings": listed})
    if wrong:
        raise click.exceptions.Exit(NO)
