"""Implement ``turns turn explain``."""

from __future__ import annotations

import difflib

import click

from api_client.contract.error_codes import ERROR_CODES, error_words
from worker.cli.output import json_option, write_json, write_table
from worker.enforcement.rules.codes import RULE_CODES
from worker.enforcement.validators.codes import CODES as ANSWER_CODES
from worker.verification.gates.gate_codes import CODES as OUTPUT_CODES

_LOCALES = ("de", "en")
CODES = {**ANSWER_CODES, **RULE_CODES, **OUTPUT_CODES}


@click.command(epilog="Example: turns turn explain turn_not_found")
@click.argument("code", required=False)
@click.option("--locale", type=click.Choice(_LOCALES), default="en", show_default=True, help="Language of the texts.")
@json_option
def explain(code: str | None, locale: str, as_json: bool) -> None:
    """Explain the error or issue CODE and what to do; without CODE, list all codes.

    Codes appear in brackets after an error of this command, as `error.code` in the API, and in capitals in issues.
    """
    rows = [_describe_code(name, locale) for name in ([_resolve_code(code)] if code else [*ERROR_CODES, *CODES])]
    if as_json:
        write_json(rows[0] if code else rows)
    elif code:
        write_table([(name.replace("_", " "), text) for name, text in rows[0].items() if text])
    else:
        write_table([(row["code"], row["what"]) for row in rows])


def _resolve_code(code: str) -> str:
    known = [*ERROR_CODES, *CODES]
    for name in (code, code.lower(), code.upper()):
        if name in known:
            return name
    close = difflib.get_close_matches(code, known, n=1, cutoff=0.5)
    raise click.BadParameter(f"there is no code {code[:80]!r}" + (f"; did you mean {close[0]}?" if close else ""))


def _describe_code(code: str, locale: str) -> dict[str, str]:
    if code in ERROR_CODES:
        what, todo = error_words(code, locale)
        return {"code": code, "what": what, "to_do": todo, "operator": ERROR_CODES[code].operator}
    issue = CODES[code]
    message, hint = issue.en if locale == "en" else issue.de
    return {"code": code, "what": message, "to_do": hint, "operator": f"{issue.when} {issue.repair}".strip()}
