"""``turns gc``: delete what is older than the settings allow, in the store and in HELIX_ROOT."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import click

from api_client.client import TurnsClient
from api_client.contract.keys import GC_AT
from api_client.contract.settings import Settings, load, require_store
from api_client.index.clearing import clear
from worker.cli import NO
from worker.cli.asking import whoami, with_client
from worker.cli.output import json_option, write_json

_MIB = 2**20
_WHAT = {"session": "sessions", "attempt": "attempts", "gone": "left_over"}


@click.command()
@click.option("--dry-run", is_flag=True, help="Count only; change nothing.")
@json_option
def gc(dry_run: bool, as_json: bool) -> None:
    """Delete what is older than it is to be kept: finished turns, events, attempts, session folders.

    Never touches a session with an unfinished or parked turn, nor dead letters. May be killed and repeated. Run it once
    a day, on one machine that sees HELIX_ROOT. Exit code 1 when a folder could not be removed.
    """
    settings = require_store(load())

    async def store(client: TurnsClient) -> dict[str, int]:
        if not dry_run:
            await client.audit.note("gc", by=whoami())
        return await clear(client.store, dry_run=dry_run)

    report: dict[str, Any] = {
        "dry_run": dry_run,
        "store": with_client(store),
        "folders": _folders(settings, dry_run),
        "kept_seconds": _kept(settings),
    }
    if as_json:
        write_json(report)
    else:
        _say(report)
    if not dry_run:
        with_client(_note_end)
    if report["folders"]["problems"]:
        raise click.exceptions.Exit(NO)


async def _note_end(client: TurnsClient) -> None:
    """For the alert of an installation whose gc has stopped."""
    await client.store.note(GC_AT, str(int(time.time())))


def _kept(settings: Settings) -> dict[str, float]:
    """Return how long what is kept, in seconds; 0: for ever."""
    whole = settings.retention_seconds
    return {
        "records": whole,
        "events": min(settings.event_retention_seconds or whole, whole),
        "attempts": min(settings.attempt_retention_seconds or whole, whole),
        "sessions": settings.session_retention_seconds,
    }


def _folders(settings: Settings, dry_run: bool) -> dict[str, Any]:
    """Remove what is old enough, one folder after the other; the store is asked about each session.

    Raises:
        StoreUnavailable: the store went away: nothing more is removed.
    """
    from worker.files.folder_clearing import old_folders, remove
    from worker.turns.phases.phase_clearing import old_phase_attempts

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
