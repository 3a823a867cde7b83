"""Chats with the real Claude CLI while everything that serves them is killed: ``make chaos-claude``.

Two workers of two processes each, two relays and a broker, with settings of their own only for impatience; a stub of
the Messages API answers each message with that message's own word. All the time one process, drawn by the seed, gets
SIGKILL. At the end the chats are judged by what the store, the service and the transcripts on disk say. The transcripts
of chats that no kill met are compared with those of the same chats in an installation that keeps no process.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2

from api_client.contract.settings import Settings
from tests.chaos.stage import relay_program, worker_program
from tests.claude.running import VERSION, cli
from tests.claude.stub import Reply, Stub, calls, says, told
from tests.lab.bench.sweeper import swept
from tests.lab.bench.turns.costs import family
from tests.ports import free_port
from tests.support import command_of
from worker.logs import configure_logging
from worker.processes.embedded_broker import EmbeddedBroker
from worker.processes.supervisor import Supervisor
from worker.runners.sandbox.process_tags import process_tags

MESSAGES = 5
#: What the messages of each chat meet: ``p`` is accepted at once, ``r`` is rejected once, ``t`` calls a tool first.
PATTERNS = ("ppppp", "prppr", "ptprp", "rpptp")
#: The answers by which the runs of a message end when nothing disturbs it; a call of a tool ends none.
_ENDS = {"p": ("whole",), "r": ("half", "whole"), "t": ("whole",)}
_WORD = re.compile(r"c\d+m\d")
_WORKERS, _RELAYS = ("worker-a", "worker-b"), ("relay-a", "relay-b")
_VICTIMS = {"agent": 35, "guard": 15, "proxy": 10, "engine": 15, "worker": 10, "relay": 10, "broker": 5}
#: An answer that had left the service this long before its process was killed, in seconds, must not be paid again:
#: until then the CLI may not have said that it was done. Where the machine is busy, as long as 99 of 100 turns took
#: that no kill met.
_TO_FINISH = 0.5
_PATIENCE = httpx2.Timeout(5.0, read=10.0)
_PAUSE, _POLL, _TO_ANSWER = 0.3, 0.05, 180.0


def word(chat: int, number: int) -> str:
    """What a message of a chat contains, and its answer."""
    return f"c{chat}m{number}"


def kind_of(asked: str) -> str:
    """What the message of a word meets."""
    chat, _, number = asked[1:].partition("m")
    return pattern_of(f"c{chat}")[int(number) - 1]


def pattern_of(chat: str) -> str:
    """What the messages of a chat meet, a letter each."""
    return PATTERNS[int(chat[1:]) % len(PATTERNS)]


def chat_of(asked: str) -> str:
    """The chat of a word."""
    return asked.partition("m")[0]


@dataclass
class Service(Stub):
    """Answers the last message of a conversation, and remembers when whole answers left."""

    #: Word and kind of answer -> when all of such an answer had left.
    served_at: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    #: Words of another chat in a request.
    foreign: list[str] = field(default_factory=list)

    def take(self, request: dict[str, Any]) -> Reply:
        """The reply to a model call."""
        asked = _asked(request)
        found = set(_WORD.findall(json.dumps(request["messages"])))
        with self._lock:
            self.foreign += [f"{one} in {asked}" for one in found if chat_of(one) != chat_of(asked)]
        if not asked:
            return says("Ok.")
        kind = _answer_to(request)
        if kind == "call":
            return calls("Glob", pattern="*.md")
        if kind == "half":
            return says(f"Answer {asked}. ", "Half.", delay=0.02)
        return says(f"Answer {asked}. ", "Whole.", "\n\n<!-- STEP: done -->", delay=0.02)

    def served(self, request: dict[str, Any]) -> None:
        """Its whole answer has left."""
        with self._lock:
            self.served_at[_asked(request), _answer_to(request)].append(time.monotonic())


def _answer_to(request: dict[str, Any]) -> str:
    """``call`` of a tool, ``half`` an answer, which is rejected, or the ``whole`` of it."""
    if not (asked := _asked(request)):
        return "whole"
    if kind_of(asked) == "t" and "tool_result" not in json.dumps(request["messages"][-1]):
        return "call"
    return "half" if kind_of(asked) == "r" and f"Answer {asked}." not in "".join(told(request)) else "whole"


def _asked(request: dict[str, Any]) -> str:
    words = [found for text in told(request) if text.startswith("user: ") for found in _WORD.findall(text)]
    return words[-1] if words else ""


@dataclass(frozen=True)
class Kill:
    """A process that was killed: when, what it was, and the turns of the agents at or below it."""

    at: float
    role: str
    turns: frozenset[str]


@dataclass(frozen=True)
class Answered:
    """One message and what became of it: the turn's record, and its attempts; ``at``: when it ended (monotonic)."""

    word: str
    turn: dict[str, Any]
    attempts: list[dict[str, Any]]
    at: float = 0.0

    @property
    def text(self) -> str:
        """What the reader got."""
        return str(self.turn["response"])


@dataclass(frozen=True)
class Judgement:
    """What came of the chats. Each list of faults must be empty."""

    faults: dict[str, list[str]]
    counts: dict[str, Any]

    @property
    def good(self) -> bool:
        return not any(self.faults.values())

    def table(self) -> str:
        """One line a figure."""
        lines = [f"| {name} | {value} |" for name, value in self.counts.items()]
        lines += [f"| {name} | {len(found)} {found[:5] if found else ''} |" for name, found in self.faults.items()]
        return "\n".join(["| | |", "|---|---|", *lines])


class House:
    """One installation: broker, workers and relays under a supervisor."""

    #: What is killed, and how often among a hundred kills.
    roles: Mapping[str, int] = _VICTIMS

    def __init__(self, folder: Path, program: Path, service: Service, **changes: Any) -> None:
        self.root = folder / "root"
        self.roots = [self.root]
        self.root.mkdir(parents=True)
        broker = EmbeddedBroker(folder / "broker")
        self.settings = Settings(
            root=self.root,
            namespace=f"chats-{os.getpid()}-{folder.name}",
            broker_url=broker.url,
            store_url=broker.url,
            models={"consultant": "claude_cli"},
            claude_path=str(program),
            claude_api_url=service.url,
            claude_api_key="sk-stub",
            lease_seconds=5.0,
            idle_seconds=20.0,
            kill_grace_seconds=1.0,
            shutdown_seconds=2.0,
            log_format="json",
            **changes,
        )
        ports = {name: free_port() for name in _RELAYS}
        self.relays = [f"http://127.0.0.1:{port}" for port in ports.values()]
        programs = [broker.build_program()]
        programs += [worker_program(name, self.settings, folder, {}) for name in _WORKERS]
        programs += [relay_program(name, self.settings, port, {}) for name, port in ports.items()]
        logs = folder / "logs"
        logs.mkdir()
        self.supervisor = Supervisor(programs, logs=logs)

    def victims(self, role: str, program: Path) -> list[int]:
        """The processes of a role that live now."""
        if role in {"broker", "relay"}:
            names = ("broker",) if role == "broker" else _RELAYS
            return [pid for name in names if (pid := self.supervisor.pid(name))]
        heads = [pid for name in _WORKERS if (pid := self.supervisor.pid(name))]
        if role == "worker":
            return heads
        found = [pid for head in heads for pid in family(head)]
        if role == "agent":
            return [pid for pid in found if _exe(pid) == program.name]
        program_of = {
            "engine": b"worker.celery_worker",
            "guard": b"worker.runners.sandbox.guard",
            "proxy": b"worker.runners.sandbox.model_proxy",
        }
        told_by = program_of[role]
        return [pid for pid in found if told_by in command_of(pid).split(b"\0")]

    def below(self, victim: int) -> set[int]:
        """The processes that end with a victim, or work for it."""
        return set(family(victim))

    def kill(self, victim: int) -> None:
        """SIGKILL. Raises ``OSError``: it was gone."""
        os.kill(victim, signal.SIGKILL)


def _exe(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def strike(house: House, program: Path, draw: random.Random) -> Kill | None:
    """Kill one process; None when there is none of the role that was drawn."""
    role = draw.choices(list(house.roles), list(house.roles.values()))[0]
    place, found = draw.random(), house.victims(role, program)
    if not found:
        return None
    victim = found[int(place * len(found))]
    try:
        below = house.below(_served_by(victim) if role == "proxy" else victim)
        turns = frozenset(_turn_of(house, mark) for pid, mark in process_tags() if mark and pid in below)
        house.kill(victim)
    except (OSError, ValueError):
        return None
    return Kill(time.monotonic(), role, turns)


def _served_by(proxy: int) -> int:
    """The worker process whose agents reach their service through a process of model proxies: its last argument."""
    return int(command_of(proxy).rstrip(b"\0").rpartition(b"\0")[2])


def _turn_of(house: House, mark: str) -> str:
    """The turn that a process was started for, or that claimed it as a spare."""
    name = mark.partition(".")[0]
    claimed = [place for root in house.roots if (place := root / "projects/sessions/.spares" / name).is_symlink()]
    return claimed[0].readlink().name.rsplit("-", 2)[0] if claimed else name


class Users:
    """All chats of a run, some at once."""

    def __init__(self, house: House, seed: int, at_once: int) -> None:
        token = house.settings.token_path.read_text().strip()
        self._http = httpx2.AsyncClient(timeout=_PATIENCE, headers={"authorization": f"Bearer {token}"})
        self._relays, self._draw = house.relays, random.Random(f"users {seed}")
        self._free = asyncio.Semaphore(at_once)
        self.answered: dict[str, list[Answered]] = {}
        self.lost: list[str] = []

    async def run(self, chats: int) -> None:
        """Carry out all chats."""
        async with self._http, asyncio.TaskGroup() as group:
            for chat in range(chats):
                group.create_task(self._chat(chat))

    async def _chat(self, chat: int) -> None:
        async with self._free:
            messages: list[dict[str, str]] = []
            done = self.answered.setdefault(f"c{chat}", [])
            for number in range(1, MESSAGES + 1):
                asked = word(chat, number)
                messages.append({"role": "user", "content": f"Message {asked}"})
                try:
                    async with asyncio.timeout(_TO_ANSWER):
                        done.append(await self._message(f"c{chat}", asked, messages))
                except TimeoutError:
                    self.lost.append(asked)
                    return
                messages.append({"role": "assistant", "content": done[-1].text})
            if chat % 25 == 0:
                print(f"chat {chat} is over", file=sys.stderr, flush=True)

    async def _message(self, chat: str, asked: str, messages: list[dict[str, str]]) -> Answered:
        headers = {"X-Conversation-ID": chat, "Idempotency-Key": asked}
        body = {"model": "consultant", "messages": messages}
        sent = await self._until("POST", "/v1/turns", json=body, headers=headers)
        path = f"/v1/turns/{sent['turn_id']}"
        while not (turn := await self._until("GET", path)).get("outcome"):
            await asyncio.sleep(_POLL)
        at = turn["finished_at"] + time.monotonic() - time.time()
        return Answered(asked, turn, (await self._until("GET", f"{path}/attempts"))["data"], at)

    async def _until(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        """Ask one relay or the other until one answers."""
        while True:
            with contextlib.suppress(httpx2.HTTPError, ValueError):
                answer = await self._http.request(method, f"{self._draw.choice(self._relays)}{path}", **given)
                if answer.is_success:
                    return dict(answer.json())
                if answer.status_code < httpx2.codes.INTERNAL_SERVER_ERROR:
                    raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
            await asyncio.sleep(_PAUSE)


@dataclass(frozen=True)
class Plan:
    """What to play: a kill ``every`` so many messages (0: none), ``warm_seconds`` for which an idle process is kept.

    Messages, not seconds: on a slow machine kills by the clock come faster than what they killed starts again.
    """

    chats: int = 500
    at_once: int = 6
    every: float = 10.0
    seed: int = 1
    warm_seconds: float = 60.0


async def play(house: House, program: Path, plan: Plan, users_of: type[Users] = Users) -> tuple[Users, list[Kill]]:
    """Carry out all chats of a plan."""
    users, draw, kills = users_of(house, plan.seed, plan.at_once), random.Random(f"kills {plan.seed}"), []
    playing = asyncio.create_task(users.run(plan.chats))
    due = plan.every
    while plan.every and not (await asyncio.wait([playing], timeout=draw.uniform(0, _PAUSE)))[0]:
        if sum(map(len, users.answered.values())) < due:
            continue
        due += plan.every * draw.uniform(0.5, 1.5)
        if kill := await asyncio.to_thread(strike, house, program, draw):
            kills.append(kill)
    await playing
    return users, kills


def transcripts(house: House) -> dict[str, list[str]]:
    """The transcript that the next message of each session would go on with, as lines; empty where there is none."""
    found = {}
    for status in house.root.rglob("status.json"):
        facts = json.loads(status.read_text(encoding="utf-8"))
        transcript = status.parent / "agent" / f"{facts.get('agent_session')}.jsonl"
        found[facts["session_id"]] = transcript.read_text(encoding="utf-8").splitlines() if transcript.exists() else []
    return found


_CHANGING = (
    (re.compile(r"\b(toolu|msg)_\w+"), "ID"),
    (re.compile(r"\bc\d+(?=m\d)"), "CHAT"),
)


def said(transcript: list[str]) -> list[str]:
    """What was said in a transcript, a message in each line, without ids and the chat's number. Pure.

    The other lines are the CLI's own; a resumed one writes its folder and its instructions into it again.
    """
    found = []
    for line in transcript:
        record = json.loads(line)
        if record.get("type") in {"user", "assistant"}:
            text = f"{record['type']} {json.dumps(record['message']['content'])}"
            for pattern, name in _CHANGING:
                text = pattern.sub(name, text)
            found.append(text)
    return found


def words_of_user(transcript: list[str]) -> list[str]:
    """The words of a chat's messages in the order in which a transcript first has them. Pure."""
    users = [record for line in transcript if (record := json.loads(line)).get("type") == "user"]
    return list(dict.fromkeys(found for one in users for found in _WORD.findall(json.dumps(one["message"]))))


class Judge:
    """Judges chats by the store, the service and the disk. Pure."""

    def __init__(
        self,
        answered: dict[str, list[Answered]],
        lost: list[str],
        kills: list[Kill],
        service: Service,
        transcripts: dict[str, list[str]],
        messages: int = MESSAGES,
        to_finish: float = _TO_FINISH,
    ) -> None:
        self._answered, self._kills, self._service, self._transcripts = answered, kills, service, transcripts
        self._messages = messages
        chat_of_turn = {one.turn["turn_id"]: chat for chat, done in answered.items() for one in done}
        #: A host takes along what it has not sealed, also of runs that have ended.
        self._hosts = [kill for kill in kills if kill.role == "host"]
        self._met: dict[str, list[Kill]] = defaultdict(list)
        for kill in kills:
            for chat in {chat_of_turn[turn] for turn in kill.turns if turn in chat_of_turn}:
                self._met[chat].append(kill)
        self._to_finish = max(to_finish, self._slow())
        self._counts: Counter[str] = Counter()
        self._faults: dict[str, list[str]] = {
            "lost": lost,
            "not passed": [],
            "doubled": [],
            "text of another": service.foreign,
            "paid twice": [],
            "conversation differs": [],
            "transcript differs": [],
        }

    def _slow(self) -> float:
        """How long a turn that no kill met took from its whole answer to its end, in seconds: 99 of 100 are faster."""
        served = self._service.served_at
        calm = [one for chat, done in self._answered.items() if chat not in self._met for one in done if one.at]
        took = sorted(one.at - max(served[one.word, "whole"], default=one.at) for one in calm)
        return took[len(took) * 99 // 100] if took else 0.0

    def judge(self, reference: dict[str, list[str]]) -> Judgement:
        """The verdict on all chats. ``reference``: what is said in a chat of each pattern without a kept process."""
        for chat, done in self._answered.items():
            for one in done:
                self._message(one)
                self._payments(one, self._hosts + self._met.get(chat, []))
            if done:
                self._transcript(chat, done, reference)
        self._counts.update(f"killed {kill.role}" for kill in self._kills)
        self._counts["chats that a kill met"] = len(self._met)
        return Judgement(self._faults, {"messages": sum(map(len, self._answered.values())), **self._counts})

    def _message(self, one: Answered) -> None:
        outcome, words = str(one.turn["outcome"]), _WORD.findall(one.text)
        self._counts[outcome] += 1
        self._counts.update(f"attempts {attempt['completion']['evidence'].get('start')}" for attempt in one.attempts)
        if not outcome.startswith("passed"):
            self._faults["not passed"].append(f"{one.word}: {outcome}")
        if words.count(one.word) > 1:
            self._faults["doubled"].append(one.word)
        if set(words) != {one.word}:
            self._faults["text of another"].append(f"{one.word} got {one.text[:60]!r}")

    def _payments(self, one: Answered, kills: list[Kill]) -> None:
        served = self._service.served_at
        for at in chain.from_iterable(sorted(served[one.word, end])[:-1] for end in _ENDS[kind_of(one.word)]):
            last = min(kills, key=lambda kill: abs(kill.at - at), default=None)
            if last and abs(at - last.at) < self._to_finish:
                self._counts[f"paid again, killed within {self._to_finish:.2g} s of the answer"] += 1
            else:
                near = last or min(self._kills, key=lambda kill: abs(kill.at - at), default=None)
                killed = f", {near.role} killed {near.at - at:+.1f} s after the answer" if near else ""
                self._faults["paid twice"].append(one.word + killed)

    def _transcript(self, chat: str, done: list[Answered], reference: dict[str, list[str]]) -> None:
        lines = self._transcripts.get(str(done[-1].turn["session_id"]), [])
        if words_of_user(lines) != [one.word for one in done]:
            self._faults["conversation differs"].append(f"{chat}: {words_of_user(lines)}")
        if chat not in self._met and len(done) == self._messages:
            self._counts["transcripts compared"] += 1
            if said(lines) != reference[pattern_of(chat)]:
                self._faults["transcript differs"].append(chat)


def carry_out(folder: Path, program: Path, plan: Plan) -> Judgement:
    """Play the chats of each pattern without kept processes and kills, then all of a plan, and judge them."""
    with Service([says("Ok.")]) as service:
        house = House(folder / "cold", program, service, claude_warm_seconds=0.0)
        with house.supervisor:
            users, _ = asyncio.run(play(house, program, Plan(chats=len(PATTERNS), every=0.0)))
            found = transcripts(house)
            reference = {
                pattern_of(chat): said(found[done[-1].turn["session_id"]]) for chat, done in users.answered.items()
            }
    with Service([says("Ok.")]) as service:
        house = House(folder / "warm", program, service, claude_warm_seconds=plan.warm_seconds)
        with house.supervisor:
            users, kills = asyncio.run(play(house, program, plan))
            return Judge(users.answered, users.lost, kills, service, transcripts(house)).judge(reference)


def main() -> None:
    """Run, judge and print; exit code 1 where something was lost, doubled, mixed or paid twice."""
    parser = argparse.ArgumentParser(prog="python -m tests.claude.chats", description=__doc__)
    for option in fields(Plan):
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default)
    parser.add_argument("--keep", type=Path, help="leave all files in this new folder")
    options = vars(parser.parse_args())
    keep, plan = options.pop("keep"), Plan(**options)
    if (program := cli()) is None:
        sys.exit("the Claude CLI is not installed here: `make chaos-claude` installs it")
    begun = time.monotonic()
    configure_logging(Settings(log_level="error"))
    with tempfile.TemporaryDirectory(prefix="chats-", ignore_cleanup_errors=True) as name, swept(Path(name)):
        judgement = carry_out(keep or Path(name), program.resolve(), plan)
    print(f"Claude CLI {VERSION}, seed {plan.seed}, {plan.chats} chats, {time.monotonic() - begun:.0f} s\n")
    print(judgement.table())
    sys.exit(0 if judgement.good else 1)


if __name__ == "__main__":
    main()
