"""Chats on hosts that share no folder, while their workers are killed: ``make chaos-objects``.

Two workers and two relays, each with a HELIX_ROOT of its own, SeaweedFS and a broker. All the time one process, drawn
by the seed, gets SIGKILL; with ``--hosts`` each worker is a host in a network namespace, and hosts lose their power.
With ``--claude`` the real CLI answers against a stub of its service, and the chats are judged as those of ``make
chaos-claude``; else the scripted agent answers, and what is judged is whether each session's current snapshot holds the
files of all its messages, and was uploaded by the last holder.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import redis

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from tests.chaos.stage import relay_program, worker_program
from tests.claude import chats
from tests.claude.chats import MESSAGES, PATTERNS, Judge, Judgement, Kill, Plan, Service, Users, pattern_of, said, word
from tests.claude.running import VERSION, cli
from tests.claude.stub import says
from tests.constants import set_constants
from tests.lab.bench.sweeper import swept
from tests.objects.hosts import NetHost, Network, lacking, network
from tests.objects.seaweedfs import ObjectServer, seaweedfs
from tests.ports import free_port
from worker.logs import configure_logging
from worker.plugins.object_store.objects import ObjectStoreClient, read_contents
from worker.plugins.object_store.snapshots import Snapshot
from worker.processes.embedded_broker import EmbeddedBroker
from worker.processes.program import Program
from worker.processes.supervisor import Supervisor

_WORKERS, _RELAYS = ("worker-a", "worker-b"), ("relay-a", "relay-b")
_TO_START = 60.0


def script(number: int) -> str:
    """The scripted agent's part: each message is answered by its word, and by a file of it; some at the second try."""
    rules = []
    for chat in range(number):
        for message in range(1, MESSAGES + 1):
            own, kind = word(chat, message), chats.kind_of(word(chat, message))
            file = {"write": {"path": f"output/{own}.csv", "content": own}}
            whole = [file, {"say": {"text": f"Answer {own}. Whole.\n\n<!-- STEP: done -->", "seconds": 0.2}}]
            half = [file, {"say": f"Answer {own}. Half."}]
            rules.append({"when": f"Message {own}", "attempts": [half, whole] if kind == "r" else [whole]})
    return json.dumps(rules)


class Apart(chats.House):
    """One installation on hosts that have nothing in common but broker and object store."""

    #: An answer that left so long before its process was killed, in seconds, must not be paid again.
    to_finish = 0.5

    def __init__(self, folder: Path, server: ObjectServer, **changes: Any) -> None:
        self.root = folder / "root"
        broker = EmbeddedBroker(folder / "broker")
        roots = {name: folder / name / "root" for name in (*_WORKERS, *_RELAYS)}
        self.roots = list(roots.values())
        for root in (self.root, *self.roots):
            root.mkdir(parents=True)
        url = self._url(broker)
        self.settings = Settings(
            root=roots[_RELAYS[0]],
            namespace=f"apart-{os.getpid()}",
            broker_url=url,
            store_url=url,
            files=server.files,
            files_endpoint=server.url,
            lease_seconds=5.0,
            idle_seconds=20.0,
            kill_grace_seconds=1.0,
            shutdown_seconds=2.0,
            log_format="json",
            api_keys=("sk-chats",),
            **changes,
        )
        ports = {name: free_port() for name in _RELAYS}
        self.relays = [f"http://127.0.0.1:{port}" for port in ports.values()]
        environ = dict(server.environment)
        set_constants(environ, "api_client.web.identity.access", TURNS_PER_MINUTE=0)
        programs = [self._broker(broker)]
        programs += [
            self._worker(worker_program(name, replace(self.settings, root=roots[name]), folder / name, environ))
            for name in _WORKERS
        ]
        for name, port in ports.items():
            programs.append(relay_program(name, replace(self.settings, root=roots[name]), port, environ))
        logs = folder / "logs"
        logs.mkdir()
        self.supervisor = Supervisor(programs, logs=logs)

    def _url(self, broker: EmbeddedBroker) -> str:
        return broker.url

    def _broker(self, broker: EmbeddedBroker) -> Program:
        return broker.build_program()

    def _worker(self, program: Program) -> Program:
        return program


class OnHosts(Apart):
    """Each worker is a host in a network namespace of its own; what is killed is a host, now and then a relay."""

    roles: Mapping[str, int] = {"host": 80, "relay": 20}
    #: The recording of a run that is not sealed yet falls with its host (docs/sessions.md).
    to_finish = 2.0

    def __init__(self, folder: Path, server: ObjectServer, net: Network, **changes: Any) -> None:
        self._address, self._port = net.address, free_port()
        self._hosts = dict(zip(_WORKERS, net.hosts, strict=True))
        super().__init__(folder, server, open_broker="allowed", **changes)

    def _url(self, broker: EmbeddedBroker) -> str:
        return f"redis://{self._address}:{self._port}/0"

    def _broker(self, broker: EmbeddedBroker) -> Program:
        network = ("--port", str(self._port), "--bind", self._address, "--protected-mode", "no")
        return replace(broker.build_program(), command=[*broker.build_server_command(), *network])

    def _worker(self, program: Program) -> Program:
        return replace(program, command=[*self._hosts[program.name].within, *program.command])

    def victims(self, role: str, program: Path) -> list[int]:
        """The head of each host's processes; relays run on no host."""
        return super().victims("worker" if role == "host" else role, program)

    def below(self, victim: int) -> set[int]:
        """All processes of the host."""
        host = self._host_of(victim)
        return set(host.pids()) if host else super().below(victim)

    def kill(self, victim: int) -> None:
        """The host loses its power; its disk stays."""
        host = self._host_of(victim)
        return host.power_off() if host else super().kill(victim)

    def _host_of(self, pid: int) -> NetHost | None:
        return next((host for host in self._hosts.values() if pid in host.pids()), None)


class ByKey(Users):
    """Users with a key: relays on several hosts have no operator's token in common."""

    def __init__(self, house: chats.House, seed: int, at_once: int) -> None:
        house.settings.token_path.parent.mkdir(parents=True, exist_ok=True)
        house.settings.token_path.write_text("sk-chats")
        super().__init__(house, seed, at_once)


async def snapshots(house: Apart, sessions: Mapping[str, str]) -> dict[str, Snapshot]:
    """The current snapshot of each chat, by the store; ``sessions``: chat to session id."""
    async with TurnsClient(house.settings) as client:
        return {chat: await client.session_files.of(session) for chat, session in sessions.items()}


def transcripts(house: Apart, found: Mapping[str, Snapshot], sessions: Mapping[str, str]) -> dict[str, list[str]]:
    """The transcript that the next message of each session would go on with, as its snapshot has it, in lines."""
    lines = {}
    for chat, snapshot in found.items():
        status = json.loads(content(house, snapshot, "status.json") or b"{}")
        transcript = content(house, snapshot, f"agent/{status.get('agent_session')}.jsonl")
        lines[sessions[chat]] = transcript.decode().splitlines()
    return lines


def content(house: Apart, snapshot: Snapshot, path: str) -> bytes:
    """A file of a snapshot; empty where it has none."""
    file = snapshot.manifest.files.get(path)
    return read_contents(ObjectStoreClient(house.settings), file.pack, [file])[0] if file else b""


def uploaders(house: Apart, users: Users, found: Mapping[str, Snapshot]) -> list[str]:
    """Chats whose current snapshot was not uploaded by the last holder of their last message."""
    wrong = []
    store = redis.Redis.from_url(house.settings.redis_url)
    for chat, done in users.answered.items():
        if not done or chat not in found:
            continue
        turn_id = str(done[-1].turn["turn_id"])
        token = store.hget(Keys(house.settings.namespace).turn(turn_id), "last_token")
        assert isinstance(token, bytes)
        owner = f"{turn_id}.{hashlib.sha256(token).hexdigest()[:16]}"
        pointer = found[chat].pointer
        if pointer is None or pointer.name.split("/")[1].rpartition(".")[0] != owner:
            wrong.append(f"{chat}: {pointer and pointer.name}, not {owner}")
    store.close()
    return wrong


async def downloads(house: Apart, users: Users) -> list[str]:
    """Files of answers that no relay sends as they were written."""
    wrong = []
    async with httpx2.AsyncClient(headers={"authorization": "Bearer sk-chats"}, timeout=30) as http:
        for one in (one for done in users.answered.values() for one in done):
            path = f"/v1/turns/{one.turn['turn_id']}/files/{one.word}.csv"
            until = time.monotonic() + _TO_START
            while True:  # one of the relays may have been killed just now
                said = "no relay answers"
                for relay in house.relays:
                    with suppress(httpx2.HTTPError):
                        said = (await http.get(f"{relay}{path}")).text
                        break
                if said == one.word or time.monotonic() > until:
                    break
                await asyncio.sleep(0.3)
            if said != one.word:
                wrong.append(f"{one.word}: {said[:80]}")
    return wrong


def judged(house: Apart, users: Users, kills: list[Kill], found: Mapping[str, Snapshot]) -> Judgement:
    """The verdict on scripted chats."""
    faults: dict[str, list[str]] = {"lost": users.lost, "not passed": [], "forked": []}
    counts: Counter[str] = Counter(f"killed {kill.role}" for kill in kills)
    for chat, done in users.answered.items():
        files = found[chat].manifest.files if chat in found else {}
        for one in done:
            counts[str(one.turn["outcome"])] += 1
            counts["deliveries lost"] += sum(int(attempt.get("deliveries", 1)) > 1 for attempt in one.attempts)
            if not str(one.turn["outcome"]).startswith("passed"):
                faults["not passed"].append(f"{one.word}: {one.turn['outcome']}")
            kept = [path for path in files if path.endswith(f"/{one.word}.csv")]
            if not kept:
                faults["forked"].append(one.word)
    faults["late uploads taken"] = uploaders(house, users, found)
    faults["downloads differ"] = asyncio.run(downloads(house, users))
    return Judgement(faults, {"messages": sum(map(len, users.answered.values())), **counts})


@dataclass(frozen=True)
class Played:
    """What came of a run."""

    house: Apart
    users: Users
    kills: list[Kill]
    sessions: dict[str, str]
    found: dict[str, Snapshot]


@contextmanager
def played(
    folder: Path,
    server: ObjectServer,
    program: Path,
    plan: Plan,
    make: Callable[..., Apart] = Apart,
    **changes: Any,
) -> Iterator[Played]:
    """Hold all chats of a plan; the installation still runs."""
    house = make(folder, server, **changes)
    with house.supervisor:
        users, kills = asyncio.run(chats.play(house, program, plan, ByKey))
        sessions = {chat: str(done[-1].turn["session_id"]) for chat, done in users.answered.items() if done}
        yield Played(house, users, kills, sessions, asyncio.run(snapshots(house, sessions)))


def scripted(folder: Path, server: ObjectServer, plan: Plan) -> Judgement:
    """Chats with the scripted agent."""
    rules = folder / "script.yaml"
    rules.write_text(script(plan.chats), encoding="utf-8")
    with played(folder / "apart", server, Path("none"), plan, models={"consultant": f"scripted:{rules}"}) as it:
        return judged(it.house, it.users, it.kills, it.found)


def claude(folder: Path, server: ObjectServer, program: Path, plan: Plan, net: Network | None = None) -> Judgement:
    """Chats with the real CLI: of each pattern in one shared folder without a kill, then all of the plan apart.

    ``net``: its hosts run the workers.
    """
    with Service([says("Ok.")]) as service:
        shared = chats.House(folder / "shared", program, service, claude_warm_seconds=0.0)
        with shared.supervisor:
            users, _ = asyncio.run(chats.play(shared, program, Plan(chats=len(PATTERNS), every=0.0)))
            heard = chats.transcripts(shared)
            reference = {pattern_of(c): said(heard[done[-1].turn["session_id"]]) for c, done in users.answered.items()}
    with Service([says("Ok.")], address=net.address if net else "127.0.0.1") as service:
        changes = {
            "models": {"consultant": "claude_cli"},
            "claude_path": str(program),
            "claude_api_url": service.url,
            "claude_api_key": "sk-stub",
            "claude_warm_seconds": plan.warm_seconds,
        }
        make = partial(OnHosts, net=net) if net else Apart
        with played(folder / "apart", server, program, plan, make, **changes) as it:
            lines = transcripts(it.house, it.found, it.sessions)
            judge = Judge(it.users.answered, it.users.lost, it.kills, service, lines, to_finish=it.house.to_finish)
            judgement = judge.judge(reference)
            late = uploaders(it.house, it.users, it.found)
            return Judgement({**judgement.faults, "late uploads taken": late}, judgement.counts)


def main() -> None:
    """Run, judge and print; exit code 1 where something was lost, forked or late."""
    parser = argparse.ArgumentParser(prog="python -m tests.objects.chats", description=__doc__)
    for name, default in (("chats", 40), ("at_once", 4), ("every", 10.0), ("seed", 1), ("warm_seconds", 60.0)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--claude", action="store_true", help="the real CLI answers")
    parser.add_argument("--hosts", action="store_true", help="with --claude: workers in network namespaces, which fall")
    parser.add_argument("--keep", type=Path, help="leave all files in this new folder")
    options = vars(parser.parse_args())
    keep, real, on_hosts = options.pop("keep"), options.pop("claude"), options.pop("hosts")
    plan, begun = Plan(**options), time.monotonic()
    configure_logging(Settings(log_level="error"))
    if on_hosts and (why := lacking() if real else "--hosts asks for --claude"):
        sys.exit(why)
    if real and (program := cli()) is None:
        sys.exit("the Claude CLI is not installed here: `make chaos-claude` installs it")
    with tempfile.TemporaryDirectory(prefix="apart-", ignore_cleanup_errors=True) as name, swept(Path(name)):
        folder = keep or Path(name)
        with ExitStack() as stack:
            net = stack.enter_context(network(folder / "apart", _WORKERS)) if on_hosts else None
            server = stack.enter_context(seaweedfs(folder / "objects", net.address if net else "127.0.0.1"))
            os.environ |= server.environment
            judgement = (
                claude(folder, server, program.resolve(), plan, net)
                if real and program
                else scripted(folder, server, plan)
            )
    who = f"Claude CLI {VERSION}" if real else "scripted agent"
    print(f"{who}, seed {plan.seed}, {plan.chats} chats, {time.monotonic() - begun:.0f} s\n")
    print(judgement.table())
    sys.exit(0 if judgement.good else 1)


if __name__ == "__main__":
    main()
