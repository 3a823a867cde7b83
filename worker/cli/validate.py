"""``turns validate``: the validators over saved answers and ADRs, without any turn: a rule writer's inner loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from api_client.contract.settings import load
from worker.cli.output import json_option, one_line, safe, write_json
from worker.cli.reading import read_text
from worker.enforcement import UnknownValidatorError, ValidationIssue, build_validators, examine, offered_validators

NO = 1  # exit code: the answer is "no"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    envvar="HELIX_ROOT",
    show_default="HELIX_ROOT, else the current folder",
    help="The project that paths in ADRs are relative to.",
)
@click.option(
    "--validator",
    "names",
    multiple=True,
    metavar="NAME",
    help="Use this offered one instead of the active ones; may be given several times.",
)
@click.option(
    "--locale", type=click.Choice(["de", "en"]), default="de", show_default=True, help="Language of messages."
)
@json_option
def validate(files: tuple[str, ...], root: Path, names: tuple[str, ...], locale: str, as_json: bool) -> None:
    """Judge files with the validators, without any turn. `-` reads from standard input.

    Without --validator the active ones (HELIX_VALIDATORS) are used, but for files named ADR-* the step marker's, as in
    a turn. --validator names any offered one. Exit codes: 0 nothing wrong, 1 errors, 2 used wrongly.
    """
    for name in names:
        _check_offered(name, "--validator")
    active = () if names else load().validators
    for name in active:
        _check_offered(name, "HELIX_VALIDATORS")
    judged = [(file, _judge(file, root, names, active, locale)) for file in files]
    if as_json:
        write_json([_as_json(file, issues) for file, issues in judged])
    else:
        for file, issues in judged:
            _tell(file, issues)
    if any(issue.is_error for _, issues in judged for issue in issues):
        click.get_current_context().exit(NO)


#: What the table of commands imports.
command = validate


def _check_offered(name: str, where: str) -> None:
    if name not in offered_validators():
        raise click.BadParameter(str(UnknownValidatorError(name, offered_validators())), param_hint=where)


def _judge(
    file: str, root: Path, names: tuple[str, ...], active: tuple[str, ...], locale: str
) -> list[ValidationIssue]:
    text = read_text(file)
    is_adr = Path(file).name.upper().startswith("ADR-")
    chosen = list(dict.fromkeys(names)) or [n for n in active if not (is_adr and n == "step_marker")]
    return examine(text, build_validators(chosen, root=root, locale=locale), {"locale": locale, "expect_adr": is_adr})


def _as_json(file: str, issues: list[ValidationIssue]) -> dict[str, Any]:
    valid = not any(issue.is_error for issue in issues)
    return {"file": file, "valid": valid, "issues": [issue.to_dict() for issue in issues]}


def _tell(file: str, issues: list[ValidationIssue]) -> None:
    if not issues:
        click.echo(f"{safe(file)}: ok")
    for issue in issues:
        click.echo(f"{safe(file)}:{issue.line or 1}: {issue.severity} {issue.code}: {one_line(issue.message)}")
        click.echo(f"    fix: {one_line(issue.fix_hint)}")
