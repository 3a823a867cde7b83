"""Implement ``turns config``."""

from __future__ import annotations

import os

import click

from api_client.contract.errors import SettingsError
from api_client.contract.settings.load import read_settings
from worker.cli.checks.unusable_settings import list_unusable_settings
from worker.cli.output import fit_line, json_option, write_json, write_table
from worker.cli.setting_descriptions import describe_settings


@click.command(epilog="Example: turns config --json")
@json_option
def config(as_json: bool) -> None:
    """Show every setting with its value and origin. Secrets are masked.

    Exit code 2 with one line for each setting that cannot be used; as long as values cannot be read, for those only.
    """
    settings, contradictions = read_settings()
    unusable = list_unusable_settings(settings)
    rows = [] if contradictions else describe_settings(settings, os.environ)
    if as_json and rows:
        write_json(rows)
    elif rows:
        write_table([(row["name"], fit_line(row["value"]), row["origin"]) for row in rows])
    if problems := contradictions + unusable:
        raise SettingsError(problems)
