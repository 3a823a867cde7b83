"""Implement ``turns validate``: apply rules to saved answers and ADRs, without a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import click

from api_client.contract.settings import load_settings
from api_client.contract.validator_names import offered_validators
from worker.cli import NO
from worker.cli.output import fit_line, json_option, strip_control, write_json
from worker.cli.policy import choose_file_rules, load_policy_file
from worker.cli.text_input import build_root_option, read_text
from worker.enforcement import (
    CODES,
    Policy,
    ResponseValidator,
    Severity,
    UnknownValidatorError,
    ValidationIssue,
    build_validators,
    demote_issues,
    validate_attempt,
)
from worker.enforcement.policies import PolicySubject
from worker.enforcement.printed_output import divert_output
from worker.enforcement.rules.codes import RULE_CODES
from worker.enforcement.validator_process import isolate_validators
from worker.external.local_services import provide_services

FORMATS = ("text", "json", "sarif", "github")
#: The id and the words of edits before validation, which are no issues.
_EDITED, _EDITED_WORDS = "ANSWER_EDITED", "edited before the rules looked"


class ValidatedFile(NamedTuple):
    """A validated file, with the issues that were found and the edits made to its text before validation."""

    name: str
    issues: Sequence[ValidationIssue]
    edits: Sequence[str] = ()


Judged = Sequence[ValidatedFile]


def write_issues(validated: Judged, form: str) -> None:
    """Write the issues of validated files in the format ``form``, one of ``FORMATS``."""
    {"text": _write_text, "json": _write_json, "sarif": _write_sarif, "github": _write_github}[form](validated)


def _write_text(validated: Judged) -> None:
    for file, issues, edits in validated:
        for edit in edits:
            click.echo(f"{strip_control(file)}: {_EDITED_WORDS}: {fit_line(edit)}")
        if not issues:
            click.echo(f"{strip_control(file)}: ok")
        for issue in issues:
            place = f"{strip_control(file)}:{_find_line(issue)}"
            click.echo(f"{place}: {issue.severity} {fit_line(issue.code)}: {fit_line(issue.message)}")
            click.echo(f"    fix: {fit_line(issue.fix_hint)}")


def _write_json(validated: Judged) -> None:
    write_json(
        [
            {
                "file": file,
                "valid": not any(issue.is_error for issue in issues),
                "issues": [issue.to_dict() for issue in issues],
                "edits": list(edits),
            }
            for file, issues, edits in validated
        ]
    )


def _write_sarif(validated: Judged) -> None:
    codes = dict.fromkeys(issue.code for _, issues, _ in validated for issue in issues)
    codes |= dict.fromkeys(_EDITED for file in validated if file.edits)
    driver = {
        "name": "helix-turns",
        "rules": [{"id": code, "shortDescription": {"text": _describe_code(code)}} for code in codes],
    }
    results = [_sarif_result(file, issue) for file, issues, _ in validated for issue in issues]
    results += [
        _make_result(_EDITED, "note", f"{_EDITED_WORDS}: {edit}", file, 1)
        for file, _, edits in validated
        for edit in edits
    ]
    write_json(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
        }
    )


def _describe_code(code: str) -> str:
    known: Mapping[str, Any] = {**CODES, **RULE_CODES}
    return known[code].when if code in known else code


def _sarif_result(file: str, issue: ValidationIssue) -> dict[str, Any]:
    level = "error" if issue.severity is Severity.ERROR else "warning"
    return _make_result(issue.code, level, f"{issue.message}. {issue.fix_hint}", file, _find_line(issue))


def _find_line(issue: ValidationIssue) -> int:
    """Return the line to show for an issue: line 1 if its rule names none or an impossible one."""
    return issue.line if 1 <= issue.line < 2**31 else 1


def _make_result(code: str, level: str, text: str, file: str, line: int) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": quote(file)}, "region": {"startLine": line}}
    return {"ruleId": code, "level": level, "message": {"text": text}, "locations": [{"physicalLocation": place}]}


def _write_github(validated: Judged) -> None:
    for file, issues, edits in validated:
        for edit in edits:
            place = f"file={_escape_command(file, ',:')},line=1,title={_EDITED}"
            click.echo(f"::notice {place}::{_escape_command(f'{_EDITED_WORDS}: {edit}')}")
        for issue in issues:
            title = _escape_command(issue.code, ",:")
            place = f"file={_escape_command(file, ',:')},line={_find_line(issue)},title={title}"
            click.echo(f"::{issue.severity} {place}::{_escape_command(f'{issue.message}. {issue.fix_hint}')}")


def _escape_command(text: str, more: str = "") -> str:
    return "".join(f"%{ord(char):02X}" if char in f"%\r\n{more}" else char for char in strip_control(text))


@click.command(epilog="Example: turns validate docs/adr/ADR-001.md --validator adr_structure")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False, allow_dash=True))
@build_root_option("The project that paths in ADRs are relative to.")
@click.option(
    "--validator",
    "names",
    multiple=True,
    metavar="NAME",
    help="Use this offered validator instead of the active ones; may be repeated.",
)
@click.option("--policy", "policy_file", metavar="FILE", help="Use the rules of this policy file.")
@click.option("--model", default="", metavar="NAME", help="With --policy: validate as a turn of this model.")
@click.option(
    "--locale", type=click.Choice(["de", "en"]), default="en", show_default=True, help="Language of messages."
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="Output format.")
@json_option
def validate(
    files: tuple[str, ...],
    root: Path,
    names: tuple[str, ...],
    policy_file: str | None,
    model: str,
    locale: str,
    form: str,
    as_json: bool,
) -> None:
    """Validate files with rules, without a turn. `-` reads from standard input.

    Default rules: the active validators (HELIX_VALIDATORS). Files named ADR-* need no step marker, as in a turn. Shadow
    rules are left out. Exit codes: 0 valid, 1 errors, 2 usage.
    """
    if names and policy_file:
        raise click.UsageError("--validator and --policy exclude each other")
    provide_services()
    with divert_output():  # of rules, which may print while they are loaded or validate in this process
        if policy_file:
            read = load_policy_file(policy_file)
            chosen = choose_file_rules(read, PolicySubject(model=model), root=root, locale=locale)
            validators, policy, locale = chosen.validators, chosen.policy, chosen.policy.locale
        else:
            validators, policy = _build_named_validators(names, root, locale), Policy()
        with isolate_validators(validators) as guarded:
            validated = [_validate_file(file, guarded, policy, locale, named=bool(names)) for file in files]
    write_issues(validated, "json" if as_json else form)
    if any(issue.is_error for _, issues, _ in validated for issue in issues):
        raise click.exceptions.Exit(NO)


def _build_named_validators(names: tuple[str, ...], root: Path, locale: str) -> tuple[ResponseValidator, ...]:
    chosen = list(dict.fromkeys(names)) or load_settings().validators
    for name in chosen:
        if name not in offered_validators():
            where = "--validator" if names else "HELIX_VALIDATORS"
            raise click.BadParameter(str(UnknownValidatorError(name, offered_validators())), param_hint=where)
    try:
        return build_validators(chosen, root=root, locale=locale)
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"a rule cannot be made: {fit_line(error)}") from None


def _validate_file(
    file: str, validators: Sequence[ResponseValidator], policy: Policy, locale: str, *, named: bool
) -> ValidatedFile:
    text = read_text(file, "utf-8")  # a byte order mark of an answer is a declared edit
    is_adr = Path(file).name.upper().startswith("ADR-")
    judging = [each for each in validators if named or not (is_adr and each.name == "step_marker")]
    attempt = validate_attempt([], text, judging, {"locale": locale, "expect_adr": is_adr})
    issues = demote_issues(attempt.issues, policy)
    if attempt.edits:
        issues = tuple(replace(each, line=_find_file_line(each.line, attempt.answer, text)) for each in issues)
    return ValidatedFile(file, issues, attempt.edits)


def _find_file_line(line: int, answer: str, text: str) -> int:
    old, new = (each.replace("\r\n", "\n").split("\n") for each in (text, answer))
    pairs = enumerate(zip(reversed(old), reversed(new), strict=False))
    alike = next((number for number, (before, after) in pairs if before != after), len(new))
    return line + len(old) - len(new) if line > len(new) - alike else line
