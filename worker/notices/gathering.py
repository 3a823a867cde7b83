"""Finding what to call about: turns that ended or wait for a person, workers that are gone, versions rolled back.

Turns are found in the lists that the ledger keeps anyway, from a time noted in the store on. The time moves on after
the notices are in the outbox, so none is left out; the same notice is put once, however often it is found.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import structlog

from api_client.contract.issues.turn_error import TurnError
from api_client.contract.keys import Keys
from api_client.contract.notices import Notice
from api_client.contract.settings import Settings
from api_client.contract.worker_reports import WorkerReport, missing
from api_client.notices import Notices
from api_client.policies.flows import GUARD, Flows, RolledBack
from api_client.store import Store
from worker.notices.targets import wanted

log = structlog.get_logger()

_BATCH = 200
#: When the store's clock was set back, turns of so long before are looked at again, in ms.
_OVERLAP_MS = 60_000
#: A worker that is silent for this long is gone, in seconds; one gone for a day was reported before.
_GONE_SECONDS, _OLD_SECONDS = 30.0, 86_400.0
_FAILED = frozenset({"failed", "incomplete", "refused", "error", "expired"})
_FIELDS = ("outcome", "model", "session_id", "error", "attempt", "parked_at", "finished_at", "state")


async def gather(settings: Settings, store: Store, outbox: Notices) -> None:
    """Put everything new into the outbox. Raises ``StoreUnavailable``."""
    for shard in range(settings.shards):
        keys = Keys(settings.namespace, shard)
        await _turns(settings, store, outbox, keys, keys.finished, _of_ended)
        await _turns(settings, store, outbox, keys, keys.inbox, _of_parked)
    seconds, _ = await store.ask(store.redis.time())  # as workers report by the store's clock
    found = [*gone_workers(await _reports(store, Keys(settings.namespace).workers), float(seconds))]
    if len(settings.flow_version) > 1:
        found += rolled_back_by_itself(settings, await Flows(store).said(), time.time())
    for notice in found:
        if wanted(settings, notice.kind):
            await outbox.put(notice)


async def _turns(
    settings: Settings,
    store: Store,
    outbox: Notices,
    keys: Keys,
    listed: str,
    notices_of: Callable[[Settings, str, dict[str, str]], Iterator[Notice]],
) -> None:
    """The turns that came into a list since the time noted for it. The first look notes the time only."""
    redis = store.redis
    seconds, micros = await store.ask(redis.time())
    now = int(seconds) * 1000 + int(micros) // 1000
    life = int(settings.retention_seconds)
    since = int(await store.ask(redis.get(keys.notices_looked(listed))) or 0)
    if not since:
        await store.ask(redis.set(keys.notices_looked(listed), now, ex=life))
        return
    since = now - _OVERLAP_MS if since > now else since
    while True:
        # Up to now, exclusively: a turn that comes in this very millisecond must not be left out.
        found: Any = await store.ask(
            redis.zrangebyscore(listed, since, f"({now}", start=0, num=_BATCH, withscores=True)
        )
        if not found:
            break
        last = int(found[-1][1])
        same = await store.ask(redis.zrangebyscore(listed, last, last))
        ids = dict.fromkeys([*(name for name, _ in found), *same])
        for turn_id, record in await _records(store, keys, [name.decode() for name in ids]):
            try:
                found_notices = list(notices_of(settings, turn_id, record))
            except (ValueError, TypeError, AttributeError) as error:  # its record is damaged: the others go on
                log.warning("notice.not_made", turn_id=turn_id, error=type(error).__name__)
                continue
            for notice in found_notices:
                if wanted(settings, notice.kind):
                    await outbox.put(notice)
        since = last + 1
        await store.ask(redis.set(keys.notices_looked(listed), since, ex=life))
    await store.ask(redis.set(keys.notices_looked(listed), max(since, now - _OVERLAP_MS), ex=life))


async def _records(store: Store, keys: Keys, ids: list[str]) -> list[tuple[str, dict[str, str]]]:
    pipe = store.redis.pipeline(transaction=False)
    for turn_id in ids:
        pipe.hmget(keys.turn(turn_id), [*_FIELDS, "request"])
        pipe.hget(keys.texts(turn_id), "request")  # of a record of version 1 it is in the record
    answers = await store.ask(pipe.execute())
    found = []
    for turn_id, values, request in zip(ids, answers[::2], answers[1::2], strict=True):
        texts = [(value or b"").decode("utf-8", "replace") for value in (*values[:-1], request or values[-1])]
        found.append((turn_id, dict(zip((*_FIELDS, "request"), texts, strict=True))))
    return found


def _of_ended(settings: Settings, turn_id: str, record: dict[str, str]) -> Iterator[Notice]:
    """Yield what a finished turn is a reason for. Pure."""
    outcome = record["outcome"]
    at = int(record["finished_at"] or 0) / 1000
    if '"background"' in record["request"] and json.loads(record["request"]).get("metadata", {}).get("background"):
        status = {"cancelled": "cancelled"}.get(outcome, "completed" if outcome.startswith("passed") else "failed")
        yield Notice(kind=f"response.{status}", subject=turn_id, at=at, data={"id": f"resp_{turn_id}"})
    if outcome in _FAILED or outcome == "dead":
        kind = "turn.dead" if outcome == "dead" else "turn.failed"
        yield Notice(kind=kind, subject=turn_id, at=at, data=_facts(settings, turn_id, record, outcome=outcome))


def _of_parked(settings: Settings, turn_id: str, record: dict[str, str]) -> Iterator[Notice]:
    """Yield what a turn in the inbox is a reason for; it may be parked more than once. Pure."""
    if record["state"] == "parked":
        parked = record["parked_at"]
        data = _facts(settings, turn_id, record)
        yield Notice(kind="inbox.waiting", subject=f"{turn_id} {parked}", at=int(parked or 0) / 1000, data=data)


def _facts(settings: Settings, turn_id: str, record: dict[str, str], **more: str) -> dict[str, str | int | float]:
    error = TurnError.from_json(record["error"]) or TurnError()
    facts = {
        "turn_id": turn_id,
        "session_id": record["session_id"],
        "model": record["model"],
        "code": error.code,
        **more,
    }
    if settings.public_url:
        facts["url"] = f"{settings.public_url.rstrip('/')}/turns/{turn_id}"
    return {"attempts": int(record["attempt"] or 0), **{name: value for name, value in facts.items() if value}}


async def _reports(store: Store, workers: str) -> list[WorkerReport]:
    """The last report of each worker process."""
    listed: Any = await store.ask(store.redis.hgetall(workers))
    found = []
    for name, text in listed.items():
        with suppress(ValueError):
            found.append(WorkerReport.from_json(name.decode(), text))
    return found


def rolled_back_by_itself(settings: Settings, said: dict[str, RolledBack], now: float) -> Iterator[Notice]:
    """Flow versions that the guard rolled back; one that a day has passed since was reported before. Pure."""
    for version, note in said.items():
        if note.by != GUARD or note.resumed or now - note.at > _OLD_SECONDS:
            continue
        data: dict[str, str | int | float] = {"flow": version, "why": note.why}
        if settings.public_url:
            data["url"] = f"{settings.public_url.rstrip('/')}/policies"
        yield Notice(kind="flow.rolled_back", subject=f"{version} {note.at}", at=note.at, data=data)


def gone_workers(reports: Iterable[WorkerReport], now: float) -> Iterator[Notice]:
    """Workers that are missing for long enough to call somebody. Pure."""
    for each in missing(reports, now):
        if _GONE_SECONDS < now - each.at < _OLD_SECONDS:
            queues = ",".join(each.queues)
            data: dict[str, str | int | float] = {
                "worker": each.name,
                "host": each.host,
                "queues": queues,
                "last_heard": each.at,
            }
            yield Notice(kind="worker.gone", subject=f"{each.name} {each.started_at}", at=now, data=data)
