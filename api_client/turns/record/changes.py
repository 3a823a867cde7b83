"""The commands by which a worker reads and changes a turn's record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.counters import read_pending
from api_client.contract.events import Body
from api_client.contract.keys import BUCKETS, Keys, keys_of
from api_client.contract.record import attempt_of, decode_turn, is_apart, read_facts, with_changes
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, Link
from api_client.contract.turn import Turn
from api_client.store.commands import (
    CANCEL,
    LINE_UP,
    RELEASE,
    ReleaseReply,
    Word,
    line_script,
    load_script,
    plain_script,
    queue_in,
    release_keys,
    turn_keys,
)
from api_client.store.module_log import ModuleLog
from api_client.turns.record.claim import (
    Behind,
    Claim,
    CommitResult,
    HeldBack,
    JudgingHeldBack,
    LeaseLost,
    ReapResult,
    Refusal,
)
from api_client.turns.record.encoding import EncodedMove, encode, left_behind
from api_client.turns.record.moves import Move, flat
from api_client.turns.record.store_command import Command, Exchange, T, hash_of

log = ModuleLog(__name__)


_LUA = Path(__file__).with_name("lua")
#: Entries of pending counters one fold takes: few enough to hold the store up for a few milliseconds only.
_FOLD_AT_ONCE = 1000
#: Counters of one minute are in the same buckets: the smallest of them, in seconds.
_MINUTE = min(BUCKETS.values())
#: Longest reason that a record keeps of a worker that cannot carry a turn out, in characters.
_LONGEST_LACK = 200
_NAMES = ("claim", "beat", "append", "use_up", "seal", "commit", "reap")
_FORGOT = "the store lost acknowledged writes; see docs/reliability.md, What a store forgets"


class Changes:
    """Builds the commands of one worker.

    Attributes:
        scripts: the Lua scripts, by name.
    """

    def __init__(self, settings: Settings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._patience_ms = int(settings.affinity_patience * 1000)
        self._queue = queue_in(settings)
        paths = {name: _LUA / f"{name}.lua" for name in _NAMES} | {"cancel": CANCEL, "line_up": LINE_UP}
        self.scripts = {name: load_script(path, settings) for name, path in paths.items()}
        #: The settings of a model are a copy of all: made once, not for each command.
        self.scripts["fold"] = plain_script(_LUA / "fold.lua")
        self.scripts["release"] = line_script(RELEASE, settings)

    def _command(
        self,
        script: str,
        turn_id: str,
        session_id: str,
        read: Callable[[Any], T],
        values: dict[str, Word],
        rest: Sequence[Word] = (),
        more_keys: tuple[str, ...] = (),
    ) -> Command[T]:
        keys = turn_keys(self._settings.namespace, turn_id, session_id, self._queue)[: self.scripts[script].keys]
        keys += more_keys
        return Command(read, self.scripts[script].words(turn_id, values, rest), script, keys)

    def claim(
        self,
        turn_id: str,
        session_id: str,
        link: Link,
        token: str,
        taken_at: float,
        *,
        alone: bool = False,
        task: str = "",
        models: str = "",
        lack: str = "",
    ) -> Exchange[Claim | Refusal]:
        """Take the turn for ``link``. ``token`` is new and unique; ``taken_at`` is now, by ``time.monotonic()``.

        ``task`` is the id of the Celery task as which it is carried out; ``models`` are ``Ability.labels``; ``lack`` is
        why this worker cannot carry out the link: then the record keeps that, and the turn is left to others. Raises
        ``ValueError``: ``turn_id`` has the wrong form, or the record is damaged.
        """
        values: dict[str, Word] = {"link": str(link), "token": token, "alone": int(alone), "task": task}
        values |= {"worker": self._worker, "models": models, "lack": lack[:_LONGEST_LACK]}
        values["patience_ms"] = self._patience_ms
        affinity = keys_of(self._settings.namespace, turn_id).affinity(session_id)
        reply = yield self._command("claim", turn_id, session_id, list, values, more_keys=(affinity,))
        if reply[0] == b"refused":
            return Refusal(*(part.decode() for part in reply[1:]))
        record = hash_of(reply[2])
        if is_apart(record):  # long: read by itself, so that the claim takes no longer for it
            record |= yield self._texts(turn_id)
        turn, accepted = decode_turn(record), record.get(b"accepted", b"").decode()
        claim = Claim(turn, link, token, taken_at, _seconds_left(turn, reply), accepted)
        if turn.delivery == 1 and link.task == RUN:
            claim.attempts = {}  # a turn's first delivery has nothing behind it
        return claim

    def _texts(self, turn_id: str) -> Command[dict[bytes, bytes]]:
        """The long texts a holder needs; without those that are not there."""
        names = ("request", "accepted")
        key = keys_of(self._settings.namespace, turn_id).texts(turn_id)

        def read(values: Any) -> dict[bytes, bytes]:
            return {name.encode(): value for name, value in zip(names, values, strict=True) if value is not None}

        return Command(read, ("HMGET", key, *names))

    def beat(self, claim: Claim) -> Command[str]:
        """Keep the lease; the result is why the turn is to stop, or empty. Reading raises ``LeaseLost``."""

        def read(reply: Any) -> str:
            said, stop = reply
            if said != b"held":
                raise LeaseLost
            return str(stop.decode())

        return self._command("beat", *_ids(claim), read, {"token": claim.token})

    def use_up(self, claim: Claim, run: str) -> Command[bool]:
        """Use up the answer to an interruption, for a run with this nonce.

        False: another run used it up, or the turn was cancelled or lost.
        """

        def read(reply: Any) -> bool:
            return bool(reply[0] == b"used")

        return self._command("use_up", *_ids(claim), read, {"token": claim.token, "run": run})

    def append(self, claim: Claim, events: list[Body]) -> Exchange[None]:
        """Add events to the turn's log, in order, each exactly once; before them what the store has forgotten.

        Not for two tasks with one claim. Reading raises ``LeaseLost``.
        """
        numbered: dict[str, Word] = {"token": claim.token, "nth": len(claim.outbox) + 1}
        command = self._command("append", *_ids(claim), _not_done, numbered, flat(events))
        yield from self._numbered(claim, command)

    def commit(self, claim: Claim, move: Move, files: str = "") -> Exchange[CommitResult]:
        """Write what was decided and give the lease back. ``files``: where the session's files now are, if new.

        Reading raises ``LeaseLost``, and a run that was judged at once ``JudgingHeldBack``: nothing was written.
        """

        def read(reply: Any) -> Behind | HeldBack | CommitResult:
            return _not_done(reply) or _committed(reply)

        sent = encode(move, claim.facts(move.attempt), claim.turn.request.prompt, claim.token)
        result: CommitResult = yield from self._numbered(claim, self._commit(claim, sent, read, files, keep=False))
        return result

    def advance(
        self, claim: Claim, move: Move, taken_at: float, task: str = "", files: str = ""
    ) -> Exchange[Claim | CommitResult]:
        """As ``commit``, and keep token and lease for the next link: claimed as by ``claim``, in the same command.

        ``taken_at`` is now, by ``time.monotonic()``; ``task``: as in ``claim``, ``files``: as in ``commit``. The lease
        begins again. The result is the claim of the next link, or ``CommitResult`` where the holder cannot go on: it
        ended or was cancelled, has to wait, or is suspended. Raises as ``commit``.
        """

        def read(reply: Any) -> Behind | HeldBack | Claim | CommitResult:
            if reply[0] not in {b"continued", b"claimed"}:
                return _not_done(reply) or _committed(reply)
            pairs = reply[2]
            values = [value if isinstance(value, bytes) else b"%d" % value for value in pairs[1::2]]
            turn = with_changes(claim.turn, dict(zip(pairs[::2], values, strict=True)))
            following = Claim(turn, move.next or claim.link, claim.token, taken_at, _seconds_left(turn, reply))
            following.outbox = claim.outbox
            if claim.attempts is not None:
                following.attempts = claim.attempts | {move.attempt: known | sent.ahead | sent.facts}
                following.records = claim.records_after(move)
            return following

        known = claim.facts(move.attempt)
        sent = encode(move, known, claim.turn.request.prompt, claim.token)
        command = self._commit(claim, sent, read, files, keep=True, task=task)
        result: Claim | CommitResult = yield from self._numbered(claim, command)
        return result

    def _commit(
        self, claim: Claim, sent: EncodedMove, read: Callable[[Any], T], files: str, *, keep: bool, task: str = ""
    ) -> Command[T]:
        words: dict[str, Word] = {"token": claim.token, "nth": len(claim.outbox) + 1, "keep": int(keep), "task": task}
        words |= {"left": " ".join(claim.left_behind), "files": files}
        words |= sent.arguments()
        command = self._command("commit", *_ids(claim), read, words, sent.rest(), self._files_key(claim, files))
        if not sent.ahead:
            return command
        texts = [part for name, text in sent.ahead.items() for part in (f"{sent.move.attempt}:{name}", text)]
        return replace(command, ahead=("HSET", self._attempts(claim), *texts))

    def _numbered(self, claim: Claim, command: Command[Any]) -> Exchange[Any]:
        """Send a numbered command, and again what the store has forgotten of those before it."""
        claim.outbox.append(command)
        number = len(claim.outbox)
        said: Any = yield from self._sent(claim, command)
        while isinstance(said, Behind):
            log.error("store.forgot", turn_id=claim.turn.turn_id, commands=number - 1 - said.known, hint=_FORGOT)
            for forgotten in claim.outbox[said.known : number - 1]:
                if (yield from self._sent(claim, forgotten)) == HeldBack():
                    raise LeaseLost  # judged before, and forgotten since: the next holder finds it so
            said = yield from self._sent(claim, command)
        if said == HeldBack():
            claim.outbox.pop()
            raise JudgingHeldBack
        return said

    def _sent(self, claim: Claim, command: Command[Any]) -> Exchange[Any]:
        """Send a command, and before it the texts it names. Who takes the turn next removes those nobody names."""
        if not command.ahead:
            return (yield command)
        yield Command(_nothing, command.ahead)
        try:
            return (yield command)
        except LeaseLost:
            if not (yield self.knows(claim.turn.turn_id)):  # dropped meanwhile: they would lie there for ever
                yield Command(_nothing, ("HDEL", command.ahead[1], *command.ahead[2::2]))
            raise

    def _files_key(self, claim: Claim, files: str) -> tuple[str, ...]:
        """The key that a command needs besides the turn's where the session's files change."""
        return (keys_of(self._settings.namespace, claim.turn.turn_id).files,) if files else ()

    def seal(self, claim: Claim, accepted: str, files: str = "") -> Command[bool]:
        """Accept an answer, which is published next; False when the turn was cancelled. ``files``: as in ``commit``.

        From then on the turn can only end with ``accepted``, under any holder. Reading raises ``LeaseLost``;
        ``JudgingHeldBack`` for an answer whose run is not stored yet.
        """

        def read(reply: Any) -> bool:
            [said] = reply
            if said == b"fenced":
                raise LeaseLost
            if said == b"held_back":
                raise JudgingHeldBack
            return bool(said == b"sealed")

        words: dict[str, Word] = {"token": claim.token, "files": files, "accepted": accepted}
        return self._command("seal", *_ids(claim), read, words, more_keys=self._files_key(claim, files))

    def reap(self, turn_id: str, session_id: str, *, may_take: bool) -> Command[ReapResult]:
        """Look at one due turn; ``may_take`` allows taking it from a worker whose lease ran out."""

        def read(reply: Any) -> ReapResult:
            return ReapResult(*(part.decode() for part in reply))

        return self._command("reap", turn_id, session_id, read, {"may_take": int(may_take)})

    def line_up(
        self, turn_id: str, session_id: str, message: str, channel: str, event: str, since: float
    ) -> Command[str]:
        """Have a turn's first run start when its owner's turn has come.

        The result is a word of ``line_up.lua``: of a turn that has ``begun`` the caller announces the next link.
        ``message``, ``channel``, ``event``: ``Announcement``; empty where the queues are not the store's.
        ``since``: when the turn before it in its session came, in seconds since the epoch, or 0.
        """
        values: dict[str, Word] = {"message": message, "channel": channel, "event": event}
        values["since"] = int(since * 1000)
        return self._command("line_up", turn_id, session_id, lambda reply: str(reply[0].decode()), values)

    def release(self, behind: str = "", ended: Sequence[str] = ()) -> Command[ReleaseReply]:
        """Let turns go, as many as there is room for, and give back the places ``ended``.

        The result's ``places`` are those behind this one.
        """
        keys = release_keys(Keys(self._settings.namespace), self._queue)
        return Command(ReleaseReply.read, (behind, *ended), "release", keys)

    def fold(self) -> Exchange[bool]:
        """Add the oldest pending counters to the totals and buckets; True when there may be more."""
        keys = Keys(self._settings.namespace)
        # In this order: another reaper's fold in between is seen.
        folds: bytes = yield Command(lambda found: found or b"0", ("GET", keys.folds))
        entries: list[bytes] = yield Command(list, ("LRANGE", keys.pending, 0, _FOLD_AT_ONCE - 1))
        if not entries:
            return False
        minutes: dict[float, dict[str, int]] = {}
        for at, counted in map(read_pending, entries):
            of_minute = minutes.setdefault(at // _MINUTE * _MINUTE, {})
            for name, by in counted.items():
                of_minute[name] = of_minute.get(name, 0) + by
        lives = self._settings.bucket_lives
        added: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        for at, counted in minutes.items():
            added[keys.totals, 0].update(counted)
            for size, life in lives.items():
                added[keys.bucket(size, at), int(life)].update(counted)
        words: list[Word] = [folds, len(entries), int(self._settings.retention_seconds * 1000)]
        for (_, life), counted in added.items():
            words += [life, len(counted), *counted, *counted.values()]
        names = (keys.pending, keys.folds, keys.finished, *(name for name, _ in added))
        yield Command(_nothing, tuple(words), "fold", names)
        return len(entries) == _FOLD_AT_ONCE

    def cancel(self, turn_id: str, session_id: str) -> Command[None]:
        """Call a turn off, because a later one of its session is to interrupt it."""
        return self._command("cancel", turn_id, session_id, _nothing, {"owner": "", "reason": "cancelled"})

    def turn(self, turn_id: str) -> Exchange[Turn | None]:
        """A turn's record; None when there is none. Raises ``ValueError`` where it is damaged."""
        record = yield Command(hash_of, ("HGETALL", self._record(turn_id)))
        if not record:
            return None
        texts = keys_of(self._settings.namespace, turn_id).texts(turn_id)
        if is_apart(record):
            record |= yield Command(hash_of, ("HGETALL", texts))
        if place := record.get(b"response_in"):
            attempts = keys_of(self._settings.namespace, turn_id).attempts(turn_id)
            record[b"response"] = yield Command(lambda text: text or b"", ("HGET", attempts, place))
        return decode_turn(record)

    def attempts_of(self, claim: Claim) -> Exchange[list[AttemptRecord]]:
        """The attempts of a claimed turn: read once, since then the holder knows what it wrote."""
        if claim.attempts is None:
            key = self._attempts(claim)
            claim.attempts = yield Command(lambda stored: read_facts(hash_of(stored)), ("HGETALL", key))
            for number, facts in claim.attempts.items():
                for name in left_behind(facts):
                    del facts[name]
                    claim.left_behind.append(f"{number}:{name}")
        for number in claim.attempts.keys() - claim.records.keys():
            claim.records[number] = attempt_of(number, claim.attempts[number], claim.turn.request.prompt)
        return [claim.records[number] for number in sorted(claim.attempts)]

    def knows(self, turn_id: str) -> Command[bool]:
        """Return whether the store has this turn's record."""
        return Command(bool, ("EXISTS", self._record(turn_id)))

    def _attempts(self, claim: Claim) -> str:
        return keys_of(self._settings.namespace, claim.turn.turn_id).attempts(claim.turn.turn_id)

    def _record(self, turn_id: str) -> str:
        return keys_of(self._settings.namespace, turn_id).turn(turn_id)


def _seconds_left(turn: Turn, reply: Any) -> float:
    """Time to the deadline by the store's clock, which a claim answers in ms."""
    return turn.deadline_at - int(reply[1]) / 1000


def _not_done(reply: Any) -> Behind | HeldBack | None:
    """Return what a numbered command says when it did nothing: ``LeaseLost`` is raised; None: it was done."""
    match reply[0]:
        case b"fenced":
            raise LeaseLost
        case b"behind":
            return Behind(int(reply[1]))
        case b"held_back":
            return HeldBack()
    return None


def _committed(reply: Any) -> CommitResult:
    _, head, outcome = reply
    return CommitResult(head.decode(), outcome.decode())


def _nothing(_reply: Any) -> None:
    """For a reply that says nothing more."""


def _ids(claim: Claim) -> tuple[str, str]:
    return claim.turn.turn_id, claim.turn.request.session_id
