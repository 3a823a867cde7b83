"""The Lua commands against the plain Python ``Model``: every reply and everything stored must be the same.

Hypothesis chooses the commands, with stale tokens, repeated numbers, wrong links and owners, and clock jumps in both
directions, and shrinks what it finds to the shortest history.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from api_client.contract.keys import Keys, keys_of
from api_client.contract.tasks import FAIL, FALLBACK, PHASE_RUN, RESUME, RETRY, RUN, VALIDATE, Link
from api_client.store.commands import RESUME_SECONDS, turn_keys
from tests.chaos.checker.counters import folded
from tests.fault import scripts
from tests.fault.decisions import CHOICES, STRAIGHT, commit_arguments, read_commit
from tests.fault.model import Model
from tests.fault.mutants import MUTANTS
from tests.fault.schedule import REQUESTS, SESSIONS
from tests.fault.scripts import ANNOUNCE_MS, LEASE_MS, Mutant
from tests.fault.wire import Command, Wire
from tests.records import pending
from worker.processes.broker import EmbeddedBroker

_NAMESPACE = "machine"
_KEYS = Keys(_NAMESPACE)
_LINKS = [
    Link(task, attempt) for task in (RUN, VALIDATE, RETRY, FALLBACK, FAIL, RESUME, PHASE_RUN) for attempt in (1, 2)
]
#: How far a command's number is ahead of the last one the turn knows: mostly the next, a repeat, or one too far.
_AHEAD = st.sampled_from([1, 1, 1, 1, 0, -1, 2])
_HIDDEN = {
    *("a finished turn never expires", "a dead letter expires", "a dropped dead letter stays"),
    *("an event is not published", "of several events the last is published", "a cancelled turn gave up too"),
    *("a holder that goes on does not learn what changed", "a repeated commit tells but a part of the record"),
    *("a claim does not say that there are long texts", "a long text never expires"),
}
#: What takes a history that these searches seldom come by: the interleaver finds both.
_RARE = {"seal stops no cancel", "commit keeps what was accepted and is long"}
#: The turns and claims a rule may take: few, and mostly unfinished, so that the commands of a history meet each other.
_TURNS = st.runner().flatmap(lambda machine: st.sampled_from(machine.near()))
_CLAIMS = st.runner().flatmap(lambda machine: st.sampled_from(machine.claims[-4:]))
_MOVES = sorted({name for names in CHOICES.values() for name in names} | {"called off"})


class LedgerMachine(RuleBasedStateMachine):
    """Every rule sends one command to the server and to the model, and compares."""

    wire: Wire
    shas: dict[str, str]

    def __init__(self) -> None:
        super().__init__()
        self.wire.ask(("FLUSHALL",))
        self.model = Model(now=1_800_000_000_000, announce_ms=ANNOUNCE_MS, resume_ms=int(RESUME_SECONDS * 1000))
        self.submits: dict[str, tuple[Any, ...]] = {}
        self.claims: list[tuple[str, Link, str]] = []

    @initialize()
    def first(self) -> None:
        self.submit(SESSIONS[0], "p", "queue", 3_600_000, "", "b1", 0, 0)
        self.claim("t0-" + "0" * 32, None, True)

    def near(self) -> list[str]:
        """Each session's first turn, one that waits, and the newest of the finished ones."""
        turns, lines = self.model.turns, self.model.lines.values()
        waiting = [i for line in lines for i in line[1:2]][:1]
        others = [i for i in self.submits if i not in turns or turns[i].text("state") == "finished"]
        return [line[0] for line in lines if line] + waiting + others[-2:]

    def ask(self, name: str, turn_id: str, *args: Any, key: str = "") -> list[Any]:
        """The server's reply, as texts and numbers."""
        session, owner = self.submits[turn_id][:2]
        keys = [*turn_keys(_NAMESPACE, turn_id, session)]
        if name == "submit":
            keys.append(keys_of(_NAMESPACE, turn_id).idempotency(owner, key or turn_id))
        sha = self.shas[name]
        [reply] = self.wire.ask(("EVALSHA", sha, len(keys) + 1, *keys, self.model.now, turn_id, *args))
        assert not isinstance(reply, hiredis.ReplyError), reply
        return [part.decode() if isinstance(part, bytes) else part for part in reply]

    @rule(ms=st.sampled_from([1, 500, LEASE_MS, ANNOUNCE_MS, 20_000, 3_600_000, -1, -LEASE_MS, -60_000]))
    def clock(self, ms: int) -> None:
        self.model.now += ms

    @rule(
        session=st.sampled_from(SESSIONS),
        owner=st.sampled_from("pq"),
        policy=st.sampled_from(["queue", "queue", "queue", "reject", "interrupt"]),
        deadline=st.sampled_from([3_600_000, 3_600_000, 1_000, 7_000]),
        key=st.sampled_from(["", "", "k"]),
        body=st.sampled_from(["b1", "b2"]),
        budget=st.sampled_from([0, 0, 0, 30]),
        phase=st.sampled_from([0, 0, 1]),
    )
    def submit(
        self, session: str, owner: str, policy: str, deadline: int, key: str, body: str, budget: int, phase: int
    ) -> None:
        turn_id = f"t0-{len(self.submits):032x}"
        self.submits[turn_id] = (session, owner, policy, deadline, key, body, budget, phase)
        self.submit_again(turn_id)

    @rule(turn_id=_TURNS)
    def submit_again(self, turn_id: str) -> None:
        session, owner, policy, deadline, key, body, budget, phase = self.submits[turn_id]
        first = "phase.run/1" if phase else "turn.run/1"
        request = (REQUESTS[session], "e", owner, "de", deadline, policy, body if key else "", 9_000_000, session, "")
        reply = self.ask(
            "submit", turn_id, *request, budget, 0, budget // 2, 0, "m", "v2", first, phase, 3, "", "", "", key=key
        )
        assert reply == self.model.submit(turn_id, *self.submits[turn_id])

    @rule(
        turn_id=_TURNS,
        other=st.one_of(st.none(), st.none(), st.sampled_from(_LINKS)),
        alone=st.booleans(),
    )
    def claim(self, turn_id: str, other: Link | None, alone: bool) -> None:
        self._take(turn_id, other, alone)

    def _take(self, turn_id: str, other: Link | None, alone: bool, patient: bool = False) -> tuple[str, Link, str]:
        turn = self.model.turns.get(turn_id)
        if turn and patient:
            self.model.now = max(self.model.now, turn.number("not_before"))
        link = other or (Link.parse(turn.text("next")) if turn and turn.text("next") else Link(RUN, 1))
        claim = (turn_id, link, f"token-{len(self.claims):04}.")
        self.claims.append(claim)
        self.claim_again(claim, alone)
        return claim

    @rule(claim=_CLAIMS, alone=st.booleans())
    def claim_again(self, claim: tuple[str, Link, str], alone: bool) -> None:
        turn_id, link, token = claim
        reply = self.ask("claim", turn_id, str(link), token, "w", int(alone), "", "", "", 0)
        expected = self.model.claim(turn_id, str(link), token, int(alone))
        assert reply[: len(expected)] == expected

    @rule(claim=_CLAIMS)
    def beat(self, claim: tuple[str, Link, str]) -> None:
        turn_id, _, token = claim
        assert self.ask("beat", turn_id, token) == self.model.beat(turn_id, token)

    def _number(self, turn_id: str, ahead: int) -> int:
        turn = self.model.turns.get(turn_id)
        return max(1, (turn.number("cmd") if turn else 0) + ahead)

    @rule(claim=_CLAIMS, ahead=_AHEAD, pieces=st.integers(1, 2))
    def append(self, claim: tuple[str, Link, str], ahead: int, pieces: int) -> None:
        turn_id, _, token = claim
        number = self._number(turn_id, ahead)
        reply = self.ask("append", turn_id, token, number, *["attempt.output", '{"attempt":1,"text":"ä"}'] * pieces)
        assert reply == self.model.append(turn_id, token, number, ["attempt.output"] * pieces)

    @rule(claim=_CLAIMS)
    def seal(self, claim: tuple[str, Link, str]) -> None:
        """The answer is accepted; a run that was judged at once is committed next."""
        turn_id, _, token = claim
        turn = self.model.turns.get(turn_id)
        at_once = turn is not None and (turn.text("token"), turn.text("state")) == (token, "running")
        run = Link.parse(turn.text("next")) if turn and at_once else None
        if run and run.task == PHASE_RUN:  # its verification is a link of its own
            return
        assert self.ask("seal", turn_id, token, "", "accept") == self.model.seal(turn_id, token, "accept")
        if run:
            self._commit(claim, run, "accept at once")

    @rule(
        claim=_CLAIMS,
        ahead=_AHEAD,
        name=st.sampled_from(_MOVES),
        delay=st.sampled_from([1, 5_000]),
        keep=st.sampled_from([0, 1]),
    )
    def commit(self, claim: tuple[str, Link, str], ahead: int, name: str, delay: int, keep: int) -> None:
        """The link is committed; with ``keep`` its holder goes on with the next one."""
        turn_id, link, token = claim
        if turn := self.model.turns.get(turn_id):
            link = Link.parse(turn.text("next")) if turn.text("token") == token else link
        if name not in (*CHOICES[link.task], "called off"):
            name = CHOICES[link.task][0]
        self._commit(claim, link, name, ahead, delay, keep)

    def _commit(
        self, claim: tuple[str, Link, str], link: Link, name: str, ahead: int = 1, delay: int = 1, keep: int = 0
    ) -> None:
        turn_id, _, token = claim
        number = self._number(turn_id, ahead)
        arguments = commit_arguments(name, link, 0, delay)
        reply = self.ask("commit", turn_id, token, number, keep, "", *arguments)
        expected = self.model.commit(turn_id, token, number, keep, read_commit(arguments))
        assert reply[: len(expected)] == expected
        if reply[0] in {"claimed", "went_on"}:
            assert scripts.told_by(reply).get(b"token") == token.encode()

    @rule(turn_id=_TURNS, may_take=st.sampled_from([1, 1, 0]))
    def reap(self, turn_id: str, may_take: int) -> None:
        assert self.ask("reap", turn_id, may_take) == self.model.reap(turn_id, may_take)

    @rule(turn_id=_TURNS, may_take=st.sampled_from([1, 1, 0]))
    def reap_when_due(self, turn_id: str, may_take: int) -> None:
        self.model.now = max(self.model.now, self.model.due.get(turn_id, 0))
        self.reap(turn_id, may_take)

    @rule(
        turn_id=_TURNS,
        picks=st.lists(st.integers(0, 11), min_size=1, max_size=6),
        patient=st.booleans(),
        took=st.sampled_from([1, 1, 1, 1_500, 3_600_000]),
        keep=st.sampled_from([0, 1]),
    )
    def work(self, turn_id: str, picks: list[int], patient: bool, took: int, keep: int) -> None:
        """What mostly happens: link after link is claimed, carried out and committed, the last one after a time."""
        for number, pick in enumerate(picks):
            claim = self._held(turn_id) or self._take(turn_id, None, True, patient)
            if number and not self._held(turn_id):
                break
            task = Link.parse(self.model.turns[turn_id].text("next")).task if self._held(turn_id) else claim[1].task
            choices = CHOICES[task]
            name = choices[pick % len(choices)] if pick > 5 else STRAIGHT[task]
            if name == "accept" and pick % 2:
                self.seal(claim)
            self.model.now += took * (number == len(picks) - 1)
            self.commit(claim, 1, name, 5_000, keep)

    def _held(self, turn_id: str) -> tuple[str, Link, str] | None:
        """The claim that holds the turn."""
        turn = self.model.turns.get(turn_id)
        return next((claim for claim in self.claims if turn and claim[2] == turn.text("token")), None)

    @rule(turn_id=_TURNS, alone=st.booleans())
    def die(self, turn_id: str, alone: bool) -> None:
        """The next link is claimed, the worker dies, and a reaper takes the turn when the lease is over."""
        self._take(turn_id, None, alone)
        self.reap_when_due(turn_id, 1)

    @rule(turn_id=_TURNS, owner=st.sampled_from(["", "p", "q"]))
    def cancel(self, turn_id: str, owner: str) -> None:
        assert self.ask("cancel", turn_id, owner, "cancelled") == self.model.cancel(turn_id, owner)

    @rule(
        turn_id=_TURNS,
        owner=st.sampled_from(["", "p", "q"]),
        decision=st.sampled_from(["one", "two"]),
        kind=st.sampled_from(["approve", "retry", "reject"]),
    )
    def decide(self, turn_id: str, owner: str, decision: str, kind: str) -> None:
        reply = self.ask("decide", turn_id, owner, decision, kind, "alice", "note", "")
        assert reply == self.model.decide(turn_id, owner, decision, kind)

    @rule(turn_id=_TURNS, decision=st.sampled_from(["one", "two", "three"]))
    def park(self, turn_id: str, decision: str) -> None:
        """A turn is judged, parked and decided on."""
        for name in ("complete", "park"):
            self.commit(self._held(turn_id) or self._take(turn_id, None, True, True), 1, name, 5_000, 0)
        self.decide(turn_id, "", decision, "approve")

    @rule(turn_id=_TURNS, owner=st.sampled_from(["", "p", "q"]))
    def drop(self, turn_id: str, owner: str) -> None:
        assert self.ask("drop", turn_id, owner) == self.model.drop(turn_id, owner)

    @invariant()
    def stored_is_what_the_model_says(self) -> None:
        model, ids = self.model, list(self.model.turns)
        queues, entries, *turns = self._read(ids)
        due, dead, inbox, *lines = queues
        assert {k.decode(): int(v) for k, v in zip(inbox[::2], inbox[1::2], strict=True)} == model.inbox
        assert {k.decode(): int(v) for k, v in zip(due[::2], due[1::2], strict=True)} == model.due
        assert {turn_id.decode() for turn_id in dead} == model.dead
        assert [[turn_id.decode() for turn_id in line] for line in lines] == [model.lines.get(s, []) for s in SESSIONS]
        counted: Counter[str] = Counter()
        for turn_id, (record, texts, log) in zip(ids, turns, strict=True):
            turn, stored = model.turns[turn_id], {k.decode(): v.decode() for k, v in {**record, **texts}.items()}
            assert {name: stored.get(name, "") for name in turn.record} == turn.record
            assert "request" in stored
            events = [json.loads(line) for _, fields in log for line in fields[1].split(b"\n")]
            assert [event["kind"] for event in events] == turn.log
            counted.update(folded(stored, events))
        assert +pending(entries) == counted

    def _read(self, ids: list[str]) -> list[Any]:
        queues: list[Command] = [
            ("EVAL", "return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')", 1, _KEYS.due),
            ("ZRANGE", _KEYS.dead, 0, -1),
            ("EVAL", "return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')", 1, _KEYS.inbox),
            *(("LRANGE", _KEYS.session(session), 0, -1) for session in SESSIONS),
        ]
        turns: list[Command] = []
        for i in ids:
            turns += [("HGETALL", _KEYS.turn(i)), ("HGETALL", _KEYS.texts(i)), ("XRANGE", _KEYS.log(i), "-", "+")]
        replies = self.wire.ask(*queues, ("LRANGE", _KEYS.pending, 0, -1), *turns)
        at = len(queues) + 1
        records = zip(replies[at::3], replies[at + 1 :: 3], replies[at + 2 :: 3], strict=True)
        return [replies[: at - 1], replies[at - 1], *records]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A server for this machine alone."""
    with EmbeddedBroker(tmp_path_factory.mktemp("state-machine")) as server:
        yield server


def machine(server: EmbeddedBroker, texts: dict[str, str]) -> type[LedgerMachine]:
    """The machine on a server, with these command texts."""
    wire = Wire(str(server.socket), lambda _bell, _wire: None)
    wire.ask(("CONFIG", "SET", "appendonly", "no"), *(("SCRIPT", "LOAD", text) for text in texts.values()))
    shas = {name: scripts.sha(text) for name, text in texts.items()}
    return type("Machine", (LedgerMachine,), {"wire": wire, "shas": shas})


#: Many short searches see more than a long one: the examples of one search resemble each other.
QUICK = settings(
    max_examples=25,
    stateful_step_count=50,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SEARCHES = 12
#: Within so many searches every mutant must be found.
_ENOUGH = 40

#: Some mutants of each command. What is published, counted per day, kept how long or answered besides the
#: first word is the interleaver's to see, and what takes a rare history.
_SOME = [each for each in [mutant for mutant in MUTANTS if mutant.name not in _HIDDEN][::4] if each.name not in _RARE]


@pytest.mark.parametrize("mutant", _SOME, ids=[mutant.name for mutant in _SOME])
def test_the_model_differs_from_this_mutant(server: EmbeddedBroker, mutant: Mutant) -> None:
    texts, unshrunk = scripts.command_texts(mutant), settings(QUICK, phases=[Phase.generate])

    def search_all() -> None:
        for number in range(_ENOUGH):
            search(server, texts, number, unshrunk)

    with pytest.raises(AssertionError):
        search_all()


@pytest.mark.parametrize("number", range(SEARCHES))
def test_the_commands_answer_and_store_what_the_model_says(server: EmbeddedBroker, number: int) -> None:
    search(server, scripts.command_texts(), number, QUICK)


def search(server: EmbeddedBroker, texts: dict[str, str], number: int, how: settings) -> None:
    """The same number makes the same search."""
    run_state_machine_as_test(seed(number)(machine(server, texts)), settings=how)
