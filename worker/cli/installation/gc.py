"""Implement ``turns data gc``: delete old data from the store, HELIX_ROOT and the object store."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import click

from api_client.client import TurnsClient
from api_client.contract.keys import GC_AT
from api_client.contract.settings import Settings, load_settings, require_store
from api_client.index.clearing import clear
from worker.cli import NO
from worker.cli.output import json_option, write_json
from worker.cli.store_access import describe_caller, run_with_client

_MIB = 2**20
_DAY = 86_400.0
_DAYS = click.FloatRange(0, 10_000, min_open=True)
_WHAT = {"session": "sessions", "attempt": "attempts", "gone": "left_over"}


@click.command(epilog="Example: turns data gc --dry-run")
@click.option("--dry-run", is_flag=True, help="Count only; change nothing.")
@click.option("--events", type=_DAYS, help="Delete events this many days after their turn; else with the turn.")
@click.option("--attempts", type=_DAYS, help="The same for attempts and their folders.")
@click.option("--sessions", type=_DAYS, help="Delete session folders not written to for this many days; else never.")
@json_option
def gc(dry_run: bool, events: float | None, attempts: float | None, sessions: float | None, as_json: bool) -> None:
    """Delete finished turns, events, attempts and session folders that are older than their retention.

    Never touches dead letters, or sessions with an unfinished or suspended turn. May be killed and repeated. Run it
    once a day, on one machine that sees HELIX_ROOT. Exit code 1 if a folder could not be removed.
    """
    settings = require_store(load_settings())
    whole = settings.retention_seconds
    lives = {
        "records": whole,
        "events": events * _DAY if events else whole,
        "attempts": attempts * _DAY if attempts else whole,
        "sessions": (sessions or 0.0) * _DAY,
    }

    async def clear_store(client: TurnsClient) -> dict[str, int]:
        async with nullcontext() if dry_run else client.orders.place_order("gc", by=describe_caller()):
            return await clear(client.store, dry_run=dry_run, events=lives["events"], attempts=lives["attempts"])

    async def clear_object_store(client: TurnsClient) -> dict[str, Any]:
        if client.session_files is None:
            return {}
        seconds = lives["sessions"]
        cleared = await client.session_files.clear(now=time.time(), session_seconds=seconds, dry_run=dry_run)
        return {"objects": asdict(cleared)}

    report: dict[str, Any] = {
        "dry_run": dry_run,
        "store": run_with_client(clear_store, settings),
        "folders": _clear_folders(settings, lives, dry_run),
        **run_with_client(clear_object_store, settings),
        "kept_seconds": lives | {what: min(lives[what], whole) for what in ("events", "attempts")},
    }
    if as_json:
        write_json(report)
    else:
        _print_report(report)
    if not dry_run:
        # An alert reports if this time gets old.
        run_with_client(lambda client: client.store.store_fact(GC_AT, str(int(time.time()))))
    if report["folders"]["problems"] or report.get("objects", {}).get("problems"):
        raise click.exceptions.Exit(NO)


def _clear_folders(settings: Settings, lives: dict[str, float], dry_run: bool) -> dict[str, Any]:
    from worker.files.folder_clearing import find_old_folders, remove_folder
    from worker.phases.phase_clearing import find_old_phase_attempts

    found: dict[str, Any] = {**dict.fromkeys(_WHAT.values(), 0), "bytes": 0, "problems": []}
    with asyncio.Runner() as runner:
        client = TurnsClient(settings)

        def is_live(session_id: str) -> bool:
            return runner.run(client.sessions.has_unfinished(session_id))

        now, attempts = time.time(), lives["attempts"]
        of_sessions = find_old_folders(
            settings.sessions_dir, now=now, session_seconds=lives["sessions"], attempt_seconds=attempts, live=is_live
        )
        known = set(runner.run(client.phases.read_folders()))
        if gone := [directory for directory in known if not dry_run and not (settings.root / directory).exists()]:
            runner.run(client.phases.forget_folders(gone))
        of_phases = find_old_phase_attempts(settings.root, known, now=now, attempt_seconds=attempts, live=is_live)
        for old in itertools.chain(of_sessions, of_phases):
            try:
                if dry_run or remove_folder(old, is_live):
                    found[_WHAT[old.what]] += 1
                    found["bytes"] += old.size
            except OSError as error:
                found["problems"].append(f"{old.path}: {error.strerror or error}")
        runner.run(client.close())
    return found


def _print_report(report: dict[str, Any]) -> None:
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
