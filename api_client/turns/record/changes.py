"""The commands with which a worker reads and changes a turn's record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.counters import read_pending
from api_client.contract.events import Body
from api_client.contract.keys import BUCKETS, Keys, keys_for_turn
from api_client.contract.record import apply_stored_changes, build_attempt, decode_turn, has_separate_texts, read_facts
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, ChainTask
from api_client.contract.turn import Turn
from api_client.store.commands import (
    CANCEL,
    ENQUEUE,
    RELEASE,
    ReleaseReply,
    Word,
    find_queue,
    load_plain_script,
    load_queue_script,
    load_script,
    release_keys,
    turn_keys,
)
from api_client.store.earlier_messages import READ_HISTORY, join_history
from api_client.store.module_log import ModuleLog
from api_client.turns.record.claim import (
    ClaimRefusal,
    CommitResult,
    HeldBack,
    LeaseClaim,
    LeaseLost,
    LostCommands,
    ReapResult,
    ValidationHeldBack,
)
from api_client.turns.record.encoding import EncodedTransition, encode_transition, find_orphaned
from api_client.turns.record.store_command import Command, Exchange, T, decode_changes, decode_hash
from api_client.turns.record.transition import Transition, flatten_events

log = ModuleLog(__name__)


_LUA = Path(__file__).with_name("lua")
#: Pending counters per fold, few enough to block the store for a few milliseconds only.
_FOLD_AT_ONCE = 1000
#: All counters of one minute fall into the same buckets: the smallest bucket size, in seconds.
_MINUTE = min(BUCKETS.values())
#: In characters.
_LONGEST_LACK = 200
_NAMES = ("claim", "beat", "append", "use_up", "seal", "commit", "reap")
_FORGOT = "the store lost acknowledged writes; see docs/reliability.md, What a store forgets"


class TurnCommands:
    """Builds the store commands with which a worker changes turn records."""

    def __init__(self, settings: Settings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._patience_ms = int(settings.affinity_patience * 1000)
        self._queue = find_queue(settings)
        paths = {name: _LUA / f"{name}.lua" for name in _NAMES} | {"cancel": CANCEL, "enqueue": ENQUEUE}
        self.scripts = {name: load_script(path, settings) for name, path in paths.items()}
        #: The same for all models, so made once.
        self.scripts["read_history"] = load_plain_script(READ_HISTORY)
        self.scripts["fold"] = load_plain_script(_LUA / "fold.lua")
        self.scripts["release"] = load_queue_script(RELEASE, settings)

    def _build_command(
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
        return Command(read, self.scripts[script].build_argv(turn_id, values, rest), script, keys)

    def claim_turn(
        self,
        turn_id: str,
        session_id: str,
        chain_task: ChainTask,
        token: str,
        taken_at: float,
        *,
        alone: bool = False,
        task: str = "",
        models: str = "",
        lack: str = "",
    ) -> Exchange[LeaseClaim | ClaimRefusal]:
        """Build the commands that claim a turn for a task. Their result is the claim or a refusal.

        ``token`` is a new unique fencing token, ``taken_at`` the current ``time.monotonic()`` value. ``alone`` means
        that this process works on nothing else. ``lack`` says why this worker cannot carry out the task; the turn is
        then left to other workers. Raises ``ValueError`` for an invalid turn id or a damaged record.
        """
        values: dict[str, Word] = {"link": str(chain_task), "token": token, "alone": int(alone), "task": task}
        values |= {"worker": self._worker, "models": models, "lack": lack[:_LONGEST_LACK]}
        values["patience_ms"] = self._patience_ms
        affinity = keys_for_turn(self._settings.namespace, turn_id).affinity(session_id)
        reply = yield self._build_command("claim", turn_id, session_id, list, values, more_keys=(affinity,))
        if reply[0] == b"refused":
            return ClaimRefusal(*(part.decode() for part in reply[1:]))
        record = decode_hash(reply[2]) | decode_changes(reply[3])
        if has_separate_texts(record):  # long texts are read separately, to keep the claim fast
            record |= yield self._read_texts(turn_id)
        turn, accepted = (yield from self._decode_record(record)), record.get(b"accepted", b"").decode()
        claim = LeaseClaim(turn, chain_task, token, taken_at, _time_to_deadline(turn, reply), accepted)
        if turn.delivery == 1 and chain_task.task == RUN:
            claim.attempts = {}  # a turn's first delivery has no earlier attempts
        return claim

    def _decode_record(self, record: Mapping[bytes, bytes]) -> Exchange[Turn]:
        turn = decode_turn(record)
        if not (head := record.get(b"history")):
            return turn
        key = keys_for_turn(self._settings.namespace, turn.turn_id).history(turn.request.session_id)
        return join_history(turn, (yield Command(lambda found: found, (head,), "read_history", (key,))))

    def _read_texts(self, turn_id: str) -> Command[dict[bytes, bytes]]:
        names = ("request", "accepted")
        key = keys_for_turn(self._settings.namespace, turn_id).texts(turn_id)

        def read(values: Any) -> dict[bytes, bytes]:
            return {name.encode(): value for name, value in zip(names, values, strict=True) if value is not None}

        return Command(read, ("HMGET", key, *names))

    def renew_lease(self, claim: LeaseClaim) -> Command[str]:
        """Build the command that renews a lease. Its result says why the turn must stop, or is empty."""

        def read(reply: Any) -> str:
            said, stop = reply
            if said != b"held":
                raise LeaseLost
            return str(stop.decode())

        return self._build_command("beat", *_claim_ids(claim), read, {"token": claim.token})

    def use_up(self, claim: LeaseClaim, run: str) -> Command[bool]:
        """Build the command that marks a person's decision as used by the agent run ``run``.

        The result is False if another run used up the answer, or if the turn was cancelled or lost.
        """

        def read(reply: Any) -> bool:
            return bool(reply[0] == b"used")

        return self._build_command("use_up", *_claim_ids(claim), read, {"token": claim.token, "run": run})

    def append_events(self, claim: LeaseClaim, events: list[Body]) -> Exchange[None]:
        """Append events to a turn's log, in order and exactly once. Earlier commands that the store lost are repeated.

        Two tasks must not use the same claim. Raises ``LeaseLost``.
        """
        numbered: dict[str, Word] = {"token": claim.token, "nth": len(claim.outbox) + 1}
        command = self._build_command("append", *_claim_ids(claim), _read_refusal, numbered, flatten_events(events))
        yield from self._send_numbered(claim, command)

    def commit_transition(
        self,
        claim: LeaseClaim,
        transition: Transition,
        taken_at: float,
        *,
        keep: bool = False,
        task: str = "",
        files: str = "",
    ) -> Exchange[LeaseClaim | CommitResult]:
        """Store a state transition, then release the turn, or with ``keep`` claim its next task with the same lease.

        The result is the next claim, or a ``CommitResult`` if the turn was released, ended, or must wait. ``taken_at``
        is the ``time.monotonic()`` value at which the new lease begins, ``task`` the id of the next task, and ``files``
        the name of the new snapshot of the session's files. Raises ``LeaseLost``, or ``ValidationHeldBack`` for a run
        that was validated at once.
        """

        def read(reply: Any) -> LostCommands | HeldBack | LeaseClaim | CommitResult:
            if reply[0] not in {b"continued", b"claimed"}:
                return _read_refusal(reply) or _read_commit(reply)
            turn = apply_stored_changes(claim.turn, decode_changes(reply[2]))
            following = LeaseClaim(
                turn, transition.next or claim.chain_task, claim.token, taken_at, _time_to_deadline(turn, reply)
            )
            following.outbox = claim.outbox
            if claim.attempts is not None:
                following.attempts = claim.attempts | {transition.attempt: known | sent.ahead | sent.facts}
                following.records = claim.records_after(transition)
            return following

        known = claim.known_facts(transition.attempt)
        sent = encode_transition(transition, known, claim.turn.request.prompt, claim.token)
        command = self._build_commit(claim, sent, read, files, keep=keep, task=task)
        result: LeaseClaim | CommitResult = yield from self._send_numbered(claim, command)
        return result

    def _build_commit(
        self,
        claim: LeaseClaim,
        sent: EncodedTransition,
        read: Callable[[Any], T],
        files: str,
        *,
        keep: bool,
        task: str,
    ) -> Command[T]:
        words: dict[str, Word] = {"token": claim.token, "nth": len(claim.outbox) + 1, "keep": int(keep), "task": task}
        words |= {"left": " ".join(claim.left_behind), "files": files}
        words |= sent.build_arguments()
        command = self._build_command(
            "commit", *_claim_ids(claim), read, words, sent.build_rest(), self._files_key(claim, files)
        )
        if not sent.ahead:
            return command
        texts = [part for name, text in sent.ahead.items() for part in (f"{sent.transition.attempt}:{name}", text)]
        return replace(command, ahead=("HSET", self._attempts_key(claim), *texts))

    def _send_numbered(self, claim: LeaseClaim, command: Command[Any]) -> Exchange[Any]:
        claim.outbox.append(command)
        number = len(claim.outbox)
        said: Any = yield from self._send_with_texts(claim, command)
        while isinstance(said, LostCommands):
            log.error("store.forgot", turn_id=claim.turn.turn_id, commands=number - 1 - said.known, hint=_FORGOT)
            for forgotten in claim.outbox[said.known : number - 1]:
                if (yield from self._send_with_texts(claim, forgotten)) == HeldBack():
                    raise LeaseLost  # the next holder finds that answers are held back
            said = yield from self._send_with_texts(claim, command)
        if said == HeldBack():
            claim.outbox.pop()
            raise ValidationHeldBack
        return said

    def _send_with_texts(self, claim: LeaseClaim, command: Command[Any]) -> Exchange[Any]:
        if not command.ahead:
            return (yield command)
        yield Command(_ignore_reply, command.ahead)
        try:
            return (yield command)
        except LeaseLost:
            # The turn was dropped meanwhile, so its texts would never be removed.
            if not (yield self.has_turn(claim.turn.turn_id)):
                yield Command(_ignore_reply, ("HDEL", command.ahead[1], *command.ahead[2::2]))
            raise

    def _files_key(self, claim: LeaseClaim, files: str) -> tuple[str, ...]:
        return (keys_for_turn(self._settings.namespace, claim.turn.turn_id).files,) if files else ()

    def seal_answer(self, claim: LeaseClaim, accepted: str, files: str = "", service: str = "") -> Command[bool]:
        """Build the command that seals an accepted answer before publication. Its result is False for a cancelled turn.

        After the seal the turn can only end with ``accepted``, under any holder. ``service`` is what the run says about
        its model's service. Raises ``LeaseLost``, or ``ValidationHeldBack`` if the run is not stored yet.
        """

        def read(reply: Any) -> bool:
            [said] = reply
            if said == b"fenced":
                raise LeaseLost
            if said == b"held_back":
                raise ValidationHeldBack
            return bool(said == b"sealed")

        words: dict[str, Word] = {"token": claim.token, "files": files, "accepted": accepted, "service": service}
        return self._build_command("seal", *_claim_ids(claim), read, words, more_keys=self._files_key(claim, files))

    def reap_turn(self, turn_id: str, session_id: str, *, may_take: bool) -> Command[ReapResult]:
        """Build the command that handles a due turn. ``may_take`` allows taking over a turn with an expired lease."""

        def read(reply: Any) -> ReapResult:
            return ReapResult(*(part.decode() for part in reply))

        return self._build_command("reap", turn_id, session_id, read, {"may_take": int(may_take)})

    def queue_turn(self, turn_id: str, session_id: str, values: dict[str, Word]) -> Command[str]:
        """Build the command that puts a turn's first run into the fair queue. The command returns a status word.

        After the status ``begun``, the caller announces the task. ``values`` are made by ``build_enqueue_arguments``.
        """
        return self._build_command("enqueue", turn_id, session_id, lambda reply: str(reply[0].decode()), values)

    def release_turns(self, after_slot: str = "", ended_slots: Sequence[str] = ()) -> Command[ReleaseReply]:
        """Build the command that frees the slots of ended turns and starts queued turns while slots are free.

        The result lists the occupied slots after ``after_slot``.
        """
        keys = release_keys(Keys(self._settings.namespace), self._queue)
        return Command(ReleaseReply.parse_reply, (after_slot, *ended_slots), "release", keys)

    def fold_counters(self) -> Exchange[bool]:
        """Add the oldest pending counters to the stored totals. Return True if more may be pending."""
        keys = Keys(self._settings.namespace)
        # This order detects a fold by another reaper.
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
                added[keys.bucket_key(size, at), int(life)].update(counted)
        words: list[Word] = [folds, len(entries), int(self._settings.retention_seconds * 1000)]
        for (_, life), counted in added.items():
            words += [life, len(counted), *counted, *counted.values()]
        names = (keys.pending, keys.folds, keys.finished, *(name for name, _ in added))
        yield Command(_ignore_reply, tuple(words), "fold", names)
        return len(entries) == _FOLD_AT_ONCE

    def cancel_turn(self, turn_id: str, session_id: str) -> Command[None]:
        """Build the command that cancels a turn because a later turn of its session interrupts it."""
        return self._build_command("cancel", turn_id, session_id, _ignore_reply, {"owner": "", "reason": "cancelled"})

    def read_turn(self, turn_id: str) -> Exchange[Turn | None]:
        """Read a turn's record, or return None if it is missing. Raises ``ValueError`` if it is damaged."""
        record = yield Command(decode_hash, ("HGETALL", self._record_key(turn_id)))
        if not record:
            return None
        texts = keys_for_turn(self._settings.namespace, turn_id).texts(turn_id)
        if has_separate_texts(record):
            record |= yield Command(decode_hash, ("HGETALL", texts))
        if place := record.get(b"response_in"):
            attempts = keys_for_turn(self._settings.namespace, turn_id).attempts(turn_id)
            record[b"response"] = yield Command(lambda text: text or b"", ("HGET", attempts, place))
        return (yield from self._decode_record(record))

    def read_attempts(self, claim: LeaseClaim) -> Exchange[list[AttemptRecord]]:
        """Return the attempts of a claimed turn, reading them from the store only once."""
        if claim.attempts is None:
            key = self._attempts_key(claim)
            claim.attempts = yield Command(lambda stored: read_facts(decode_hash(stored)), ("HGETALL", key))
            for number, facts in claim.attempts.items():
                for name in find_orphaned(facts):
                    del facts[name]
                    claim.left_behind.append(f"{number}:{name}")
        for number in claim.attempts.keys() - claim.records.keys():
            claim.records[number] = build_attempt(number, claim.attempts[number], claim.turn.request.prompt)
        return [claim.records[number] for number in sorted(claim.attempts)]

    def has_turn(self, turn_id: str) -> Command[bool]:
        """Build the command whose result says whether the store has a record of a turn."""
        return Command(bool, ("EXISTS", self._record_key(turn_id)))

    def _attempts_key(self, claim: LeaseClaim) -> str:
        return keys_for_turn(self._settings.namespace, claim.turn.turn_id).attempts(claim.turn.turn_id)

    def _record_key(self, turn_id: str) -> str:
        return keys_for_turn(self._settings.namespace, turn_id).turn(turn_id)


def _time_to_deadline(turn: Turn, reply: Any) -> float:
    return turn.deadline_at - int(reply[1]) / 1000


def _read_refusal(reply: Any) -> LostCommands | HeldBack | None:
    """Return why a numbered command was not carried out, or None if it was. Raises ``LeaseLost``."""
    match reply[0]:
        case b"fenced":
            raise LeaseLost
        case b"behind":
            return LostCommands(int(reply[1]))
        case b"held_back":
            return HeldBack()
    return None


def _read_commit(reply: Any) -> CommitResult:
    _, head, outcome = reply
    return CommitResult(head.decode(), outcome.decode())


def _ignore_reply(_reply: Any) -> None:
    """Ignore the reply of a command that has no result."""


def _claim_ids(claim: LeaseClaim) -> tuple[str, str]:
    return claim.turn.turn_id, claim.turn.request.session_id
