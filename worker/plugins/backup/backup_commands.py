"""Implement ``turns data backup`` and ``turns data restore``."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from api_client.client import TurnsClient
from api_client.contract.errors import HelixError
from api_client.contract.phase_folders import locate_input_file
from api_client.contract.phase_work import PHASE, read_turn_phase
from api_client.contract.settings import RUN_FILE, Settings, load_settings, require_store
from api_client.index.search import Search
from worker.cli.installation.up import lock_installation
from worker.cli.output import count_noun, fit_line, json_option, write_json
from worker.cli.setting_descriptions import describe_settings
from worker.cli.store_access import describe_caller, run_with_client
from worker.plugins.backup import restoring, saving
from worker.processes.own_programs import ensure_state_dir


@click.command(epilog="Example: turns data backup helix-2026-11-28.backup")
@click.argument("target", metavar="TO", type=click.Path(path_type=Path))
@json_option
def backup(target: Path, as_json: bool) -> None:
    """Save a running installation into the new file TO: store, sessions, phases, API keys, settings.

    It contains all turns that were acknowledged before, with prompts and answers; only its owner can read the file. The
    store's user needs the right +psync.
    """
    settings = require_store(load_settings())
    if not target.parent.is_dir():
        raise click.UsageError(f"no folder {target.parent}")
    line = run_with_client(lambda client: client.orders.write_line("backup", by=describe_caller()))
    try:
        saved = saving.save_installation(settings, target.absolute(), lambda: run_with_client(_list_parts))
    except Exception as error:
        why = error  # Python deletes ``error`` at the end of this block
        with suppress(HelixError):
            run_with_client(lambda client: client.orders.add_refusal(line, why))
        raise
    if as_json:
        write_json({"archive": str(target), **asdict(saved), "files_in": settings.files or str(settings.root)})
        return
    at = datetime.fromtimestamp(saved.at, UTC).isoformat(timespec="seconds")
    odd = f", {saved.left_out} left out (links, sockets, very deep folders)" if saved.left_out else ""
    click.echo(f"{target}: the store at {at}, {count_noun(saved.files, 'file')}, {saved.bytes / 2**20:.1f} MiB{odd}")
    click.echo(f"checksum {saved.digest}")
    if saved.lacking:
        click.echo(f"note: {saved.lacking}")
    if settings.files:
        click.echo(
            f"note: sessions' files are in {settings.files} and not in the archive; `turns data gc` may remove them"
        )


async def _list_parts(client: TurnsClient) -> saving.BackupParts:
    settings, lists, inputs = client.settings, client.lists, list[Path]()
    for turn in await lists.read_turns([found.turn_id for found in await lists.list_unfinished(Search())]):
        if turn.request.work == PHASE:
            paths = read_turn_phase(turn.request).input_files
            inputs += [locate_input_file(settings.root, turn.request, path) for path in paths]
    return saving.BackupParts(
        phase_directories=await client.phases.read_folders(),
        input_files=inputs,
        settings=describe_settings(settings, os.environ),
    )


@click.command(epilog="Example: turns data restore helix-2026-11-28.backup")
@click.argument("source", metavar="FROM", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@json_option
def restore(source: Path, as_json: bool) -> None:
    """Restore the backup FROM into an empty installation: an empty HELIX_ROOT and a store without turns.

    The archive is checked first. Without REDIS_URL the turns go to the embedded broker of HELIX_ROOT. After a crash
    nothing starts until the same restore has completed. Existing settings stay.
    """
    settings = load_settings()
    manifest, restored = restoring.restore_archive(
        settings, source.absolute(), lambda: lock_installation(ensure_state_dir(settings))
    )
    differing = _find_differing_settings(settings, manifest.facts["settings"])
    if as_json:
        write_json({"archive": str(source), **asdict(restored), "settings_that_differ": differing})
        return
    click.echo(f"restored {count_noun(restored.keys, 'key')} of the store and {count_noun(restored.files, 'file')}")
    for place in restored.left_alone:
        click.echo(f"left as it was: {place}")
    for row in differing:
        line = f"{row['name']} is {row['now'] or 'empty'}; it was {row['was'] or 'empty'} ({row['origin']})"
        click.echo(fit_line(line, 1000))  # the value comes from the archive
    click.echo("next: start relay and workers, then `turns doctor`")


def _find_differing_settings(settings: Settings, before: list[dict[str, str]]) -> list[dict[str, str]]:
    now = {row["name"]: row["value"] for row in describe_settings(load_settings(), os.environ)}
    return [
        {"name": row["name"], "was": row["value"], "now": now.get(row["name"], ""), "origin": row["origin"]}
        for row in before
        if row["value"] != now.get(row["name"], "")
        and row["name"] != "HELIX_ROOT"
        and not (row["name"] in {"HELIX_BROKER_URL", "HELIX_STORE_URL"} and row["origin"].endswith(RUN_FILE))
    ]
