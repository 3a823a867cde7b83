"""Implement ``turns policy new-rule``: generate a rule with its test and page."""

from __future__ import annotations

import re
from keyword import iskeyword
from pathlib import Path

import click

from api_client.contract.validator_names import BUILT_IN, offered_validators
from worker.cli.output import json_option, write_result
from worker.enforcement.rules import RULES

_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_TEMPLATES = Path(__file__).with_name("new_validator")


@click.command("new-rule", epilog="Example: turns policy new-rule cites_source --to rules")
@click.argument("name")
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder to write to. Default: this one.",
)
@json_option
def new_rule(name: str, folder: Path, as_json: bool) -> None:
    """Generate a rule NAME with a test and a page of documentation. Existing files are not overwritten."""
    if not _NAME.fullmatch(name) or len(name) > 60:
        raise click.UsageError("NAME must be like cites_source: small letters, digits and single underscores")
    if iskeyword(name):
        raise click.UsageError(f"{name} is a keyword of Python, so no test can import it; choose another name")
    if name in (*offered_validators(), *RULES):
        where = "built in" if name in (*BUILT_IN, *RULES) else "offered by an installed package"
        raise click.UsageError(f"a rule {name} is {where} already; choose another name")
    from jinja2 import Template

    kind = "".join(part.capitalize() for part in name.split("_"))
    files = {f"{name}.py": "rule.py.j2", f"test_{name}.py": "test.py.j2", f"{name}.md": "page.md.j2"}
    there = [file for file in files if (folder / file).exists()]
    if there:
        raise click.UsageError(f"{', '.join(there)}: exists already in {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, template in files.items():
            text = Template((_TEMPLATES / template).read_text(encoding="utf-8"), keep_trailing_newline=True)
            (folder / file).write_text(
                text.render(name=name, kind=kind, title=name.replace("_", " ")), encoding="utf-8"
            )
    except OSError as error:
        raise click.UsageError(f"cannot write to {folder}: {error.strerror}") from None
    said = f"wrote {', '.join(files)} to {folder}; try it with: pytest {folder / f'test_{name}.py'}"
    write_result(as_json, {"folder": str(folder), "files": list(files)}, said)
