"""Finds events to notify about: finished and suspended turns, missing workers, rolled back versions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator

import structlog

from api_client.contract.notification import Notification
from api_client.contract.settings import Settings
from api_client.contract.turn_error import TurnError
from api_client.contract.worker_reports import WorkerReport, missing_workers
from api_client.notifications.outbox import NotificationOutbox
from api_client.policies.flows import GUARD, FlowVersions, Rollback
from api_client.store import Store
from api_client.workers.reports import read_written_reports
from worker.plugins.notifications.delivery import is_wanted

log = structlog.get_logger()

#: Seconds of silence after which a worker counts as gone; after a day it was already reported.
_GONE_SECONDS, _OLD_SECONDS = 30.0, 86_400.0
_FAILED = frozenset({"failed", "incomplete", "refused", "error", "expired"})


async def gather_notifications(settings: Settings, store: Store, outbox: NotificationOutbox) -> None:
    """Put a notification into the outbox for each new event of a kind that the settings select."""
    await _gather_turns(settings, outbox, suspended=False)
    await _gather_turns(settings, outbox, suspended=True)
    seconds, _ = await store.await_reply(store.redis.time())  # workers report by the store's clock
    found = [
        *find_gone_workers(await store.await_reply(read_written_reports(store.redis, store.namespace)), float(seconds))
    ]
    if len(settings.flow_version) > 1:
        found += find_rollbacks(settings, await FlowVersions(store).read_all(), time.time())
    for notification in found:
        if is_wanted(settings, notification.kind):
            await outbox.put(notification)


async def _gather_turns(settings: Settings, outbox: NotificationOutbox, *, suspended: bool) -> None:
    notifications_of = _notify_suspended if suspended else _notify_finished
    async for turn_id, record in outbox.read_new_turns(suspended=suspended):
        try:
            found = list(notifications_of(settings, turn_id, record))
        except (ValueError, TypeError, AttributeError) as error:  # skip a damaged record
            log.warning("notification.not_made", turn_id=turn_id, error=type(error).__name__)
            continue
        for notification in found:
            if is_wanted(settings, notification.kind):
                await outbox.put(notification)


def _notify_finished(settings: Settings, turn_id: str, record: dict[str, str]) -> Iterator[Notification]:
    outcome = record["outcome"]
    at = int(record["finished_at"] or 0) / 1000
    if '"background"' in record["request"] and json.loads(record["request"]).get("metadata", {}).get("background"):
        status = {"cancelled": "cancelled"}.get(outcome, "completed" if outcome.startswith("passed") else "failed")
        yield Notification(kind=f"response.{status}", subject=turn_id, at=at, data={"id": f"resp_{turn_id}"})
    if outcome in _FAILED or outcome == "dead":
        kind = "turn.dead" if outcome == "dead" else "turn.failed"
        yield Notification(
            kind=kind, subject=turn_id, at=at, data=_build_data(settings, turn_id, record, outcome=outcome)
        )


def _notify_suspended(settings: Settings, turn_id: str, record: dict[str, str]) -> Iterator[Notification]:
    if record["state"] == "suspended":
        suspended = record["suspended_at"]
        data = _build_data(settings, turn_id, record)
        yield Notification(
            kind="inbox.waiting", subject=f"{turn_id} {suspended}", at=int(suspended or 0) / 1000, data=data
        )


def _build_data(settings: Settings, turn_id: str, record: dict[str, str], **more: str) -> dict[str, str | int | float]:
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


def find_rollbacks(settings: Settings, rollbacks: dict[str, Rollback], now: float) -> Iterator[Notification]:
    """Yield a notification for each flow version that was rolled back automatically in the day before ``now``."""
    for version, note in rollbacks.items():
        if note.by != GUARD or note.resumed or now - note.at > _OLD_SECONDS:
            continue
        data: dict[str, str | int | float] = {"flow": version, "why": note.why}
        if settings.public_url:
            data["url"] = f"{settings.public_url.rstrip('/')}/policies"
        yield Notification(kind="flow.rolled_back", subject=f"{version} {note.at}", at=note.at, data=data)


def find_gone_workers(reports: Iterable[WorkerReport], now: float) -> Iterator[Notification]:
    """Yield a notification for each worker that stopped reporting in the day before ``now``."""
    for each in missing_workers(reports, now):
        if _GONE_SECONDS < now - each.at < _OLD_SECONDS:
            queues = ",".join(each.queues)
            data: dict[str, str | int | float] = {
                "worker": each.name,
                "host": each.host,
                "queues": queues,
                "last_heard": each.at,
            }
            yield Notification(kind="worker.gone", subject=f"{each.name} {each.started_at}", at=now, data=data)
