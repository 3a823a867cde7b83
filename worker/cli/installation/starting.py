"""Checks before an installation or a worker starts: its store and broker, and the programs of its agents."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import click

from api_client.contract.errors import SettingsError, StoreUnavailable
from api_client.contract.settings import Settings, masked
from worker.processes.supervisor import NotReady
from worker.runners.claude.cli_program import missing_programs

#: Between two questions to a server that does not answer, in seconds.
_PAUSE_SECONDS = 0.3
#: Refusals that no waiting ends.
_FOR_GOOD = {"NOAUTH", "WRONGPASS"}


def warn(settings: Settings) -> None:
    """Tell on standard error what the settings say that sets nothing any more."""
    for each in settings.warnings:
        click.echo(f"turns: warning: {each}", err=True)


def require_programs(settings: Settings) -> None:
    """Refuse to start where the program of a model's agent is missing: this worker would fail all turns of that model.

    Raises:
        SettingsError: names the models, and what to do.
    """
    if missing := missing_programs(settings):
        raise SettingsError(missing)


def require_store_of(settings: Settings, stopping: threading.Event | None = None) -> None:
    """Wait for store and broker, then refuse to work with another number of shards than the store's.

    Returns early once ``stopping`` is set.

    Raises:
        SettingsError: as ``require_shards``. StoreUnavailable: as ``await_server``.
    """
    stopping = stopping or threading.Event()
    await_server("store", settings, stopping)
    if settings.broker_url != settings.store_url:
        await_server("broker", replace(settings, store_url=settings.broker_url), stopping)
    from api_client.store.shards import require_shards

    if not stopping.is_set():
        require_shards(settings)


def await_server(name: str, settings: Settings, stopping: threading.Event) -> None:
    """Wait until the server answers, and say so where it does not at once. One that loads its data does answer.

    Raises:
        StoreUnavailable: it does not accept the password, or did not answer for ``store_wait_seconds``.
    """
    from redis.exceptions import RedisError

    from api_client.contract.words.store_refusals import refusal_of
    from api_client.store.connecting import connect

    where, until, announced = masked(settings.store_url), time.monotonic() + settings.store_wait_seconds, False
    with connect(settings, answer_seconds=2.0, resends=0) as server:
        while not stopping.is_set():
            try:
                server.ping()
                return
            except (RedisError, OSError) as error:
                refusal = refusal_of(error)
                if refusal and refusal.word in _FOR_GOOD:
                    raise StoreUnavailable(str(error), refusal) from error
                reason = str(error) or type(error).__name__
                if not announced:
                    said = refusal.message if refusal else f"it does not answer ({reason})"
                    click.echo(f"waiting for the {name} at {where}: {said}", err=True)
                    announced = True
                if refusal:
                    return
                if time.monotonic() > until:
                    waited = f"waited {settings.store_wait_seconds:g} s for the {name} at {where}"
                    raise StoreUnavailable(f"{waited} ({reason}); start it, or correct REDIS_URL") from error
            stopping.wait(_PAUSE_SECONDS)


@contextlib.contextmanager
def store_named(settings: Settings) -> Iterator[None]:
    """Replace the error where a worker in the block was never ready because of the store.

    Raises:
        SettingsError, StoreUnavailable: as ``require_store_of``. NotReady: it was not because of the store.
    """
    try:
        yield
    except NotReady:
        require_store_of(replace(settings, store_wait_seconds=0.0))
        raise
