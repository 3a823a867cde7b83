"""Implement ``turns up``: run a whole installation."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from api_client.api_keys import make_token
from api_client.contract.errors import SettingsError
from api_client.contract.settings import RUN_FILE, Settings, load_settings, mask_password, shared_environment
from api_client.contract.settings.load import read_settings
from api_client.private_file import write_private
from api_client.tracing.switch import explain_off, find_endpoint
from worker.cli.checks.unusable_settings import list_unusable_settings
from worker.cli.installation.relay_binding import PORTS, CannotStartError, RelayBinding, find_free_port
from worker.cli.installation.start_checks import await_store, blame_store
from worker.cli.installation.stop_announcement import announce_stop
from worker.cli.installation.worker import describe_capacity
from worker.cli.output import json_option, write_json
from worker.cli.setting_descriptions import format_value
from worker.logs import configure_logging
from worker.processes import own_programs
from worker.processes.embedded_broker import EmbeddedBroker
from worker.processes.program import Program
from worker.processes.restore_mark import require_complete_restore
from worker.processes.supervisor import Supervisor

_FLOWER_PORT = 5555


@dataclass(frozen=True)
class Installation:
    """The programs that ``turns up`` is going to start, with texts that describe them to the user."""

    settings: Settings
    programs: list[Program]
    broker: str
    relay: RelayBinding
    worker: str
    flower_url: str = ""
    flower_password: str = ""

    @property
    def keyless(self) -> bool:
        """Return True if the relay needs no API keys and no sign-in, so that an operator needs the token."""
        settings = self.settings
        keys = settings.api_keys or settings.forwarding_keys or settings.oidc_issuer
        return not (keys or settings.keys_path.exists())

    @property
    def addresses(self) -> dict[str, object]:
        """Return the URLs and process id of the installation, for run.json and ``--json``."""
        found: dict[str, object] = {
            "redis_url": self.settings.store_url,
            "web_url": self.relay.url,
            "pid": os.getpid(),
            "models": format_value(self.settings.models),
            "settings": shared_environment(self.settings, os.environ),
        }
        if self.keyless:
            found["operator_token_file"] = str(self.settings.token_path)
        if self.flower_url:
            found["flower_url"] = self.flower_url
        return found


@click.command(epilog="Example: turns up --port 8800")
@click.option("--verbose", "-v", is_flag=True, help="Pass the processes' logs through, instead of into files.")
@click.option("--host", default=RelayBinding().host, show_default=True, help="Address the relay listens on.")
@click.option(
    "--port",
    type=PORTS,
    default=RelayBinding().port,
    show_default=True,
    help="Port the relay listens on; 0: a free one.",
)
@click.option("--no-flower", is_flag=True, help="Start no Flower.")
@json_option
def up(verbose: bool, host: str, port: int, no_flower: bool, as_json: bool) -> None:
    """Start broker, worker, relay and Flower, print their addresses, and run until Ctrl-C.

    The broker is embedded unless REDIS_URL (or HELIX_BROKER_URL and HELIX_STORE_URL) names one. Processes that die are
    restarted. Logs are in HELIX_ROOT/.helix/logs. Other `turns` commands with the same HELIX_ROOT find this broker.
    """
    settings, contradictions = read_settings()
    if contradictions:
        require_usable_settings(settings, contradictions)
    state = own_programs.ensure_state_dir(settings)
    with lock_installation(state):
        require_complete_restore(settings.root)
        (state / RUN_FILE).unlink(missing_ok=True)  # left by a killed run, whose broker is gone
        require_usable_settings(settings := load_settings())
        named = bool(settings.store_url and settings.broker_url)
        if named:  # before the ports: without the store there is nothing to serve
            await_store(settings)
        installation = plan_installation(settings, RelayBinding(host, port), flower=not no_flower)
        configure_logging(installation.settings)
        if installation.keyless:
            make_token(installation.settings.token_path)
        directory = None if verbose else state / "logs"
        if directory:
            directory.mkdir(exist_ok=True)
            for file in directory.glob("*.log"):  # logs of the previous run
                file.replace(file.with_suffix(".log.1"))
        supervisor = Supervisor(
            installation.programs,
            logs=directory,
            on_exit=own_programs.build_exit_handler(installation.settings),
        )
        click.echo(f"starting ... (logs: {directory or 'below'})", err=True)
        try:
            with blame_store(settings) if named else contextlib.nullcontext():
                supervisor.run(
                    lambda: _print_addresses(installation, state, as_json), lambda: announce_stop(installation.settings)
                )
        finally:
            (state / RUN_FILE).unlink(missing_ok=True)
            for program in installation.programs:
                if program.ready_file:
                    program.ready_file.unlink(missing_ok=True)


def require_usable_settings(settings: Settings, contradictions: Sequence[str] = ()) -> None:
    """Raise ``SettingsError`` with the ``contradictions`` and one line for each setting that cannot work."""
    found = [f"{problem}; `turns doctor` says what to do" for problem in list_unusable_settings(settings)]
    if found := [*contradictions, *found]:
        raise SettingsError(found)


def plan_installation(
    settings: Settings, relay: RelayBinding, processes: int | None = None, *, flower: bool = False
) -> Installation:
    """Choose the programs that ``turns up`` starts: broker (if none is configured), workers, relay, Flower and traces.

    Raises ``BrokerError``, ``CannotStartError`` (a port is in use) or ``SettingsError``.
    """
    started: list[Program] = []
    address = mask_password(settings.store_url)
    if not (settings.store_url and settings.broker_url):
        broker = EmbeddedBroker(own_programs.ensure_state_dir(settings) / "broker", durability=settings.durability)
        settings = replace(settings, broker_url=broker.url, store_url=broker.url)
        started.append(broker.build_program())
        address = f"Valkey {broker.server.version} ({broker.server.source})  {broker.url}"
    relay = relay._replace(port=find_free_port(*relay))
    started += [
        *own_programs.worker_programs(settings, processes),
        own_programs.web_program(settings, *relay),
    ]
    flower_url = password = ""
    if flower and importlib.util.find_spec("flower"):
        flower_port, password = _choose_flower_port(), secrets.token_urlsafe(12)
        flower_url = f"http://127.0.0.1:{flower_port}"
        started.append(own_programs.flower_program(settings, flower_port, password))
    if find_endpoint(os.environ) and not explain_off(os.environ):
        started.append(own_programs.traces_program(settings))
    return Installation(settings, started, address, relay, describe_capacity(settings, processes), flower_url, password)


def _choose_flower_port() -> int:
    try:
        return find_free_port("127.0.0.1", _FLOWER_PORT)
    except CannotStartError:
        return find_free_port("127.0.0.1", 0)


@contextlib.contextmanager
def lock_installation(state: Path) -> Iterator[None]:
    """Hold the lock of an installation during the block, so that only one `turns up` or restore runs.

    Raises ``CannotStartError`` with the process that holds the lock.
    """
    with (state / "up.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            pid = file.read().strip()
            raise CannotStartError(
                f"`turns up` already runs on {state.parent} (process {pid}); end it with: kill {pid}"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _print_addresses(installation: Installation, state: Path, as_json: bool) -> None:
    addresses = installation.addresses
    write_private(state / RUN_FILE, json.dumps(addresses).encode())
    if as_json:
        write_json(addresses | {"flower_password": installation.flower_password})
        return
    settings = installation.settings
    click.echo(f"  broker  {installation.broker}")
    click.echo(f"  worker  {installation.worker}")
    click.echo(f"  web     {addresses['web_url']}/v1   models: {', '.join(settings.models)}")
    if set(settings.models.values()) == {"scripted"}:
        click.echo("  agent   scripted: it answers from a script; for a real one, stop this and run: turns init")
    if installation.keyless:
        click.echo(
            f"  operator  {addresses['web_url']}/sign-in   to see and stop turns; its token: {settings.token_path}"
        )
        click.echo(
            "  no keys: whoever reaches this address may ask; "
            "before a proxy passes other people on to it: turns keys create NAME"
        )
    if installation.flower_password:
        click.echo(f"  flower  {addresses['flower_url']}   user turns, password {installation.flower_password}")
    if receiver := find_endpoint(os.environ):
        click.echo(f"  traces  {explain_off(os.environ) or f'sent to {receiver}'}")
    turns = "turns" if shutil.which("turns") else sys.argv[0]  # `make up` runs without PATH
    click.echo(f'  logs    {state / "logs"}\n\nTry: {turns} submit --watch "..."      Ctrl-C stops everything.')
