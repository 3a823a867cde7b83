"""``turns new-validator``: a new rule with its test and its page, ready to run."""

from __future__ import annotations

import re
from pathlib import Path

import click

from api_client.contract.offered import BUILT_IN, offered_validators
from worker.cli.output import json_option, write_json
from worker.enforcement.rules import RULES

_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")

_RULE = '''"""{title}: say here what an answer must have."""

from collections.abc import Mapping
from typing import Any

from worker.enforcement import ResponseValidator, ValidationIssue


class {kind}(ResponseValidator):
    """Accepts an answer that names a source."""

    name = "{name}"

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """The issues of an answer; empty when it is fine."""
        if "https://" in response:
            return []
        message, fix_hint = "The answer names no source", "Name at least one link"
        return [ValidationIssue("MISSING_SOURCE", message, fix_hint)]
'''
_TEST = '''"""Tests of {name}: run them with pytest."""

from {name} import {kind}


def test_an_answer_with_a_source_is_accepted(helix_turns):
    helix_turns({kind}()).assert_accepted("See https://example.org.")


def test_an_answer_without_a_source_is_rejected(helix_turns):
    helix_turns({kind}()).assert_rejected("Trust me.", "MISSING_SOURCE")


def test_an_agent_that_is_asked_again_gets_through(helix_turns):
    result = helix_turns({kind}()).run("Trust me.", "See https://example.org.")
    assert (result.success, result.attempts) == (True, 2)
'''
_PAGE = """# {name}

An answer is accepted when it names a source.

Below HELIX_ROOT a policy file can name it by its path: `rule: rules/{name}.py`. See docs/own-rule.md.

Or name it in your package's `pyproject.toml`, install the package where workers, relay and command line run, restart:

```toml
[project.entry-points."helix_turns.validators"]
{name} = "{name}:{kind}"
```

Then `HELIX_VALIDATORS=step_marker,{name}` makes it active, and `turns validate FILE --validator {name}` tries it.
"""


@click.command("new-validator")
@click.argument("name")
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder to write to. Default: this one.",
)
@json_option
def new_validator(name: str, folder: Path, as_json: bool) -> None:
    """Write a rule NAME, its test and its page. Nothing that exists is overwritten."""
    if not _NAME.fullmatch(name) or len(name) > 60:
        raise click.UsageError("NAME must be like cites_source: small letters, digits and single underscores")
    if name in (*offered_validators(), *RULES):
        where = "built in" if name in (*BUILT_IN, *RULES) else "offered by an installed package"
        raise click.UsageError(f"a rule {name} is {where} already; choose another name")
    kind = "".join(part.capitalize() for part in name.split("_"))
    texts = {f"{name}.py": _RULE, f"test_{name}.py": _TEST, f"{name}.md": _PAGE}
    there = [file for file in texts if (folder / file).exists()]
    if there:
        raise click.UsageError(f"{', '.join(there)}: exists already in {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            filled = text.replace("{name}", name).replace("{kind}", kind).replace("{title}", name.replace("_", " "))
            (folder / file).write_text(filled)
    except OSError as error:
        raise click.UsageError(f"cannot write to {folder}: {error.strerror}") from None
    if as_json:
        write_json({"folder": str(folder), "files": list(texts)})
        return
    click.echo(f"wrote {', '.join(texts)} to {folder}; try it with: pytest {folder / f'test_{name}.py'}")
