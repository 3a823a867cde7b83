"""``turns backup`` and ``turns restore``: an installation as one archive."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from api_client.client import TurnsClient
from api_client.contract.phases.phase import Phase
from api_client.contract.phases.phase_place import input_file
from api_client.contract.settings import RUN_FILE, Settings, load, require_store
from api_client.index.lists import TurnLists
from api_client.index.search import Search
from worker.backup import restoring, saving
from worker.cli.asking import whoami, with_client
from worker.cli.config import describe
from worker.cli.installation.up import only_one
from worker.cli.output import json_option, number_of, one_line, write_json
from worker.processes.programs import state_dir


@click.command()
@click.argument("target", metavar="TO", type=click.Path(path_type=Path))
@json_option
def backup(target: Path, as_json: bool) -> None:
    """Save a running installation into the new file TO: store, sessions, phases, API keys, settings.

    Everything that was acknowledged before is in it. Only its owner can read the file; it has the prompts and
    answers of all turns. The store's user needs the right +psync.
    """
    settings = require_store(load())
    if not target.parent.is_dir():
        raise click.UsageError(f"no folder {target.parent}")

    async def note(client: TurnsClient) -> None:
        await client.audit.note("backup", by=whoami())

    with_client(note)
    saved = saving.save(settings, target.absolute(), lambda: _wanted(settings))
    if as_json:
        write_json({"archive": str(target), **asdict(saved)})
        return
    at = datetime.fromtimestamp(saved.at, UTC).isoformat(timespec="seconds")
    odd = f", {number_of(saved.left_out, 'link or socket')} left out" if saved.left_out else ""
    click.echo(f"{target}: the store at {at}, {number_of(saved.files, 'file')}, {saved.bytes / 2**20:.1f} MiB{odd}")
    click.echo(f"checksum {saved.digest}")
    if saved.lacking:
        click.echo(f"note: {saved.lacking}")


def _wanted(settings: Settings) -> saving.Wanted:
    """Return what belongs to the installation besides the store, as the store says."""

    async def ask(client: TurnsClient) -> saving.Wanted:
        store = client.store
        lists = TurnLists(store)
        unfinished = [found.turn_id for found in await lists.unfinished(Search())]
        inputs: list[Path] = []
        for turn in await lists.read(unfinished):
            if turn.request.phase is not None:
                paths = Phase.stored(turn.request.phase).input_files
                inputs += [input_file(settings.root, turn.request, path) for path in paths]
        return saving.Wanted(
            phase_directories=await client.sessions.phase_folders(),
            input_files=inputs,
            settings=describe(settings, os.environ),
        )

    return with_client(ask)


@click.command()
@click.argument("source", metavar="FROM", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@json_option
def restore(source: Path, as_json: bool) -> None:
    """Bring the backup FROM into an empty installation: an empty HELIX_ROOT and a store without turns.

    The archive is checked first. Without REDIS_URL the embedded broker of HELIX_ROOT gets the turns. If it is killed,
    nothing starts until the same restore has run again. Settings that are here already stay.
    """
    settings = load()
    manifest, restored = restoring.restore(settings, source.absolute(), lambda: only_one(state_dir(settings)))
    differing = _differing(settings, manifest.facts["settings"])
    if as_json:
        write_json({"archive": str(source), **asdict(restored), "settings_that_differ": differing})
        return
    click.echo(f"restored {number_of(restored.keys, 'key')} of the store and {number_of(restored.files, 'file')}")
    for place in restored.left_alone:
        click.echo(f"left as it was: {place}")
    for row in differing:
        line = f"{row['name']} is {row['now'] or 'empty'}; it was {row['was'] or 'empty'} ({row['origin']})"
        click.echo(one_line(line, 1000))  # what it was is the archive's own text
    click.echo("next: start relay and workers, then `turns doctor`")


def _differing(settings: Settings, before: list[dict[str, str]]) -> list[dict[str, str]]:
    """Settings whose value is not the one of the backup. Secrets are masked, so of them only whether there is one.

    The addresses of the store that `turns up` ran itself are not among them: it makes new ones.
    """
    now = {row["name"]: row["value"] for row in describe(load(), os.environ)}
    return [
        {"name": row["name"], "was": row["value"], "now": now.get(row["name"], ""), "origin": row["origin"]}
        for row in before
        if row["value"] != now.get(row["name"], "")
        and row["name"] != "HELIX_ROOT"
        and not (row["name"] in {"HELIX_BROKER_URL", "HELIX_STORE_URL"} and row["origin"].endswith(RUN_FILE))
    ]
