"""``turns web``: the relay."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import click

from api_client.contract.settings import Settings, load, require_store
from worker.cli.installation.listening import CannotStart, free_port
from worker.cli.installation.starting import warn


def listening(settings: Settings, host: str | None, port: int | None) -> Settings:
    """The settings of a relay that listens where the options say."""
    return replace(
        settings,
        web_host=settings.web_host if host is None else host,
        web_port=settings.web_port if port is None else port,
    )


@click.command()
@click.option("--host", help="Address to listen on; 127.0.0.1 if none.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; 8765 if none.")
def web(host: str | None, port: int | None) -> None:
    """Run the OpenAI-compatible relay in the foreground."""
    settings = listening(require_store(load()), host, port)
    from api_client.store.shards import require_shards
    from api_client.web.app import serve
    from worker.cli.turns.bundle import packed
    from worker.logs import configure_logging
    from worker.processes.restore_mark import require_whole

    configure_logging(settings)
    require_whole(settings.root)
    warn(settings)
    try:
        free_port(settings.web_host, settings.web_port)
    except CannotStart:
        configure_logging(replace(settings, log_level="error"))  # one line says why it does not start
        require_shards(settings)
        raise
    require_shards(settings)
    serve(settings, partial(packed, settings))
