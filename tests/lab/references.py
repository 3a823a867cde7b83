"""Writes the pages that list every setting and every error code: ``python -m tests.lab.references``."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

from api_client.contract.error_codes import ERROR_CODES
from api_client.contract.settings import GROUPS, Settings, declared_fields, environment_name
from worker.cli.setting_descriptions import format_value

DOCS = Path(__file__).parents[2] / "docs"
_OPENING = Path(__file__).with_name("settings.md")


def render_setting_reference() -> str:
    """Return the Markdown text of docs/settings.md, which lists every setting with default and meaning."""
    lines = [_OPENING.read_text(encoding="utf-8")]
    known = declared_fields(Settings, "setting")
    for group in GROUPS:
        heading = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", group.__name__.removesuffix("Settings")).capitalize()
        lines += [f"## {heading}", "", str(group.__doc__).partition("\n")[0], ""]
        names = [each for each in known if each.name in group.__annotations__]
        for f in names:
            mark = " *" if f.metadata["per_model"] else ""
            lines.append(f"- `{environment_name(f.name)}` ({_default_text(f)}): {f.metadata['help']}{mark}")
        lines.append("")
    return "\n".join(lines)


def _default_text(field: Field[Any]) -> str:
    if field.name == "root":
        return "the working directory"
    factory = field.default_factory
    shown = format_value(factory() if factory is not MISSING else field.default)
    return f"`{shown}`" if shown else "none"


def render_error_reference() -> str:
    """Return the Markdown text of docs/errors.md, which lists every error code with meaning and remedy."""
    lines = [
        "# Errors",
        "",
        "What each code of an error means, and what to do. The code is in brackets behind a message of `turns`, and as",
        "`error.code` in an answer of the API and in a turn. `turns turn explain CODE` prints it, in German with",
        "`--locale de`. What can be wrong with an *answer* has codes in capitals: [enforcement.md](enforcement.md);",
        "with output that gates check: [WORKFLOW-SYSTEM.md](WORKFLOW-SYSTEM.md).",
        "Made by `python -m tests.lab.references` from `api_client/contract/error_codes.toml`; do not edit.",
        "",
    ]
    for code, entry in ERROR_CODES.items():
        operator = f"Operator: {entry.operator}" if entry.operator else ""
        lines.append(" ".join(text for text in (f"- `{code}`:", *entry.en, operator) if text))
    return "\n".join(lines) + "\n"


#: Pages by name.
PAGES = {"settings.md": render_setting_reference, "errors.md": render_error_reference}

if __name__ == "__main__":
    for name, render in PAGES.items():
        (DOCS / name).write_text(render(), encoding="utf-8")
