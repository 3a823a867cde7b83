"""The rows: how each system's worker and client are started."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from api_client.contract.settings import Settings
from tests.inline import offer
from tests.lab.bench.load import work
from tests.lab.bench.turns.peers_home import DURABLE, REQUIREMENTS, ROOT, python_of_peers, restate_server
from worker.processes import own_programs

#: The yardstick of every ratio: what the design card asks for, in plain Celery.
CHAIN = "celery-chain"
RESTATE = "restate"
#: So many turns wait at once in the variant "waiting".
WAITING = 1000


@dataclass(frozen=True, kw_only=True)
class Row:
    """A system under load.

    Attributes:
        worker, client: command lines, without the interpreter. ours: they run in our environment, not the peers'.
        requirements: what the environment of a peer needs. durable: it makes the same promise as we do.
        folder: each turn has a working folder. follows: the client follows each turn as the relay does.
        waiting, more: arguments and environment of the worker that make room for a thousand turns at once.
    """

    name: str
    label: str
    worker: tuple[str, ...]
    client: tuple[str, ...]
    ours: bool = False
    requirements: Path = REQUIREMENTS
    folder: bool = False
    follows: bool = False
    waiting: tuple[str, ...] = ()
    more: dict[str, str] = field(default_factory=dict)

    @property
    def durable(self) -> bool:
        return self.requirements == DURABLE

    def find_python(self) -> Path:
        """The interpreter of its worker and client; installs what they need. Raises ``NoPeers``."""
        if self.ours:
            return Path(sys.executable)
        if self.name == RESTATE:
            restate_server()
        return python_of_peers(self.requirements)


def _peer(name: str, label: str, *worker: str, waiting: tuple[str, ...] = (), **more: str) -> Row:
    client = ("-m", "tests.lab.bench.peers.client", name)
    return Row(name=name, label=label, worker=("-m", *worker), client=client, waiting=waiting, more=more)


def _engine(name: str, label: str, module: str) -> Row:
    client = ("-m", "tests.lab.bench.peers.client", name)
    worker = ("-m", f"tests.lab.bench.peers.{module}")
    return Row(name=name, label=label, worker=worker, client=client, requirements=DURABLE)


def _ours(name: str, label: str, *, folder: bool = False, follows: bool = False) -> Row:
    worker = ("-P", "-c", "from worker.cli import main; main(['run', 'worker'])")
    client = ("-m", "tests.lab.bench.turns.our_client")
    waiting = {"HELIX_RUN_SLOTS": str(WAITING)}
    return Row(
        name=name, label=label, worker=worker, client=client, ours=True, folder=folder, follows=follows, more=waiting
    )


_CELERY = ("celery", "-q", "-A")
_QUIET = ("--without-gossip", "--without-mingle", "--loglevel", "warning")
_MANY = str(WAITING)

ROWS = {
    row.name: row
    for row in (
        _ours("ours", "helix-turns"),
        _ours("ours-folder", "helix-turns, working folder", folder=True),
        _ours("ours-follow", "helix-turns, client follows", follows=True),
        _peer(
            CHAIN,
            "Celery chain, self.replace",
            *(*_CELERY, "tests.lab.bench.peers.celery_chain", "worker", "-P", "prefork", "-c", "2", *_QUIET),
        ),
        _peer(
            "celery-task",
            "one lean Celery task",
            *(*_CELERY, "tests.lab.bench.peers.celery_task", "worker", "-P", "threads", *_QUIET, "-c", "16"),
            waiting=("-c", _MANY),
        ),
        _peer(
            "dramatiq",
            "dramatiq",
            *("dramatiq", "tests.lab.bench.peers.dramatiq_actor", "--processes", "2", "--threads", "8"),
            waiting=("--threads", str(WAITING // 2)),
        ),
        _peer(
            "taskiq",
            "taskiq",
            *(
                "taskiq",
                "worker",
                "tests.lab.bench.peers.taskiq_task:broker",
                "--workers",
                "2",
                "--log-level",
                "WARNING",
            ),
            waiting=("--max-async-tasks", _MANY),
        ),
        _peer(
            "saq",
            "saq",
            *("saq", "tests.lab.bench.peers.saq_job.settings", "--workers", "2", "--quiet"),
            BENCH_SLOTS=_MANY,
        ),
        _engine("dbos", "DBOS", "dbos_workflow"),
        _engine("procrastinate", "procrastinate", "procrastinate_job"),
        _engine(RESTATE, "Restate", "restate_handler"),
    )
}


def worker_command(row: Row, *, waiting: bool) -> list[str]:
    """The worker's command line; ``waiting``: with room for a thousand turns at once."""
    return [str(row.find_python()), *row.worker, *(row.waiting if waiting else ())]


def client_command(row: Row, host: str, port: int) -> list[str]:
    more = ("bench", *(("--follow",) if row.follows else ())) if row.ours else ()
    return [str(row.find_python()), *row.client, host, str(port), *more]


def environment(row: Row, directory: Path, url: str, durability: str, *, waiting: bool) -> dict[str, str]:
    if not row.ours:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELIX_", "PYTHONPATH"))}
        own = {"PYTHONPATH": str(ROOT), "BENCH_URL": url}
        server = {"BENCH_RESTATE_SERVER": str(restate_server())} if row.name == RESTATE else {}
        return kept | own | server | (row.more if waiting else {})
    script = directory / "agent.yaml"
    write_script(script)
    settings = Settings(
        root=directory,
        broker_url=url,
        store_url=url,
        namespace="bench",
        durability=durability,
        models={"bench": f"{'inline_folder' if row.folder else 'inline'}:{script}"},
    )
    environ = own_programs.build_environ(settings) | (row.more if waiting else {})
    offer(environ)
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), environ["PYTHONPATH"]])
    return environ


def write_script(path: Path) -> None:
    """Write the script of our inline runner: a rule for each kind of turn."""
    rules = []
    for kind, answers in work.ANSWERS.items():
        attempts = []
        for answer in answers:
            said = {"say": {"text": answer, "pieces": len(work.pieces(answer)) if kind == work.STREAM else 1}}
            attempts.append([{"wait": {"seconds": work.HELD_SECONDS}}, said] if kind == work.HELD else [said])
        rules.append({"when": kind, "attempts": attempts})
    path.write_text(yaml.safe_dump(rules, allow_unicode=True), encoding="utf-8")
