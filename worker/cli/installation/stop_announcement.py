"""Tells the user which agents a stop waits for."""

from __future__ import annotations

import asyncio
import socket
import time

import click
from redis.exceptions import RedisError

from api_client.contract.settings import Settings, load_settings
from api_client.contract.tasks import RUN_QUEUE
from api_client.contract.worker_reports import WorkerReport
from api_client.store.connecting import open_store
from api_client.workers.reports import read_written_reports
from worker.cli.output import count_noun

#: Seconds after which a worker's report is ignored.
_FRESH_SECONDS = 10.0


def announce_stop(settings: Settings) -> None:
    """Print on stderr how many agents a stopping worker is waiting for, and for how long."""
    working = _count_running_agents(settings)
    if working == 0:
        click.echo("stopping: no agent is at work", err=True)
        return
    agents = "agents that are at work" if working is None else f"{count_noun(working, 'agent')} at work"
    limit = f"up to {settings.shutdown_seconds:g} s, then their turns go to other workers"
    click.echo(f"stopping: waiting for {agents}, {limit}; Ctrl-C again: at once", err=True)


def announce_stop_from_environment() -> None:
    announce_stop(load_settings())


def _count_running_agents(settings: Settings) -> int | None:
    try:
        reports = asyncio.run(_read_reports(settings))
    except RedisError:
        return None
    here = socket.gethostname()
    fresh = [each for each in reports if each.host == here and time.time() - each.at < _FRESH_SECONDS]
    return sum(each.slots - each.free for each in fresh if RUN_QUEUE in each.queues)


async def _read_reports(settings: Settings) -> list[WorkerReport]:
    async with open_store(settings, answer_seconds=1.0) as redis:
        return await read_written_reports(redis, settings.namespace)
