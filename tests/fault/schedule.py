"""A schedule: pretend clients, workers and reapers step in random order on the real Lua commands.

One seed is one schedule: who steps next, what is lost, doubled, reordered or repeated, and how the clock jumps. After
every step ``rules`` judges it; at the end everything is healed and drained, and ``aftermath`` judges what is left.
"""

import json
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import hiredis

from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.events import Body, body_of
from api_client.contract.keys import keys_for_turn
from api_client.contract.phase_work import PHASE_RUN
from api_client.contract.tasks import RUN, VALIDATE, ChainTask
from api_client.contract.turn import TurnRequest
from api_client.store.commands import turn_keys
from api_client.turns.record.transition import flatten_events
from tests.fault import rules, scripts
from tests.fault.aftermath import judge_end
from tests.fault.decisions import CHOICES, RUNS, STRAIGHT, Sent, commit_arguments, read_commit
from tests.fault.rules import ANNOUNCE_MS, LEASE_MS, Step, Violation, rule
from tests.fault.seen import NOTHING, PretendTurn, seen
from tests.fault.wire import Command, Steps

Ask = Generator[list[Command], list[Any], Any]

_LONG_MS, _START_MS = 3_600_000, 1_800_000_000_000
SESSIONS = ("s-0", "s-1")
REQUESTS = {
    session: TurnRequest(model="m", messages=({"role": "user", "content": "?"},), session_id=session).to_json()
    for session in SESSIONS
}
_LOOK, _FORGET, _TAKE_ALL = (scripts.sha(text) for text in (scripts.LOOK, scripts.FORGET, scripts.TAKE_ALL))


@dataclass(slots=True, eq=False)
class Run:
    """A pretend worker's view of its claim, which may be outdated."""

    turn: PretendTurn
    link: ChainTask
    token: str
    #: Command, its arguments, its events; of every link of this claim.
    sent: list[tuple[str, tuple[Any, ...], list[Body]]] = field(default_factory=list)
    #: How many of them were sent when the link began.
    before: int = 0


class Schedule:
    """The world of one seed. ``steps`` runs the schedule, ``trace`` describes what happened."""

    def __init__(self, seed: int, namespace: str, shas: dict[str, str], heard: dict[bytes, list[bytes]]) -> None:
        self.seed = seed
        self._random = Random(seed)
        self._namespace = namespace
        self._shas = shas
        self._heard = heard
        self._now = self._latest = _START_MS
        self._turns: list[PretendTurn] = []
        self._lines: dict[str, list[bytes]] = {session: [] for session in SESSIONS}
        self._due: dict[bytes, int] = {}
        self._inbox: list[bytes] = []
        self._runs: list[Run] = []
        self._healed = False
        self._messages: list[tuple[PretendTurn, ChainTask]] = []
        self._history: list[tuple[str, PretendTurn, tuple[Any, ...]]] = []
        self._bodies: dict[tuple[str, str], tuple[str, bytes]] = {}
        self._keys: dict[str, list[str]] = {}
        self._pieces = 0
        self._trace: list[tuple[Any, ...]] = []
        #: How often each command got each answer, and turns each outcome.
        self.counts: Counter[str] = Counter()

    def steps(self) -> Steps:
        """Yield every command of the schedule up to its judged end. Raises ``Violation`` with the whole schedule.

        Raises:
            Violation: a rule does not hold; the text has the whole schedule.
        """
        try:
            for _ in range(self._random.randint(15, 45)):
                yield from self._step()
            yield from self._drain()
            yield from self._judge_end()
        except Violation as violation:
            raise Violation(f"seed {self.seed}: {violation}\n{self.trace()}") from violation

    def trace(self) -> str:
        return "\n".join(
            f"{number:3} {now - _START_MS:>9} ms  turn {turn.number} {name:7} {_short(args)} -> {_short(reply)}"
            for number, (now, name, turn, args, reply) in enumerate(self._trace)
        )

    # What the world can do

    def _step(self) -> Ask:
        random = self._random
        if random.random() < 0.4:
            self._move_clock()
        dice = random.random()
        if dice < 0.14 or not self._turns:
            yield from self._submit()
        elif dice < 0.42 and self._messages:
            yield from self._receive()
        elif dice < 0.76 and self._runs:
            yield from self._work(random.choice(self._runs))
        elif dice < 0.86 and self._history:
            yield from self._again(random.choice(self._history[-8:] if random.random() < 0.6 else self._history))
        elif dice < 0.88:
            yield from self._cancel(self._one_that("accepted"))
        elif dice < 0.9:
            yield from self._drop(self._one_that("dead"))
        elif dice < 0.912 and (forgetful := [turn for turn in self._turns if turn.appends]):
            yield from self._forget(random.choice(forgetful))
        elif dice < 0.905 or (self._inbox and dice < 0.94):
            yield from self._decide(self._someone())
        else:
            yield from self._reap(self._overdue() or random.choice(self._turns), random.random() < 0.8)

    def _move_clock(self) -> None:
        dice, random = self._random.random(), self._random
        if dice < 0.5:
            self._now += random.randint(1, 400)
        elif dice < 0.85:
            self._now += random.choice((LEASE_MS, LEASE_MS // 2, ANNOUNCE_MS, 2 * ANNOUNCE_MS))
        elif dice < 0.93:
            self._now = max(self._now, min(self._due.values(), default=self._now))
        elif dice < 0.98:
            self._now -= random.choice((50, LEASE_MS, ANNOUNCE_MS, 60_000))
        else:
            self._now += random.choice((60_000, _LONG_MS))
        self._latest = max(self._latest, self._now)

    def _submit(self) -> Ask:
        random = self._random
        number = len(self._turns)
        session = random.choice(SESSIONS)
        turn = PretendTurn(f"turn-{number:032x}", session, number)
        key = random.choice("kl") if random.random() < 0.2 else ""
        body = random.choice(("b1", "b2")) if key else ""
        deadline = _LONG_MS if random.random() < 0.85 else random.randint(1, 8_000)
        policy = random.choice(("reject", "interrupt", *("queue",) * 8))
        budget = 0 if random.random() < 0.9 else 30
        owner, epoch = random.choice("pq"), f"{number:012x}"
        request = (REQUESTS[session], epoch, owner, "de", deadline, policy, body, 2 * _LONG_MS, session)
        phase = int(random.random() < 0.25)
        first = str(ChainTask(PHASE_RUN if phase else RUN, 1))
        digest, before = f"{number + 1:032x}", "0" * 32  # of one earlier message, which no other turn has
        history = (
            (digest, digest, f'{before}{{"role": "user", "content": "before"}}') if random.random() < 0.25 else ("",)
        )
        place = ("", "", "", "", "interactive", 1, 0, *history)
        args = (*request, budget, 0, budget // 2, 0, "m", '{"flow":"v2"}', first, phase, 3, *place, key)
        self._turns.append(turn)
        turn.submit = args
        yield from self._send_submit(turn)

    def _send_submit(self, turn: PretendTurn) -> Ask:
        reply = yield from self._do("submit", turn, *turn.submit)
        owner, body, key = turn.submit[2], turn.submit[6], turn.submit[-1]
        known = self._bodies.get((owner, key)) if key else None
        if reply[0] in {b"repeated", b"conflict"}:
            rule(known, "[4] an idempotency key is known that was never used")
            right = b"repeated" if known and known[0] == body else b"conflict"
            rule(known and reply[0] == right and reply[2] == known[1], "[4] an idempotency key names the wrong turn")
        if reply[0] == b"stored":
            rule(not known, "[4] one idempotency key made two turns")
            if key:
                self._bodies[owner, key] = (body, turn.id)
            if reply[1] == 0:
                self._announce(turn, ChainTask.parse(turn.submit[15]))

    def _announce(self, turn: PretendTurn, link: ChainTask) -> None:
        """Deliver a task's message like Celery: sometimes the message is lost or doubled."""
        dice = self._random.random()
        self._messages += [(turn, link)] * (0 if dice < 0.1 else 2 if dice > 0.9 else 1)

    def _receive(self) -> Ask:
        at = 0 if self._random.random() < 0.6 else self._random.randrange(len(self._messages))
        turn, link = self._messages.pop(at)
        dice = self._random.random()
        if dice < 0.05:
            link = ChainTask(VALIDATE, link.attempt)  # reordered: the second link of the chain comes first
        elif dice < 0.1:
            turn, link = self._random.choice(self._turns), ChainTask(RUN, 1)  # an hour late, or before its time
        yield from self._claim(turn, link)

    def _claim(self, turn: PretendTurn, link: ChainTask) -> Ask:
        token = f"{self._random.getrandbits(96):024x}"
        alone = int(self._healed or self._random.random() < 0.6)
        reply = yield from self._do("claim", turn, str(link), token, "w", alone, "", "", "", 0)
        if reply[0] == b"claimed":
            record = scripts.told_by(reply)
            rule(record[b"token"] == token.encode(), "a claim answered another's record")
            self._runs.append(Run(turn, link, token))
            return self._runs[-1]
        return None

    def _work(self, run: Run) -> Ask:
        dice = self._random.random()
        if dice < 0.12:
            self._runs.remove(run)  # the worker dies
        elif dice < 0.25:
            reply = yield from self._do("beat", run.turn, run.token)
            self._notification(run, reply)
        elif dice < 0.5:
            self._pieces += 1
            said = (f"ä{self._pieces}.{n}" for n in range(1, 3))
            pieces: list[Body] = [AttemptOutput(attempt=run.link.attempt, text=text) for text in said]
            if run.link.task in RUNS:
                reply = yield from self._numbered("append", run, [], pieces[: self._random.randint(1, 2)])
                self._notification(run, reply)
        else:
            choices = CHOICES[run.link.task]
            stopped = run.turn.seen and run.turn.seen.stop and run.link.task in RUNS
            name = "called off" if stopped and self._random.random() < 0.7 else self._random.choice(choices)
            if name in {"accept", "accept at once", "repaired"} and self._random.random() < 0.6:
                yield from self._seal(run, name)
            else:
                yield from self._commit(run, name)

    def _numbered(self, name: str, run: Run, more: list[Any], events: list[Body]) -> Ask:
        """Send a numbered command after the commands that the store has forgotten, as ``TurnCommands`` does."""
        number = len(run.sent) + 1
        own = more if name == "commit" else flatten_events(events)
        run.sent.append((name, (run.token, number, *own), events))
        reply = yield from self._do(name, run.turn, *run.sent[-1][1])
        while reply[0] == b"behind":
            for earlier, args, _ in run.sent[reply[1] : number - 1]:
                yield from self._do(earlier, run.turn, *args)
            reply = yield from self._do(name, run.turn, *run.sent[-1][1])
        return reply

    def _forget(self, turn: PretendTurn) -> Ask:
        """Make the store lose the last answered appends of a running turn's log."""
        at = self._random.randrange(len(turn.appends))
        cmd, seq = turn.appends[at]
        keys = self._keys_of(turn)
        forgot, look = yield [("EVALSHA", _FORGET, 2, *keys[:2], cmd, seq), ("EVALSHA", _LOOK, len(keys), *keys)]
        if isinstance(forgot, hiredis.ReplyError):
            raise Violation(f"the store cannot forget: {forgot}")
        self._trace.append((self._now, "FORGET", turn, (cmd, seq), ["behind", cmd]))
        heard = self._heard.get(f"{keys[0]}:bell".encode(), [])  # a mutant may publish nothing
        del turn.appends[at:], turn.told[seq:], heard[seq - 1 :]  # the first event is not published
        turn.cmd, turn.seen = cmd, seen(look)
        self.counts["forget"] += 1

    def _seal(self, run: Run, name: str) -> Ask:
        """Seal an accepted answer, which is committed at once, later, or by another worker."""
        if run.turn.seen and run.turn.seen.accepted:
            name = run.turn.seen.accepted.decode()
        reply = yield from self._do("seal", run.turn, run.token, "", name, "")
        if reply[0] == b"fenced":
            self._notification(run, reply)
        elif self._random.random() < 0.5:
            yield from self._commit(run, name)

    def _notification(self, run: Run, reply: list[Any]) -> None:
        if reply[0] == b"fenced" and self._random.random() < 0.7:
            self._runs.remove(run)

    def _commit(self, run: Run, name: str) -> Ask:
        if name in {"incomplete", "retry", "retry at once"} and run.link.attempt >= 3:
            name = "reject" if name == "retry" else "unable"
        if run.turn.seen and run.turn.seen.accepted:
            name = run.turn.seen.accepted.decode()
        retries = int((run.turn.seen and run.turn.seen.others[4]) or 0)
        keep = int(self._random.random() < 0.5)
        arguments = commit_arguments(name, run.link, retries, self._random.choice((1, 700, 5_000)))
        move = read_commit(arguments)
        events = [
            body_of(kind, json.loads(data)) for kind, data in zip(move.events[::2], move.events[1::2], strict=True)
        ]
        reply = yield from self._numbered("commit", run, [keep, "", *arguments], events)
        self._runs.remove(run)
        goes_on = reply[0] in {b"continued", b"claimed"}
        if goes_on or reply[0] == b"done":
            said = [event for _, _, events in run.sent[run.before :] for event in events]
            rules.told_whole(run.turn, said if run.link.task in RUNS else None, goes_on)
        if goes_on:
            link = ChainTask.parse(move.next)
            self._runs.append(Run(run.turn, link, run.token, run.sent, len(run.sent)))
        elif reply[0] == b"done":
            self._go_on(run, move, reply)

    def _go_on(self, run: Run, move: Sent, reply: list[Any]) -> None:
        if reply[2]:
            self._announce_head(reply[1])
        elif move.next and not move.delay_ms:
            self._announce(run.turn, ChainTask.parse(move.next))

    def _announce_head(self, head: bytes) -> None:
        if head:
            turn = self._turn_of(head)
            self._announce(turn, ChainTask.parse(turn.submit[15]))

    def _again(self, sent: tuple[str, PretendTurn, tuple[Any, ...]]) -> Ask:
        """Send a command once more, as after a lost reply."""
        name, turn, args = sent
        if name == "submit" and self._random.random() < 0.7:
            return
        if name == "submit":
            yield from self._send_submit(turn)
        else:
            yield from self._do(name, turn, *args)

    def _cancel(self, turn: PretendTurn) -> Ask:
        reply = yield from self._do("cancel", turn, self._owner_of(turn), "cancelled")
        self._announce_head(reply[1])

    def _someone(self) -> PretendTurn:
        """Return a turn to decide about, mostly one that waits for a decision."""
        if self._inbox and self._random.random() < 0.8:
            return self._turn_of(self._random.choice(self._inbox))
        return self._random.choice(self._turns)

    def _decide(self, turn: PretendTurn) -> Ask:
        kind = self._random.choice(("approve", "retry", "reject"))
        decision = f"d{self._random.randrange(10_000)}."
        suspended = turn.seen.suspended_at if turn.seen and self._random.random() < 0.9 else "1"  # of another question
        reply = yield from self._do(
            "decide", turn, self._owner_of(turn), decision, kind, "alice", "", "", "", suspended
        )
        if reply[0] == b"decided":
            self._announce(turn, ChainTask.parse(reply[1].decode()))

    def _drop(self, turn: PretendTurn) -> Ask:
        yield from self._do("drop", turn, self._owner_of(turn))

    def _owner_of(self, turn: PretendTurn) -> str:
        """Return the owner who asks for the turn, now and then a wrong one."""
        return str(turn.submit[2]) if self._random.random() < 0.9 else "somebody"

    def _one_that(self, matters: str) -> PretendTurn:
        """Return a turn, preferably a rare one: dead, or with an answer that is being published."""
        rare = [
            t
            for t in self._turns
            if t.seen and (t.seen.accepted if matters == "accepted" else t.seen.outcome == b"dead")
        ]
        return self._random.choice(rare if rare and self._random.random() < 0.7 else self._turns)

    def _overdue(self) -> PretendTurn | None:
        due = [member for member, score in self._due.items() if score <= self._now]
        return self._turn_of(self._random.choice(due)) if due else None

    def _turn_of(self, turn_id: bytes) -> PretendTurn:
        return self._turns[int(turn_id[5:], 16)]

    def _reap(self, turn: PretendTurn, may_take: bool) -> Ask:
        reply = yield from self._do("reap", turn, int(may_take))
        if reply[0] == b"announce":
            self._announce(turn, ChainTask.parse(reply[1].decode()))
        elif reply[0] == b"interrupt":
            yield from self._cancel(self._turn_of(reply[3]))
        elif reply[0] == b"finished":
            self._announce_head(reply[3])

    # The healed world

    def _drain(self) -> Ask:
        """Finish all turns without further faults, within bounded work."""
        self._healed = True
        for _ in range(40 + 30 * len(self._turns)):
            if self._runs:
                run = self._runs[0]
                yield from self._commit(run, STRAIGHT[run.link.task])
            elif self._messages:
                turn, link = self._messages.pop(0)
                yield from self._claim(turn, link)
            elif self._due:
                soonest = min(self._due, key=lambda member: self._due[member])
                self._now = max(self._now, self._due[soonest])
                self._latest = max(self._latest, self._now)
                yield from self._reap(self._turn_of(soonest), may_take=True)
            else:
                return
        raise Violation("[3, 14] the healed world does not come to rest")

    def _judge_end(self) -> Ask:
        for turn in self._turns:
            if turn.seen and turn.seen.outcome == b"dead" and self._random.random() < 0.5:
                yield from self._drop(turn)
        [found] = yield [("EVALSHA", _TAKE_ALL, 0, f"{self._namespace}:*")]
        stored = {key.decode(): (kind, life, content) for key, kind, life, content in found}
        heard = {bell: self._heard.pop(bell, []) for bell in [b for b in self._heard if b.startswith(self._start)]}
        judge_end(self._namespace, self._turns, stored, heard)
        self.counts.update(f"outcome {turn.seen.outcome.decode()}" for turn in self._turns if turn.seen and turn.stored)

    # One command and its judgement

    @property
    def _start(self) -> bytes:
        return f"{self._namespace}:".encode()

    def _do(self, name: str, turn: PretendTurn, *args: Any) -> Ask:
        self._history.append((name, turn, args))
        keys = self._keys_of(turn)
        look = ("EVALSHA", _LOOK, len(keys), *keys)
        before = (turn.seen or NOTHING)._replace(line=self._lines[turn.session_id], due=self._due, inbox=self._inbox)
        own = list(args)
        if name == "submit":
            owner, key = args[2], own.pop()
            keys = [*keys, keys_for_turn(self._namespace, turn.turn_id).idempotency(owner, key or turn.turn_id)]
        command = ("EVALSHA", self._shas[name], len(keys) + 1, *keys, self._now, turn.turn_id, *own)
        reply, look_after = yield [command, look]
        is_refused = isinstance(reply, hiredis.ReplyError)
        self._trace.append((self._now, name, turn, args, [reply] if is_refused else reply))
        if is_refused:
            raise Violation(f"a command failed: {reply}")
        after = seen(look_after)
        rules.judge(Step(name, self._now, turn, args, reply, before, after), self._lines[turn.session_id], self._latest)
        turn.seen, self._lines[turn.session_id] = after, after.line
        self._due, self._inbox = after.due, after.inbox
        self.counts[f"{name} {reply[0].decode()}"] += 1
        return reply

    def _keys_of(self, turn: PretendTurn) -> list[str]:
        if turn.turn_id not in self._keys:
            self._keys[turn.turn_id] = [*turn_keys(self._namespace, turn.turn_id, turn.session_id)]
        return self._keys[turn.turn_id]


def _short(parts: Any) -> str:
    return " ".join((part.decode() if isinstance(part, bytes) else str(part))[:60] for part in parts)[:200]
