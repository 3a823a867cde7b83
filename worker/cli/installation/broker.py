"""Implement ``turns run broker``: run the embedded broker alone."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import click

from api_client.contract.settings import load_settings
from worker.cli.output import json_option, write_result
from worker.processes import own_programs


@click.command(epilog="Example: turns run broker --port 6380")
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False), help="Where its data is kept.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Listen on this loopback port too.")
@json_option
def broker(directory: Path | None, port: int, as_json: bool) -> None:
    """Print the REDIS_URL of the embedded broker, and run the broker in the foreground.

    Its data is kept in HELIX_ROOT/.helix/broker, or in --directory. It listens on a unix socket that only this user can
    open; with --port every user of this machine can connect.
    """
    from worker.processes.embedded_broker import BrokerError, EmbeddedBroker

    settings = load_settings()
    server = EmbeddedBroker(
        directory or own_programs.ensure_state_dir(settings) / "broker",
        durability=settings.durability,
        port=port,
    )
    handle = os.open(server.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BrokerError(f"a broker already runs on {server.directory}") from error
    os.set_inheritable(handle, True)
    found = {"redis_url": server.url, "server": str(server.server.path), "version": server.server.version}
    write_result(as_json, found, f"REDIS_URL={server.url}")
    command = server.build_server_command()
    os.execv(command[0], command)  # noqa: S606 - no shell is meant
