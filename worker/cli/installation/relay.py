"""Implement ``turns run relay``: run the relay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import click

from api_client.api_keys import read_sound_keys
from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from api_client.contract.settings.setting_faults import load_process_settings
from api_client.policies.policy_files import PolicyFiles
from worker.cli.installation.relay_binding import PORTS, CannotStartError, RelayBinding, find_free_port


@click.command(epilog="Example: turns run relay --host 0.0.0.0 --port 8765")
@click.option("--host", default=RelayBinding().host, show_default=True, help="Address to listen on.")
@click.option("--port", type=PORTS, default=RelayBinding().port, show_default=True, help="Port to listen on.")
def relay(host: str, port: int) -> None:
    """Run the OpenAI-compatible relay in the foreground."""
    settings = load_process_settings(_find_unusable_files)
    from api_client.store.unfinished_restore import refuse_unfinished_restore
    from api_client.web.app.relay_server import serve_relay
    from worker.cli.turns.bundle import pack_bundle
    from worker.logs import configure_logging
    from worker.processes.restore_mark import require_complete_restore

    configure_logging(settings)
    require_complete_restore(settings.root)
    try:
        find_free_port(host, port)
    except CannotStartError:
        configure_logging(replace(settings, log_level="error"))  # one line with the reason is enough
        refuse_unfinished_restore(settings)
        raise
    refuse_unfinished_restore(settings)
    serve_relay(settings, host, port, partial(pack_bundle, settings))


def _find_unusable_files(settings: Settings) -> Iterator[str]:
    for read in (PolicyFiles(settings).check_files, partial(read_sound_keys, settings.keys_path)):
        try:
            read()
        except SettingsError as error:
            yield from error.problems
