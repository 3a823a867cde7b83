"""What a user of the Claude CLI waits for, through our relay and worker beside the bare CLI: ``make bench-claude``.

Round by round, in one run, the same chats three ways: ``claude -p``, a process a message; ``claude --input-format
stream-json``, one process a chat; and ours, with its queue, guard and rules, with a sandbox and without. A stub of the
Messages API answers at once, so all but the model is measured. ``--also HELIX_CLAUDE_WARM_SECONDS=0`` measures ours
under this setting too: a process a message. Where no sandbox can be made it does not start.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from api_client.contract.settings.load import load_settings
from tests.claude.running import VERSION, cli
from tests.claude.stub import Stub, says, told
from tests.installation import RelayProcess, installed
from tests.lab.bench.cpu_meter import CpuMeter
from tests.lab.bench.sweeper import swept
from worker.processes.embedded_broker import EmbeddedBroker
from worker.runners.sandbox import bubblewrap

GOOD, BAD = says("Gut. ", "Fertig.\n\n<!-- STEP: done -->"), says("Gut. ", "Fertig.")
#: What a client sees first of an answer, and the answer in the history of the next message.
_FIRST, _ANSWER = "Gut.", "Gut. Fertig."
BARE, KEPT, OURS = "claude -p", "stream-json", "ours, in a sandbox"
WITHOUT = "ours, without one"
MESSAGES = 5
_ARGUMENTS = ("-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages")


@dataclass(frozen=True)
class Took:
    """Milliseconds from asking to the first text and to the end."""

    first: float
    end: float


#: Asks the next message of its chat.
Ask = Callable[[str], Took]


class Way(Protocol):
    """A way to talk with the agent."""

    name: str

    def chat(self) -> AbstractContextManager[Ask]:
        """A new chat."""

    def spent(self) -> tuple[float, float]:
        """CPU in ms so far: of agents, and of everything else that served them."""


class BareMessages:
    """A process a message; the second message continues with ``--resume``."""

    name = BARE

    def __init__(self, program: Path, stub: Stub, home: Path) -> None:
        self._program, self._home = program, home
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": stub.url,
            "ANTHROPIC_API_KEY": "sk-stub",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **{name: value for name, value in os.environ.items() if name == "BENCH_FOLDER"},
        }

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(self._program), *_ARGUMENTS, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=self._home, env=self._environ)

    @contextlib.contextmanager
    def chat(self) -> Iterator[Ask]:
        session, known = str(uuid.uuid4()), False

        def ask(text: str) -> Took:
            nonlocal known
            begun = time.monotonic()
            with self.started("--resume" if known else "--session-id", session) as process:
                known = True
                assert process.stdin
                process.stdin.write(text.encode())
                process.stdin.close()
                took = _heard(process, begun)
            return replace(took, end=_since(begun))  # its answer is whole when it has ended

        yield ask

    def spent(self) -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (used.ru_utime + used.ru_stime) * 1000, 0.0


class BareProcess(BareMessages):
    """A process a chat."""

    name = KEPT

    @contextlib.contextmanager
    def chat(self) -> Iterator[Ask]:
        begun: float | None = time.monotonic()  # the first message waits for its start
        with self.started("--input-format", "stream-json") as process:

            def ask(text: str) -> Took:
                nonlocal begun
                asked, begun = begun or time.monotonic(), None
                assert process.stdin
                line = {"type": "user", "message": {"role": "user", "content": text}}
                process.stdin.write(json.dumps(line).encode() + b"\n")
                process.stdin.flush()
                return _heard(process, asked)

            yield ask
            assert process.stdin
            process.stdin.close()


def _heard(process: subprocess.Popen[bytes], begun: float) -> Took:
    """Read one answer of the CLI; it must be the stub's."""
    first, said = 0.0, ""
    assert process.stdout
    for line in process.stdout:
        first = first or (_since(begun) if b"text_delta" in line and _FIRST.encode() in line else 0.0)
        if b'"type":"result"' in line and (result := json.loads(line))["type"] == "result":
            said = result.get("result", "")
            break
    if not first or not said.startswith(_ANSWER):
        sys.exit(f"bench: the CLI answered {said!r}")
    return Took(first, _since(begun))


def _since(begun: float) -> float:
    return (time.monotonic() - begun) * 1000


class Ours:
    """A client of our relay; worker, relay, broker and store are processes of their own with default settings."""

    def __init__(self, name: str, relay: RelayProcess, meter: CpuMeter) -> None:
        self.name, self._relay, self.spent = name, relay, meter.measure

    @contextlib.contextmanager
    def chat(self) -> Iterator[Ask]:
        messages: list[dict[str, str]] = []
        asked = {"model": "helix-consultant", "stream": True, "stream_mode": "draft", "session_id": str(uuid.uuid4())}

        def ask(text: str) -> Took:
            messages.append({"role": "user", "content": text})
            took = self._ask(json.dumps({**asked, "messages": messages}))
            messages.append({"role": "assistant", "content": _ANSWER})
            return took

        yield ask

    def _ask(self, body: str) -> Took:
        begun, first, last = time.monotonic(), 0.0, b""
        connection = http.client.HTTPConnection("127.0.0.1", self._relay.port, timeout=120)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            response = connection.getresponse()
            while line := response.readline():
                first = first or (_since(begun) if _FIRST.encode() in line else 0.0)
                last = line.strip() or last
        if not first or last != b"data: [DONE]":
            sys.exit(f"bench: the relay answered {response.status} {last.decode()}")
        return Took(first, _since(begun))


#: Way -> figure -> what was measured.
Found = dict[str, dict[str, list[float]]]


def measure(ways: Sequence[Way], stub: Stub, rounds: int, at_once: int, say: Callable[[str], None]) -> Found:
    """Every figure of every way, round by round; a first, unmeasured message warms the machine's caches."""
    found: Found = {way.name: defaultdict(list) for way in ways}
    for number in range(rounds + 1):
        for way in ways if number % 2 else reversed(ways):
            say(f"round {number} of {rounds}: {way.name}" if number else f"once, not measured: {way.name}")
            if not number:
                with way.chat() as ask:
                    ask("Hallo")
                continue
            figures = found[way.name]
            _alone(way, stub, figures)
            _rejected(way, stub, figures)
            begun = time.monotonic()
            with ThreadPoolExecutor(at_once) as pool:
                list(pool.map(lambda _, way=way: _talk(way), range(at_once)))  # type: ignore[misc]
            figures["at_once"].append(at_once * MESSAGES / (time.monotonic() - begun))
    return found


def _talk(way: Way, messages: int = MESSAGES) -> list[Took]:
    with way.chat() as ask:
        return [ask(f"Hallo {number}") for number in range(messages)]


#: Between two new chats, in seconds: what is started ahead is there again, and counted.
_PAUSE = 2.5


def _alone(way: Way, stub: Stub, figures: dict[str, list[float]]) -> None:
    """One chat, and some more first messages, each after a pause."""
    time.sleep(_PAUSE)
    before, begun = way.spent(), time.monotonic()
    talk = _talk(way)
    seconds = time.monotonic() - begun
    time.sleep(_PAUSE)
    after = way.spent()
    if sum(text.startswith("assistant: ") for text in told(stub.requests[-1])) != MESSAGES - 1:
        sys.exit(f"bench: {way.name} has lost its conversation")
    for name, index in (("agent_cpu", 0), ("our_cpu", 1)):
        figures[name].append((after[index] - before[index]) / MESSAGES)
    figures["cpu"].append(figures["agent_cpu"][-1] + figures["our_cpu"][-1])
    figures["alone"].append(MESSAGES / seconds)
    figures["later"] += [took.first for took in talk[1:]]
    figures["first"].append(talk[0].first)
    for _ in range(MESSAGES):
        figures["first"].append(_talk(way, 1)[0].first)
        time.sleep(_PAUSE)


def _rejected(way: Way, stub: Stub, figures: dict[str, list[float]]) -> None:
    """An answer without its marker; the bare CLI is told of it by the second message."""
    asked = len(stub.requests)
    stub.replies = [BAD, GOOD]
    with way.chat() as ask:
        ends = [ask("Hallo").end]
        while len(stub.requests) < asked + 2:
            ends.append(ask("Die Marke des Schritts fehlt.").end)
    figures["retry"].append(sum(ends))


@dataclass(frozen=True)
class Figure:
    """A row of the table.

    ``goal``: what ours may be at most, of a rate at least, as a ratio to the way ``beside``; if that is empty, itself.
    """

    name: str
    told: str
    goal: float | None = None
    beside: str = BARE
    rate: bool = False
    of: Callable[[Sequence[float]], float] = statistics.median
    values: str = ""

    def one(self, figures: dict[str, list[float]]) -> float:
        """The figure of a way."""
        return self.of(figures[self.values or self.name])


def p99(values: Sequence[float]) -> float:
    """The value that one in a hundred exceeds: with fewer than a hundred, the highest."""
    return sorted(values)[-(-len(values) * 99 // 100) - 1]


#: The goals are for ours in a sandbox.
FIGURES = (
    Figure("first", "first text, first message, ms", 0.4),
    Figure("first_p99", "the same, p99", 1.0, of=p99, values="first"),
    Figure("later", "first text, messages 2 to 5, ms", 0.12),
    Figure("retry", "a rejected answer until the repaired one ends, ms", 0.35),
    Figure("cpu", "CPU a message in a chat of five, ms", 0.35),
    Figure("agent_cpu", "of the agent"),
    Figure("our_cpu", "of everything else", 35.0, beside=""),
    Figure("alone", "turns/s, one chat", rate=True),
    Figure("at_once", "turns/s, chats at once", 0.95, beside=KEPT, rate=True),
)


def judged(found: Found) -> dict[str, dict[str, Any]]:
    """Each way of ours -> goal -> its figure, as a ratio if the goal is one, and whether the goal is met. Pure."""
    return {
        name: {figure.name: _judged(figure, figures, found) for figure in FIGURES if figure.goal is not None}
        for name, figures in found.items()
        if name not in {BARE, KEPT}
    }


def _judged(figure: Figure, figures: dict[str, list[float]], found: Found) -> dict[str, Any]:
    value = figure.one(figures) / (figure.one(found[figure.beside]) if figure.beside else 1.0)
    assert figure.goal is not None
    return {
        "value": value,
        "goal": figure.goal,
        "met": value >= figure.goal if figure.rate else value <= figure.goal,
    }


def table(found: Found) -> str:
    """What was found, as a table with its goals. Pure."""
    lines = [f"| | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    goals = judged(found)
    for figure in FIGURES:
        cells = []
        for name, figures in found.items():
            values, one = figures[figure.values or figure.name], figure.one(figures)
            digits = 2 if figure.rate else 0
            cell = f"{one:.{digits}f} [{min(values):.{digits}f}-{max(values):.{digits}f}], n={len(values)}"
            if goal := goals.get(name, {}).get(figure.name):
                most = "at least" if figure.rate else "at most"
                ratio = f"{goal['value']:.2f} of {figure.beside}, " if figure.beside else ""
                verdict = "met" if goal["met"] else "not met"
                cell += f"; {ratio}goal {most} {goal['goal']:g}: **{verdict}**"
            cells.append(cell)
        lines.append(f"| {figure.told} | {' | '.join(cells)} |")
    return "\n".join(lines)


@contextlib.contextmanager
def all_ways(program: Path, stub: Stub, folder: Path, also: Sequence[str]) -> Iterator[list[Way]]:
    """The bare ones and ours, started."""
    home = folder / "home"
    home.mkdir()
    ways: list[Way] = [BareMessages(program, stub, home), BareProcess(program, stub, home)]
    with ExitStack() as stack:
        kinds = {OURS: "HELIX_SANDBOX=required", WITHOUT: "HELIX_SANDBOX=off"}
        kinds |= {f"{OURS}, {change}": f"HELIX_SANDBOX=required {change}" for change in also}
        for number, (kind, changes) in enumerate(kinds.items()):
            root = folder / f"ours-{number}"
            root.mkdir()
            broker = stack.enter_context(EmbeddedBroker(root / "broker"))
            environ = {
                "HELIX_ROOT": str(root),
                "HELIX_NAMESPACE": f"bench-{uuid.uuid4().hex}",  # its end takes what bears this name for its own
                "REDIS_URL": broker.url,
                "HELIX_MODELS": "helix-consultant=claude_cli",
                "HELIX_CLAUDE_PATH": str(program),
                "HELIX_CLAUDE_API_URL": stub.url,
                "HELIX_CLAUDE_API_KEY": "sk-stub",
                **dict(each.split("=", 1) for each in changes.split()),
            }
            installation = stack.enter_context(installed(load_settings(environ)))
            worker, relay = installation.worker(), installation.relay(log=root / "relay.log")
            assert relay.process
            meter = CpuMeter((broker.pid, worker.pid, relay.process.pid), program)
            ways.append(Ours(kind, relay, stack.enter_context(meter)))
        yield ways


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.claude", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="half a minute to a minute each")
    parser.add_argument("--at-once", type=int, default=8, help="chats at once")
    parser.add_argument("--also", action="append", default=[], metavar="SETTINGS", help="see above")
    parser.add_argument("--json", action="store_true", help="print all that was measured")
    options = parser.parse_args()
    if problem := bubblewrap.find_network_obstacle():
        sys.exit(f"bench: what is recommended, a sandbox, cannot be measured here: {problem}")
    if (program := cli()) is None:
        sys.exit("the Claude CLI is not installed here: `make bench-claude` installs it")
    with (
        tempfile.TemporaryDirectory(prefix="turns-claude-", ignore_cleanup_errors=True) as name,
        swept(Path(name)),
        Stub([GOOD]) as stub,
        all_ways(program.resolve(), stub, Path(name), options.also) as ways,
    ):
        found = measure(ways, stub, options.rounds, options.at_once, partial(print, file=sys.stderr, flush=True))
    context = {"cli": VERSION, "rounds": options.rounds, "at_once": options.at_once, "load": os.getloadavg()[0]}
    if options.json:
        print(json.dumps({**context, "found": found, "goals": judged(found)}))
        return
    print(f"Claude CLI {VERSION}, {options.rounds} rounds, {options.at_once} chats at once; ", end="")
    print(f"load {context['load']:.1f} on {os.cpu_count()} cores; median [lowest-highest]\n\n{table(found)}")


if __name__ == "__main__":
    main()
