"""Every number that a script is given may be 0, -0, a fraction or an extreme: no call fails, nor the one after it.

A script that fails for a number once may fail for everybody from then on: what it was to settle stays, and is tried
before each submit. So real calls are caught where they leave, with the state that they find, and each number is varied.
"""

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import hiredis
import pytest
import redis
from redis.exceptions import NoScriptError, ResponseError

from api_client.client import TurnsClient
from api_client.contract.completion import ErrorKind, Verdict
from api_client.contract.event_kinds import AttemptOutput
from api_client.contract.notification import Notification
from api_client.contract.settings import Settings
from api_client.contract.turn import Priority
from api_client.pauses.pause import Pause
from api_client.relay_state.submission_limits import OwnerLimits, SubmissionLimits
from api_client.store.commands import load_queue_script
from api_client.turns.record.lease_renewal import LeaseRenewal
from tests.integration import engine
from tests.integration.engine import FIRST, GOOD, NO_MARKER, Bench, ends, says
from tests.integration.lua.by_hand import claimed, request
from tests.integration.lua.test_scripts import SCRIPTS, as_sent
from tests.on_loop import Ledger, OnLoop
from tests.support import wait_until
from worker.turns.leases.reaper import Reaper

VALUES = (
    *("0", "-0", "0.4", "-0.4", "0.5", "1.5", "-1", "1e-9", "2147483648", "9007199254740993", "9223372036854775807"),
    *("9223372036854775808", "1e18", "1e300", "-1e300"),
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
#: So often each argument of each script is varied, on whatever state it is called.
_OFTEN = 5
#: Scripts that are given no number, and the common parts of the others.
_WITHOUT = {
    "beat",
    "cancel",
    "drop",
    "outline",
    "queue_position",
    "read_history",
    "release",
    "select",
    "sweep",
    "tally",
    "use_up",
    "write_call",  # but how long to keep it: a retention and a month
}
_WITHOUT |= {"history", "fair_queue", "pauses", "record", "turn"}


def counts_arguments(name: str, number: int) -> bool:
    """Whether ARGV[number] says how many of the others belong together, or which of them: those are of the caller."""
    if name == "fold":
        return number in {1, 2} or number > 4
    declared = " ".join(re.findall(r"^-- args: (.*)$", SCRIPTS[name].read_text(), re.MULTILINE)).split()
    return number - 2 in {at for at, each in enumerate(declared) if each.startswith("n_")}


def varied(argument: bytes) -> list[bytes]:
    """The argument with one number of it in each variation: it is one, or JSON that holds some."""
    text = argument.decode(errors="replace")
    if _NUMBER.fullmatch(text):
        return [value.encode() for value in VALUES]
    if text[:1] not in {"[", "{"}:
        return []
    found = [match.span(1) for match in re.finditer(r"(?:[:,\[] ?)(-?\d+(?:\.\d+)?)(?=[,\]}])", text)]
    return [f"{text[:begin]}{value}{text[end:]}".encode() for begin, end in found for value in VALUES]


def short(settings: Settings) -> Settings:
    """Of a worker whose turns are soon lost."""
    return replace(settings, lease_seconds=0.5)


class Varying:
    """Watches the calls of scripts that leave this process, and makes each of them with other numbers first.

    That happens in another database of the server, into which the keys of the call are copied.
    """

    def __init__(self, store: redis.Redis, settings: Settings) -> None:
        path = store.connection_pool.connection_kwargs["path"]
        self._store, self._aside = store, redis.Redis(unix_socket_path=path, db=1)
        self._names = dict[str, str]()
        for each in (settings, short(settings)):
            texts = {name: as_sent(path, each) for name, path in SCRIPTS.items()}
            texts["release"] = load_queue_script(SCRIPTS["release"], each).text
            self._names |= {hashlib.sha1(text.encode()).hexdigest(): name for name, text in texts.items()}
        self._often, self._lock, self._busy = Counter[tuple[str, int]](), threading.Lock(), threading.local()
        self.tried, self.failed = Counter[str](), list[str]()

    def packed(self, pack: Callable[..., bytes]) -> Callable[..., bytes]:
        def packing(words: Any, *more: Any) -> bytes:
            word = words[0].encode() if isinstance(words[0], str) else words[0]
            if word == b"EVALSHA" and not getattr(self._busy, "now", False):
                with self._lock:
                    self._busy.now = True
                    try:
                        self._try([each if isinstance(each, bytes) else str(each).encode() for each in words])
                    finally:
                        self._busy.now = False
            return pack(words, *more)

        return packing

    def _try(self, words: list[bytes]) -> None:
        sha, many = words[1].decode(), int(words[2])
        name, keys = self._names.get(sha, ""), words[3 : 3 + many]
        for place in range(3 + many, len(words) if name else 0):
            number = place - 2 - many
            if self._often[sha, number] >= _OFTEN or counts_arguments(name, number):
                continue
            for other in varied(words[place]):
                self._copy(keys)
                changed = [*words[:place], other, *words[place + 1 :]]
                for what, call in (("varied", changed), ("the one after it", words)):
                    try:
                        self._aside.execute_command(*call)
                    except NoScriptError:
                        return  # it comes again
                    except ResponseError as error:
                        self.failed.append(f"{name} argument {number} = {other[:80]!r}, {what}: {error}")
                self.tried[name] += 1
            self._often[sha, number] += 1

    def _copy(self, keys: list[bytes]) -> None:
        pipe = self._store.pipeline(transaction=False)
        self._aside.flushdb()
        for key in dict.fromkeys(keys):
            pipe.copy(key, key, destination_db=1)
        pipe.execute()


@pytest.fixture
def settings(private_settings: Settings) -> Settings:
    budgets = {"all": 10.0, "owner:*": 1.0, "model:scripted": 5.0}
    return replace(private_settings, budgets=budgets, reap_seconds=20.0)


@pytest.fixture
def varying(store: redis.Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Varying:
    made = Varying(store, settings)
    monkeypatch.setattr(hiredis, "pack_command", made.packed(hiredis.pack_command))
    monkeypatch.setattr(engine, "nothing_blocks", lambda _loop: nullcontext())  # what is tried here holds it up
    return made


async def play(settings: Settings, client: TurnsClient, store: redis.Redis, tried: Counter[str]) -> None:
    """Have every script that is given a number called."""
    limits = OwnerLimits(per_minute=60, unfinished=5, stored_bytes=10_000)
    assert not await SubmissionLimits(client.store).admit_turns("o", limits, ["0-a"], size=100, cost=0.5)
    await client.notifications.put(Notification(kind="turn.dead", subject="x", at=1.0))
    bench = Bench(settings, client)
    try:
        for number in range(3):
            await bench.outcome(says(NO_MARKER), says(GOOD), session_id=f"s{number}", at_once=1, weight=2)
        busy = [ends(Verdict.ERROR, kind) for kind in (ErrorKind.TRANSIENT, ErrorKind.LIMIT)]
        for number, each in enumerate(busy):
            turn_id = await bench.submit(each, session_id=f"e{number}", priority=Priority.BACKGROUND.value)
            bench.carry_out_one(FIRST, turn_id, session_id=f"e{number}")
        turn = await bench.suspended(session_id="p")
        await client.inbox.decide_turn(turn.turn_id, "approve", by="me", suspended_at=turn.suspended_at)
    finally:
        bench.close()
    await client.pauses.set_pause(Pause(what="model", name="scripted", reason="x"), seconds=60)
    await client.pauses.end_all(by="me")
    for number in range(2):
        turn_id = await client.submitter.submit(request(session_id="l", at_once=1), idempotency_key=f"k{number}")
    first = await client.submitter.submit(request(session_id="lost"))
    ledger = Ledger(short(settings), "holder")
    claim = claimed(ledger, first, session_id="lost")
    ledger.append_events(claim, [AttemptOutput(attempt=1, text="Ja.")])
    LeaseRenewal(short(settings), store).renew_leases([claim])
    reaper = OnLoop(lambda: Reaper(short(settings), "w", lambda *_: None))

    async def lost() -> bool:
        reaper.recall_turns()
        reaper.reap_turns()
        return (await client.reader.read_turn(first)).state.value == "queued" and tried["postpone"] > 0 < tried["fold"]

    await wait_until(lost)
    await client.spending.read_today()


async def test_no_number_makes_a_script_fail_nor_the_call_after_it(
    settings: Settings, client: TurnsClient, store: redis.Redis, varying: Varying
) -> None:
    await play(settings, client, store, varying.tried)
    assert SCRIPTS.keys() - varying.tried.keys() == _WITHOUT
    assert not varying.failed, "\n".join(varying.failed)
