"""``turns config``: the settings, and docs/settings.md made from the same table."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import click

from api_client.contract.error_codes import ERROR_CODES, words_of
from api_client.contract.settings import (
    GROUPS,
    RUN_FILE,
    STATE_DIR,
    STORES,
    Settings,
    declared,
    load,
    masked,
    name_of,
    spelled,
    with_installation,
)
from api_client.contract.settings.file import SettingsFile
from api_client.contract.settings.load import file_of
from worker.cli.terminal import json_option, one_line, write_json, write_table
from worker.enforcement.rules.rule import RULE_CODES
from worker.enforcement.validators.codes import CODES as ANSWER_CODES
from worker.verification.gates.gate import CODES as OUTPUT_CODES

_URLS = {"broker_url", "store_url"}
_OPENING = Path(__file__).with_name("settings.md")
_DEPRECATED = """## Deprecated

These still hold, with a warning.
"""
_CONSTANTS = """## Constants

Fixed values of the program. These were settings: who still sets one gets a warning, and the value here holds.
"""


@click.command()
@click.option("--markdown", is_flag=True, help="Write the reference, as in docs/settings.md.")
@json_option
def config(markdown: bool, as_json: bool) -> None:
    """Show every setting: name, value, where the value comes from. Secrets are masked."""
    if markdown:
        click.echo(reference(), nl=False)
        return
    rows = describe(load(), os.environ)
    if as_json:
        write_json(rows)
    else:
        write_table([(row["name"], one_line(row["value"]), row["origin"]) for row in rows])


def describe(settings: Settings, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Each setting as name, value (secrets masked), origin and help."""
    file = file_of(with_installation(environ))
    return [
        {
            "name": name_of(field.name),
            "value": _shown(field, getattr(settings, field.name)),
            "origin": _origin(field, settings, environ, file),
            "help": field.metadata["help"],
        }
        for field in declared(Settings, "setting")
        if not field.metadata["instead"] or name_of(field.name) in environ or field.name in file.values
    ] + _of_blocks(settings, file)


def _of_blocks(settings: Settings, file: SettingsFile) -> list[dict[str, str]]:
    """Return what the models' blocks of the settings file set, one row each."""
    known = {field.name: field for field in fields(Settings)}
    return [
        {
            "name": f"{model}: {name}",
            "value": "***" if known[name].metadata["masked"] else spell(value),
            "origin": file.where_of_model(model, name),
            "help": known[name].metadata["help"],
        }
        for model, block in settings.model_settings.items()
        for name, value in block.items()
    ]


def reference() -> str:
    """docs/settings.md: every setting and constant, its default and what it means."""
    lines = [_OPENING.read_text(encoding="utf-8")]
    known = declared(Settings, "setting")
    current = [each for each in known if not each.metadata["instead"]]
    for group in GROUPS:
        lines += [f"## {group.__name__}", "", str(group.__doc__), ""]
        names = [each for each in current if each.name in group.__annotations__]
        lines += [f"- `{name_of(f.name)}` ({_default(f)}): {f.metadata['help']}{_star(f)}" for f in names]
        lines.append("")
    lines += [
        _DEPRECATED,
        *(f"- `{name_of(f.name)}`: use {f.metadata['instead']}" for f in known if f not in current),
        "",
    ]
    lines += [_CONSTANTS]
    were = [each for each in declared(Settings, "constant") if each.metadata["was"]]
    lines += [f"- `{f.name}` ({_default(f)}): {f.metadata['help']}" for f in were]
    return "\n".join(lines) + "\n"


def _default(field: Field[Any]) -> str:
    if field.name == "root":
        return "the working directory"
    factory = field.default_factory
    shown = spell(factory() if factory is not MISSING else field.default)
    return f"`{shown}`" if shown else "none"


def _star(field: Field[Any]) -> str:
    return " *" if field.metadata["per_model"] else ""


def spell(value: Any) -> str:
    """A value as one would write it in the environment."""
    return f"{value:.15g}" if isinstance(value, float) else spelled(value)


def _shown(field: Field[Any], value: Any) -> str:
    if field.name in _URLS:
        return masked(value)
    return "***" if field.metadata["masked"] and value else spell(value)


def _origin(field: Field[Any], settings: Settings, environ: Mapping[str, str], file: SettingsFile) -> str:
    name = name_of(field.name)
    if environ.get(name):
        return "environment"
    if environ.get(f"{name}_FILE"):
        return "file"
    if field.name in _URLS and (environ.get("REDIS_URL") or environ.get("REDIS_URL_FILE")):
        return "REDIS_URL"
    if with_installation(environ).get(name):
        return str(Path(STATE_DIR) / RUN_FILE)
    if field.name in file.values:
        return file.where(field.name if field.name in file.places else f"{field.name}_file")
    if field.name == "models" and file.models:
        return file.where(f"model.{next(iter(file.models))}")
    if field.name == "models" and settings.store_url and not any(environ.get(name) for name in STORES):
        return str(Path(STATE_DIR) / RUN_FILE)
    if field.name in _URLS and getattr(settings, field.name):
        other = next((name_of(n) for n in _URLS if environ.get(name_of(n))), "")
        return other or str(Path(STATE_DIR) / RUN_FILE)
    return "default"


# ``turns explain``: what a code means and what to do about it, and docs/errors.md made from the same tables.

_LOCALES = ("de", "en")
#: What can be wrong with an answer, and with the output of a phase.
CODES = {**ANSWER_CODES, **RULE_CODES, **OUTPUT_CODES}


@click.command()
@click.argument("code", required=False)
@click.option("--locale", type=click.Choice(_LOCALES), default="en", show_default=True, help="Language of the words.")
@click.option("--markdown", is_flag=True, help="Write the whole table, as in docs/errors.md.")
@json_option
def explain(code: str | None, locale: str, markdown: bool, as_json: bool) -> None:
    """Say what CODE means and what to do about it; without CODE, list all.

    A code is in brackets behind an error of this command, as `error.code` in the API's answers, and in capitals
    with what validators and gates found.
    """
    if markdown:
        click.echo(error_reference(), nl=False)
        return
    rows = [_row(name, locale) for name in ([_known(code)] if code else [*ERROR_CODES, *CODES])]
    if as_json:
        write_json(rows[0] if code else rows)
    elif code:
        write_table([(name.replace("_", " "), text) for name, text in rows[0].items() if text])
    else:
        write_table([(row["code"], row["what"]) for row in rows])


def _known(code: str) -> str:
    known = [*ERROR_CODES, *CODES]
    if code in known:
        return code
    close = difflib.get_close_matches(code, known, n=1, cutoff=0.5)
    raise click.BadParameter(f"there is no code {code[:80]!r}" + (f"; did you mean {close[0]}?" if close else ""))


def _row(code: str, locale: str) -> dict[str, str]:
    """Return what is to be said about a code, whichever table it is in."""
    if code in ERROR_CODES:
        what, todo = words_of(code, locale)
        return {"code": code, "what": what, "to_do": todo, "operator": ERROR_CODES[code].operator}
    issue = CODES[code]
    message, hint = issue.en if locale == "en" else issue.de
    return {"code": code, "what": message, "to_do": hint, "operator": f"{issue.when} {issue.repair}".strip()}


def error_reference() -> str:
    """docs/errors.md: every code of an error, what happened, what to do."""
    lines = [
        "# Errors",
        "",
        "What each code of an error means, and what to do. The code is in brackets behind a message of `turns`, and as",
        "`error.code` in an answer of the API and in a turn. `turns explain CODE` prints it, `--locale de` in German.",
        "What can be wrong with an *answer* has codes in capitals: [enforcement.md](enforcement.md);",
        "with the output of a phase: [WORKFLOW-SYSTEM.md](WORKFLOW-SYSTEM.md).",
        "Made by `turns explain --markdown` from `api_client/contract/error_codes.toml`; do not edit.",
        "",
    ]
    for code, entry in ERROR_CODES.items():
        operator = f"Operator: {entry.operator}" if entry.operator else ""
        lines.append(" ".join(text for text in (f"- `{code}`:", *entry.en, operator) if text))
    return "\n".join(lines) + "\n"
