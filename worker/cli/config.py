"""``turns config``: the settings, and docs/settings.md made from the same table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import click

from api_client.contract.settings import RUN_FILE, STATE_DIR, Settings, load, masked, name_of
from worker.cli.output import json_option, one_line, write_json, write_table

_URLS = {"broker_url", "store_url"}
#: Whoever sets one of these does not ask the broker that `turns up` runs here.
_STORES = ("REDIS_URL", "REDIS_URL_FILE", "HELIX_BROKER_URL", "HELIX_STORE_URL")


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
    return [
        {
            "name": name_of(field.name),
            "value": _shown(field, getattr(settings, field.name)),
            "origin": _origin(field, settings, environ),
            "help": field.metadata["help"],
        }
        for field in fields(Settings)
    ]


def reference() -> str:
    """docs/settings.md: every setting, its default and what it means."""
    lines = [
        "# Settings",
        "",
        "Every setting is an environment variable. A wrong value or an unknown `HELIX_` name stops a command at once,",
        "with every problem listed; `turns config` shows what is in force and where each value comes from.",
        "Made by `turns config --markdown` from the table in `api_client/contract/settings.py`; do not edit.",
        "",
        "A secret can also come from a file: `HELIX_API_KEYS_FILE=/run/secrets/api_keys`, `REDIS_URL_FILE=...`.",
        "",
        "Where broker and store are not set, `REDIS_URL` sets both; where that is not set either, the broker of a",
        f"running `turns up`, and its models, are found through `HELIX_ROOT/{STATE_DIR}/{RUN_FILE}`.",
        "",
        "| Name | Default | Meaning |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{name_of(f.name)}` | {_default(f)} | {_cell(f.metadata['help'])} |" for f in fields(Settings)]
    return "\n".join(lines) + "\n"


def _default(field: Field[Any]) -> str:
    if field.name == "root":
        return "the working directory"
    factory = field.default_factory
    shown = spell(factory() if factory is not MISSING else field.default)
    return f"`{shown}`" if shown else "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def spell(value: Any) -> str:
    """A value as one would write it in the environment."""
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _shown(field: Field[Any], value: Any) -> str:
    if field.name in _URLS:
        return masked(value)
    return "***" if field.metadata["secret"] and value else spell(value)


def _origin(field: Field[Any], settings: Settings, environ: Mapping[str, str]) -> str:
    if environ.get(name_of(field.name)):
        return "environment"
    if environ.get(f"{name_of(field.name)}_FILE"):
        return "file"
    if field.name == "models" and settings.store_url and not any(environ.get(name) for name in _STORES):
        return str(Path(STATE_DIR) / RUN_FILE)
    if field.name in _URLS:
        if environ.get("REDIS_URL") or environ.get("REDIS_URL_FILE"):
            return "REDIS_URL"
        if getattr(settings, field.name):
            other = next((name_of(n) for n in _URLS if environ.get(name_of(n))), "")
            return other or str(Path(STATE_DIR) / RUN_FILE)
    return "default"
