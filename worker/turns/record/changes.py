"""The commands by which a worker reads and changes a turn's record, each as a value. Pure but for the bucket's clock.

Every change is one Lua command. A lost reply is no problem: a claim is recognised by its token, a command of a token
holder by its number, and everything else may happen twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import structlog

from api_client.contract.commands import CANCEL, command_text, common_settings, turn_keys
from api_client.contract.event_kinds import Body, data_of
from api_client.contract.keys import keys_of
from api_client.contract.record import decode_attempts, decode_turn
from api_client.contract.settings import Settings
from api_client.contract.tasks import Link
from api_client.contract.turn import AttemptRecord, Turn
from worker.turns.record.claim import Behind, Claim, Committed, Fenced, Reaped, Refusal
from worker.turns.record.command import Command, Exchange, Word
from worker.turns.transitions.moves import Move

log = structlog.get_logger()

T = TypeVar("T")

_LUA = Path(__file__).with_name("lua")
_NAMES = ("claim", "beat", "append", "seal", "commit", "reap")
_FORGOT = "the store lost acknowledged writes; see docs/reliability.md, What a store forgets"


class Changes:
    """Builds the commands of one worker.

    Attributes:
        scripts: the whole text of each Lua script, by name.
    """

    def __init__(self, settings: Settings, worker: str) -> None:
        self._settings = settings
        self._worker = worker
        self._common = common_settings(settings)
        paths = {name: _LUA / f"{name}.lua" for name in _NAMES} | {"cancel": CANCEL}
        self.scripts = {name: command_text(path) for name, path in paths.items()}

    def _command(
        self, script: str, turn_id: str, session_id: str, words: tuple[Word, ...], read: Callable[[Any], T]
    ) -> Command[T]:
        keys = turn_keys(self._settings.namespace, turn_id, session_id, time.time())
        bell = keys_of(self._settings.namespace, turn_id).bell(turn_id)
        return Command(read, (bell, turn_id, self._common, *words), script, tuple(keys))

    @property
    def _lease_ms(self) -> int:
        return int(self._settings.lease_seconds * 1000)

    def claim(
        self, turn_id: str, session_id: str, link: Link, token: str, taken_at: float, *, alone: bool = False
    ) -> Command[Claim | Refusal]:
        """Take the turn for ``link``. ``token`` is new and unique; ``taken_at`` is now, by ``time.monotonic()``.

        Raises:
            ValueError: this is no turn id. Reading the reply: the record is damaged.
        """

        def read(reply: Any) -> Claim | Refusal:
            if reply[0] == b"refused":
                return Refusal(reply[1].decode())
            return _claimed(reply, link, token, taken_at)

        words = (str(link), token, self._lease_ms, json.dumps(self._worker), int(alone), self._settings.strikes)
        return self._command("claim", turn_id, session_id, words, read)

    def beat(self, claim: Claim) -> Command[str]:
        """Keep the lease; the result is why the turn is called off, or empty. Reading raises ``Fenced``."""

        def read(reply: Any) -> str:
            said, stop = reply
            if said != b"held":
                raise Fenced
            return str(stop.decode())

        return self._command("beat", *_ids(claim), (claim.token, self._lease_ms), read)

    def append(self, claim: Claim, events: list[Body]) -> Exchange[None]:
        """Add events to the turn's log, in order, each exactly once. Reading raises ``Fenced``."""
        words: tuple[Word, ...] = (claim.token, claim.outbox.number, *_flat(events))
        yield from self._numbered(claim, self._command("append", *_ids(claim), words, _fenced_or_behind))

    def commit(self, claim: Claim, move: Move) -> Exchange[Committed]:
        """Write what was decided and give the lease back. Reading raises ``Fenced``: nothing was written."""

        def read(reply: Any) -> Behind | Committed:
            return _fenced_or_behind(reply) or _committed(reply)

        result: Committed = yield from self._numbered(claim, self._commit(claim, move, 0, read))
        return result

    def advance(self, claim: Claim, move: Move, taken_at: float) -> Exchange[Claim | Committed]:
        """As ``commit``, and keep token and lease for the next link: claimed as by ``claim``, in the same command.

        ``taken_at`` is now, by ``time.monotonic()``. The lease begins anew. The result is the claim of the next link,
        or ``Committed`` where the holder cannot go on: the turn ended or was called off, has to wait, or is parked.
        """

        def read(reply: Any) -> Behind | Claim | Committed:
            if reply[0] != b"claimed":
                return _fenced_or_behind(reply) or _committed(reply)
            taken = _claimed(reply, move.next or claim.link, claim.token, taken_at)
            taken.outbox = claim.outbox
            return taken

        result: Claim | Committed = yield from self._numbered(claim, self._commit(claim, move, self._lease_ms, read))
        return result

    def _commit(self, claim: Claim, move: Move, keep_ms: int, read: Callable[[Any], Behind | T]) -> Command[Behind | T]:
        words: tuple[Word, ...] = (claim.token, claim.outbox.number, keep_ms, move.to_json(), *_flat(move.events))
        return self._command("commit", *_ids(claim), words, read)

    def _numbered(self, claim: Claim, command: Command[Any]) -> Exchange[Any]:
        """Send a numbered command, and again what the store has forgotten of those before it."""
        number = claim.outbox.number
        claim.outbox.add(command)
        said: Any = yield command
        while isinstance(said, Behind):
            log.error("store.forgot", turn_id=claim.turn.turn_id, commands=number - 1 - said.known, hint=_FORGOT)
            for forgotten in claim.outbox.between(said.known, number):  # noqa: UP028 (a list takes no results)
                yield forgotten
            said = yield command
        return said

    def seal(self, claim: Claim, accepted: str) -> Command[bool]:
        """Accept an answer, which is published next; False when the turn was called off. Reading raises ``Fenced``."""

        def read(reply: Any) -> bool:
            [said] = reply
            if said == b"fenced":
                raise Fenced
            return bool(said == b"sealed")

        return self._command("seal", *_ids(claim), (claim.token, accepted), read)

    def reap(self, turn_id: str, session_id: str, *, may_take: bool) -> Command[Reaped]:
        """Look at one due turn; ``may_take`` allows taking it from a worker whose lease ran out."""
        words = (int(may_take), self._lease_ms, self._settings.strikes)

        def read(reply: Any) -> Reaped:
            return Reaped(*(part.decode() for part in reply))

        return self._command("reap", turn_id, session_id, words, read)

    def cancel(self, turn_id: str, session_id: str) -> Command[None]:
        """Call a turn off, because a later one of its session is to interrupt it."""
        return self._command("cancel", turn_id, session_id, ("", "cancelled"), _nothing)

    def turn(self, turn_id: str) -> Command[Turn | None]:
        """A turn's record; None when there is none. Reading raises ``ValueError`` where it is damaged."""
        return Command(
            lambda stored: decode_turn(_mapping(stored)) if stored else None, ("HGETALL", self._record(turn_id))
        )

    def attempts(self, turn_id: str) -> Command[list[AttemptRecord]]:
        """The turn's attempts, oldest first. Reading raises ``ValueError`` where they are damaged."""
        key = keys_of(self._settings.namespace, turn_id).attempts(turn_id)
        return Command(lambda stored: decode_attempts(_mapping(stored)), ("HGETALL", key))

    def next_link(self, turn_id: str) -> Command[Link | None]:
        """The link that comes next for a turn; None when there is none."""

        def read(link: Any) -> Link | None:
            return Link.parse(link.decode()) if link else None

        return Command(read, ("HGET", self._record(turn_id), "next"))

    def session_of(self, turn_id: str) -> Command[str]:
        """The id of a turn's session; empty when there is no such turn."""
        return Command(lambda found: found.decode() if found else "", ("HGET", self._record(turn_id), "session_id"))

    def knows(self, turn_id: str) -> Command[bool]:
        """Whether the store has this turn's record."""
        return Command(bool, ("EXISTS", self._record(turn_id)))

    def _record(self, turn_id: str) -> str:
        return keys_of(self._settings.namespace, turn_id).turn(turn_id)


def _claimed(reply: Any, link: Link, token: str, taken_at: float) -> Claim:
    now, record = int(reply[1]) / 1000, _mapping(reply[2:])
    turn, accepted = decode_turn(record), record.get(b"accepted", b"").decode()
    return Claim(turn, link, token, taken_at, turn.deadline_at - now, accepted)


def _fenced_or_behind(reply: Any) -> Behind | None:
    """What a numbered command says when it did nothing: ``Fenced`` is raised; None: it was done."""
    if reply[0] == b"fenced":
        raise Fenced
    return Behind(int(reply[1])) if reply[0] == b"behind" else None


def _committed(reply: Any) -> Committed:
    _, head, outcome = reply
    return Committed(head.decode(), outcome.decode())


def _nothing(_reply: Any) -> None:
    """For a reply that says nothing more."""


def _mapping(pairs: Any) -> dict[bytes, bytes]:
    """A hash: connections give it as a mapping, or flat as it comes over the wire."""
    return dict(pairs) if isinstance(pairs, dict) else dict(zip(pairs[::2], pairs[1::2], strict=True))


def _ids(claim: Claim) -> tuple[str, str]:
    return claim.turn.turn_id, claim.turn.request.session_id


def _flat(events: list[Body]) -> list[str]:
    return [part for body in events for part in (body.KIND, json.dumps(data_of(body)))]
