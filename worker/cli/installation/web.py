"""Implement ``turns web``: run the relay."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import click

from api_client.contract.settings import load, require_store
from worker.cli.installation.listening import PORTS, Address, CannotStart, free_port


@click.command()
@click.option("--host", default=Address().host, show_default=True, help="Address to listen on.")
@click.option("--port", type=PORTS, default=Address().port, show_default=True, help="Port to listen on.")
def web(host: str, port: int) -> None:
    """Run the OpenAI-compatible relay in the foreground."""
    settings = require_store(load())
    from api_client.store.half_restored import refuse_half_restored
    from api_client.web.app import serve
    from worker.cli.turns.bundle import packed
    from worker.logs import configure_logging
    from worker.processes.restore_mark import require_whole

    configure_logging(settings)
    require_whole(settings.root)
    try:
        free_port(host, port)
    except CannotStart:
        configure_logging(replace(settings, log_level="error"))  # one line with the reason is enough
        refuse_half_restored(settings)
        raise
    refuse_half_restored(settings)
    serve(settings, host, port, partial(packed, settings))
