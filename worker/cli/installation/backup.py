"""``turns backup`` and ``turns restore``: an installation as one archive."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from api_client.client import TurnsClient
from api_client.contract.issues import HelixError
from api_client.contract.keys import GC_AT
from api_client.contract.phases import Phase, input_file
from api_client.contract.settings import RUN_FILE, Settings, load, require_store
from api_client.index import Search
from api_client.index.selection import clear
from api_client.snapshots import Cleared, clear_objects
from worker.backup import backup as restoring
from worker.backup import backup as saving
from worker.cli import NO
from worker.cli.config import describe
from worker.cli.installation.up import only_one
from worker.cli.terminal import json_option, number_of, one_line, whoami, with_client, write_json
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
    line = with_client(lambda client: client.audit.note("backup", by=whoami()))
    try:
        saved = saving.save(settings, target.absolute(), lambda: with_client(_wanted))
    except Exception as error:
        why = error  # ``error`` ends with this block
        with suppress(HelixError):
            with_client(lambda client: client.audit.refuse(line, why))
        raise
    if as_json:
        write_json({"archive": str(target), **asdict(saved), "files_in": settings.files or str(settings.root)})
        return
    at = datetime.fromtimestamp(saved.at, UTC).isoformat(timespec="seconds")
    odd = f", {number_of(saved.left_out, 'link or socket')} left out" if saved.left_out else ""
    click.echo(f"{target}: the store at {at}, {number_of(saved.files, 'file')}, {saved.bytes / 2**20:.1f} MiB{odd}")
    click.echo(f"checksum {saved.digest}")
    if saved.lacking:
        click.echo(f"note: {saved.lacking}")
    if settings.files:
        click.echo(f"note: sessions' files are in {settings.files} and not in the archive; `turns gc` may remove them")


async def _wanted(client: TurnsClient) -> saving.Wanted:
    """Return what belongs to the installation besides the store, as the store says."""
    settings, lists, inputs = client.settings, client.lists, list[Path]()
    for turn in await lists.read([found.turn_id for found in await lists.unfinished(Search())]):
        if turn.request.phase is not None:
            paths = Phase.stored(turn.request.phase).input_files
            inputs += [input_file(settings.root, turn.request, path) for path in paths]
    return saving.Wanted(
        phase_directories=await client.sessions.phase_folders(),
        input_files=inputs,
        settings=describe(settings, os.environ),
    )


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


# ``turns gc``: delete what is older than the settings allow, in the store and in HELIX_ROOT.

_MIB = 2**20
_DAYS = click.FloatRange(0, 10_000, min_open=True)
_WHAT = {"session": "sessions", "attempt": "attempts", "gone": "left_over"}


@click.command()
@click.option("--dry-run", is_flag=True, help="Count only; change nothing.")
@click.option("--events", type=_DAYS, help="Delete events this many days after their turn; else with the turn.")
@click.option("--attempts", type=_DAYS, help="The same for attempts and their folders.")
@click.option("--sessions", type=_DAYS, help="Delete session folders not written to for this many days; else never.")
@json_option
def gc(dry_run: bool, events: float, attempts: float, sessions: float, as_json: bool) -> None:
    """Delete what is older than it is to be kept: finished turns, events, attempts, session folders.

    Never touches a session with an unfinished or parked turn, nor dead letters. May be killed and repeated. Run it once
    a day, on one machine that sees HELIX_ROOT. Exit code 1 when a folder could not be removed.
    """
    days = {"event": events, "attempt": attempts, "session": sessions}
    given: dict[str, Any] = {f"{what}_retention_seconds": number * 86_400 for what, number in days.items() if number}
    settings = replace(require_store(load()), **given)

    async def store(client: TurnsClient) -> dict[str, int]:
        async with nullcontext() if dry_run else client.audit.noted("gc", by=whoami()):
            return await clear(client.store, dry_run=dry_run)

    async def objects(client: TurnsClient) -> Cleared:
        kept = settings.session_retention_seconds
        found = client.snapshots.objects
        return await clear_objects(client.store, found, now=time.time(), session_seconds=kept, dry_run=dry_run)

    whole = settings.retention_seconds
    report: dict[str, Any] = {
        "dry_run": dry_run,
        "store": with_client(store, settings),
        "folders": _folders(settings, dry_run),
        **({"objects": asdict(with_client(objects, settings))} if settings.files else {}),
        "kept_seconds": {
            "records": whole,
            "events": min(settings.event_retention_seconds or whole, whole),
            "attempts": min(settings.attempt_retention_seconds or whole, whole),
            "sessions": settings.session_retention_seconds,
        },
    }
    if as_json:
        write_json(report)
    else:
        _say(report)
    if not dry_run:
        with_client(lambda client: client.store.note(GC_AT, str(int(time.time()))))  # its alert: gc has stopped
    if report["folders"]["problems"] or report.get("objects", {}).get("problems"):
        raise click.exceptions.Exit(NO)


def _folders(settings: Settings, dry_run: bool) -> dict[str, Any]:
    """Remove what is old enough, one folder after the other; the store is asked about each session.

    Raises:
        StoreUnavailable: the store went away: nothing more is removed.
    """
    from worker.files.session import old_folders, remove
    from worker.turns.phase_turns import old_phase_attempts

    found: dict[str, Any] = {**dict.fromkeys(_WHAT.values(), 0), "bytes": 0, "problems": []}
    with asyncio.Runner() as runner:
        client = TurnsClient(settings)

        def live(session_id: str) -> bool:
            return runner.run(client.sessions.at_work(session_id))

        now, attempts = time.time(), settings.attempt_retention_seconds or settings.retention_seconds
        of_sessions = old_folders(
            settings.sessions_dir,
            now=now,
            session_seconds=settings.session_retention_seconds,
            attempt_seconds=attempts,
            live=live,
        )
        known = set(runner.run(client.sessions.phase_folders()))
        if gone := [directory for directory in known if not dry_run and not (settings.root / directory).exists()]:
            runner.run(client.sessions.forget_phase_folders(gone))
        of_phases = old_phase_attempts(settings.root, known, now=now, attempt_seconds=attempts, live=live)
        for old in itertools.chain(of_sessions, of_phases):
            try:
                if dry_run or remove(old, live):
                    found[_WHAT[old.what]] += 1
                    found["bytes"] += old.size
            except OSError as error:
                found["problems"].append(f"{old.path}: {error.strerror or error}")
        runner.run(client.close())
    return found


def _say(report: dict[str, Any]) -> None:
    store, folders = report["store"], report["folders"]
    would = "would be deleted" if report["dry_run"] else "deleted"
    kept = {
        what: f"{seconds / 86_400:.3g} d" if seconds else "for ever" for what, seconds in report["kept_seconds"].items()
    }
    click.echo(
        f"kept     turns {kept['records']}, their events {kept['events']}, attempts {kept['attempts']},"
        f" session folders {kept['sessions']}"
    )
    click.echo(f"store    {store['records']} turns, {store['events']} event logs, {store['attempts']} attempts {would}")
    click.echo(
        f"folders  {folders['sessions']} sessions, {folders['attempts']} attempts, {folders['left_over']} left over,"
        f" {folders['bytes'] / _MIB:.1f} MiB {would}"
    )
    for problem in folders["problems"]:
        click.echo(f"turns: cannot remove {problem}", err=True)
    if objects := report.get("objects"):
        click.echo(f"objects  {objects['objects']}, {objects['size'] / _MIB:.1f} MiB {would}")
        for problem in objects["problems"]:
            click.echo(f"turns: {problem}", err=True)
