"""The audit log: who ordered which action on which turn, and when."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.order_log import Orders, PlacedOrder
from api_client.store import Store

_MOST = 10_000
MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """An entry of the audit log: who ordered which action, and whether the action was refused.

    ``by`` is ``user@host`` on the command line and ``key:HASH`` through the API. ``bulk`` is the id that all entries of
    a bulk action share. ``refused`` says why the action failed.
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
    """Related entries of the audit log: those of one bulk action, or a single entry.

    ``first`` is the newest entry; ``turn_ids`` has the turns of the first ``MOST_NAMED`` entries.
    """

    first: AuditLine
    count: int = 1
    refused: int = 0
    turn_ids: tuple[str, ...] = ()


def group_lines(lines: Iterable[AuditLine]) -> list[AuditGroup]:
    """Group audit entries by bulk action. A group is placed where its newest entry was."""
    groups: dict[object, AuditGroup] = {}
    for number, line in enumerate(lines):
        name = (line.bulk, line.action) if line.bulk else number
        group = groups.get(name) or AuditGroup(first=line, count=0)
        named = (*group.turn_ids, line.turn_id) if len(group.turn_ids) < MOST_NAMED else group.turn_ids
        refused = group.refused + bool(line.refused)
        groups[name] = replace(group, count=group.count + 1, refused=refused, turn_ids=named)
    return list(groups.values())


class AuditLog(Orders):
    """Writes and reads the audit log. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self._redis, self._ask = store.redis, store.await_reply
        self._key = store.keys.key_named("audit")
        self._keep = store.settings.audit_seconds

    async def write_line(self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = "") -> str:
        """Write an entry of the audit log and return its id. Drop entries older than the setting ``audit_seconds``."""
        return await self._append_entry(
            {"action": action, "by": by, "turn_id": turn_id, "bulk": bulk, "detail": detail[:500]}
        )

    @asynccontextmanager
    async def place_order(
        self, action: str, *, by: str, turn_id: str = "", bulk: str = "", detail: str = ""
    ) -> AsyncIterator[PlacedOrder]:
        """Write an entry to the audit log before the ``async with`` block carries out an action.

        If the block fails, the reason is added to the entry.
        """
        line, order = await self.write_line(action, by=by, turn_id=turn_id, bulk=bulk, detail=detail), PlacedOrder()
        try:
            yield order
        except Exception as error:
            await self.add_refusal(line, error)
            raise
        if order.refused:
            await self.add_refusal(line, order.refused)

    async def add_refusal(self, line: str, why: str | Exception) -> None:
        """Add the reason of an action's failure to the action's entry in the audit log."""
        if isinstance(why, StoreUnavailable):
            return
        name = "" if isinstance(why, str | HelixError) else f"{type(why).__name__}: "
        await self._append_entry({"of": line, "refused": f"{name}{why}"[:500]})

    async def _append_entry(self, line: dict[Any, Any]) -> str:
        oldest = f"{int((time.time() - self._keep) * 1000)}-0"
        written: bytes = await self._ask(self._redis.xadd(self._key, line, minid=oldest, approximate=True))
        return written.decode()

    async def read_lines(self, *, since: float = 0.0, turn_id: str = "") -> list[AuditLine]:
        """Return the newest entries after ``since`` (seconds since the epoch), oldest first."""
        entries = await self._ask(self._redis.xrevrange(self._key, min=f"{int(since * 1000)}-0", count=_MOST))
        refused: dict[bytes, str] = {}
        found = []
        for entry, fields in entries or []:
            if b"of" in fields:  # refusals follow their line
                refused[fields[b"of"]] = fields.get(b"refused", b"").decode("utf-8", "replace")
            else:
                read = {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}
                known = {name: read.get(name, "") for name in ("action", "by", "turn_id", "bulk", "detail")}
                at = int(entry.partition(b"-")[0]) / 1000
                found.append(AuditLine(at=at, refused=refused.get(entry, ""), **known))
        return [line for line in found if turn_id in ("", line.turn_id)][::-1]
