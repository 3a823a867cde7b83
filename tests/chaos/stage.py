"""The installation of a chaos run: broker, proxy, two workers, two relays, under a supervisor that restarts them.

Every part reaches the broker through a link of its own of the proxy, and every client reaches the relays through one.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from api_client.contract.settings import Settings
from tests.chaos.history import ACTION_LOG
from tests.chaos.traffic.escalations import escalating_rules
from tests.chaos.traffic.phase_repertoire import phase_rules
from tests.chaos.traffic.repertoire import script
from tests.chaos.traffic.rules import POLICY
from tests.ports import free_port
from worker.processes import own_programs
from worker.processes.embedded_broker import EmbeddedBroker
from worker.processes.program import Program

WORKERS = ("worker-a", "worker-b")
RELAYS = ("relay-a", "relay-b")
#: Where workers and relays put temporary files.
TEMPORARY = "tmp"

# A program that starts only while a file is not there: so an outage lasts as long as the nemesis wants.
_HELD = "import os, sys, time\nwhile os.path.exists(sys.argv[1]): time.sleep(0.02)\nos.execv(sys.argv[2], sys.argv[2:])"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What runs, and where its parts are.

    Attributes:
        settings: of the whole, with the broker's own address: for the nemesis and the final reads.
        hold: while this file exists the broker does not start. control: where the proxy takes orders.
        relays: the addresses the clients know.
    """

    settings: Settings
    broker: EmbeddedBroker
    programs: list[Program]
    hold: Path
    control: str
    relays: tuple[str, ...]


def settings_for(directory: Path, history: Path) -> Settings:
    """Default settings but for what a chaos run must have: folders, script, policy, and impatience with silence."""
    root = directory / "root"
    root.mkdir(parents=True)
    played = directory / "script.yaml"
    played.write_text(script([*phase_rules(), *escalating_rules()]), encoding="utf-8")
    policy = directory / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    return Settings(
        root=root,
        namespace="chaos",
        models={"scripted": f"scripted:{played}", "expert": f"scripted:{played}"},
        policy=str(policy),
        action_log=str(history / ACTION_LOG),
        idle_seconds=3.0,
        kill_grace_seconds=1.0,
        shutdown_seconds=2.0,
        ping_seconds=2.0,
        deadline_seconds=600.0,
        verifier_seconds=10.0,
        escalation_model="expert",
        log_format="json",
    )


def build(settings: Settings, directory: Path, environ: Mapping[str, str]) -> Stage:
    """Lay out the installation; nothing is started yet. ``environ`` is added to that of workers and relays."""
    broker = EmbeddedBroker(directory / "broker", durability=settings.durability)
    settings = _reaching(settings, broker.url)
    temporary = directory / TEMPORARY
    temporary.mkdir()
    environ = {**environ, "TMPDIR": str(temporary)}
    sockets = directory / "s"
    sockets.mkdir(mode=0o700)
    hold, control = directory / "hold", str(sockets / "control")
    ports = {name: (free_port(), free_port()) for name in RELAYS}
    links = {name: [f"unix:{sockets / name}", f"unix:{broker.socket}"] for name in (*WORKERS, *RELAYS)}
    links |= {f"client-{name}": [f"127.0.0.1:{near}", f"127.0.0.1:{far}"] for name, (near, far) in ports.items()}
    behind = {name: _reaching(settings, f"unix://{sockets / name}") for name in (*WORKERS, *RELAYS)}
    started = [_held(broker.build_program(), hold), _proxy(links, control, directory)]
    started += [worker_program(name, behind[name], directory, environ) for name in WORKERS]
    started += [relay_program(name, behind[name], ports[name][1], environ) for name in RELAYS]
    return Stage(
        settings=settings,
        broker=broker,
        programs=started,
        hold=hold,
        control=control,
        relays=tuple(f"http://127.0.0.1:{near}" for near, _ in ports.values()),
    )


def _reaching(settings: Settings, url: str) -> Settings:
    return replace(settings, broker_url=url, store_url=url)


def _held(program: Program, hold: Path) -> Program:
    return replace(program, command=[sys.executable, "-I", "-S", "-c", _HELD, str(hold), *program.command])


def _proxy(links: Mapping[str, Sequence[str]], control: str, directory: Path) -> Program:
    return Program(
        name="proxy",
        command=[sys.executable, "-P", "-m", "tests.chaos.proxy", control, json.dumps(links)],
        environ=dict(os.environ),
        cwd=directory,
        ready=lambda pid: Path(control).exists(),
    )


def worker_program(name: str, settings: Settings, directory: Path, environ: Mapping[str, str]) -> Program:
    """A worker, with ``environ`` added to its environment."""
    ready = directory / f"{name}.ready"
    return Program(
        name=name,
        command=[sys.executable, "-P", "-c", "from worker.cli import main; main(['run', 'worker'])"],
        environ=own_programs.build_environ(settings, **{own_programs.READY_VARIABLE: str(ready)}, **environ),
        cwd=directory,
        ready_file=ready,
        grace_seconds=settings.shutdown_seconds + settings.kill_grace_seconds + 10.0,
        alongside=name != WORKERS[0],
    )


def relay_program(name: str, settings: Settings, port: int, environ: Mapping[str, str]) -> Program:
    """A relay, with ``environ`` added to its environment."""
    program = own_programs.web_program(settings, "127.0.0.1", port)
    return replace(program, name=name, environ={**(program.environ or {}), **environ})
