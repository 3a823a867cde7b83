"""The audit log: who asked for what about which turn, and when. One stream; a line is written before its action.

So nobody acts without leaving a line; the result is in the turn's own record and events.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.orders import Orders, PlacedOrder
from api_client.store import Store

#: Lines one question reads at most.
_MOST = 10_000
#: This many turns of a bulk action are named.
MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One action that was asked for.

    Attributes:
        at: store time, seconds since the epoch.
        action: such as cancel, drop or gc, or a person's decision.
        by: who: ``user@host`` on the command line, ``key:HASH`` through the API.
        turn_id: the turn, or empty for actions on the whole installation.
        bulk: what the lines of one bulk action have in common, else empty.
        detail: how it was asked for, such as the filter of a bulk action.
        refused: why it was not done; empty when it was, or when its process died before it was known.
    """

    at: float
    action: str
    by: str
    turn_id: str = ""
    bulk: str = ""
    detail: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditGroup:
    """Lines of one bulk action, or one line by itself.

    Attributes:
        first: the newest of the lines. count: how many there are. refused: of how many the action was refused.
        turn_ids: the turns of the first ``MOST_NAMED``.
    """

    first: AuditLine
    count: int = 1
    refused: int = 0
    turn_ids: tuple[str, ...] = ()


def grouped(lines: Iterable[AuditLine]) -> list[AuditGroup]:
    """The lines in their order, those of one bulk action as one group where its newest line is."""
    groups: dict[object, AuditGroup] = {}
    for number, line in enumerate(lines):
        name = (line.bulk, line.action) if line.bulk else number
        group = groups.get(name) or AuditGroup(first=line, count=0)
        named = (*group.turn_ids, line.turn_id) if len(group.turn_ids) < MOST_NAMED else group.turn_ids
        refused = group.refused + bool(line.refused)
        groups[name] = replace(group, count=group.count + 1, refused=refused, turn_ids=named)
    return list(groups.values())


class Audit(Orders):
    """Writes and reads the audit log. Each method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.ask
        #: Stream: what operators asked for, by whom and when.
        self._key = store.keys.named("audit")
        self._keep = store.settings.audit_seconds

    async def record(self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = "") -> str:
        """Write a line, and let those go that are older than ``audit_seconds``; returns the line's id."""
        return await self._write({"action": action, "by": by, "turn_id": turn_id, "bulk": bulk, "detail": detail[:500]})

    @asynccontextmanager
    async def place(
        self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = ""
    ) -> AsyncIterator[PlacedOrder]:
        """Write a line before an action. If that raises, or its order is marked, the line says why it was not done."""
        line, order = await self.record(action, by=by, turn_id=turn_id, bulk=bulk, detail=detail), PlacedOrder()
        try:
            yield order
        except Exception as error:
            await self.refuse(line, error)
            raise
        if order.refused:
            await self.refuse(line, order.refused)

    async def refuse(self, line: str, why: str | Exception) -> None:
        """Add to a line, by its id, why its action was not done. Where the store did not answer, nobody knows."""
        if isinstance(why, StoreUnavailable):
            return
        name = "" if isinstance(why, str | HelixError) else f"{type(why).__name__}: "
        await self._write({"of": line, "refused": f"{name}{why}"[:500]})

    async def _write(self, line: dict[Any, Any]) -> str:
        oldest = f"{int((time.time() - self._keep) * 1000)}-0"
        written: bytes = await self._ask(self._redis.xadd(self._key, line, minid=oldest, approximate=True))
        return written.decode()

    async def read(self, *, since: float = 0.0, turn_id: str = "", limit: int = _MOST) -> list[AuditLine]:
        """The newest ``limit`` lines since then (seconds since the epoch), oldest first; of one turn, if named."""
        entries = await self._ask(self._redis.xrevrange(self._key, min=f"{int(since * 1000)}-0", count=_MOST))
        refused: dict[bytes, str] = {}
        found = []
        for entry, fields in entries or []:
            if b"of" in fields:  # is behind its line
                refused[fields[b"of"]] = fields.get(b"refused", b"").decode("utf-8", "replace")
            else:
                read = {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}
                known = {name: read.get(name, "") for name in ("action", "by", "turn_id", "bulk", "detail")}
                at = int(entry.partition(b"-")[0]) / 1000
                found.append(AuditLine(at=at, refused=refused.get(entry, ""), **known))
        return [line for line in found if turn_id in ("", line.turn_id)][:limit][::-1]
