"""Reports of worker processes about themselves, and the search for missing workers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from api_client.contract.counters import clean_label
from api_client.contract.json_readers import READ
from api_client.contract.tasks import CHECK_QUEUE

#: A worker without a report for this long is gone; workers report every five seconds.
HEARD_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """A worker process's latest report about itself. Times are in seconds since the epoch.

    Attributes:
        name: process name in Flower, logs, pages and records. On the wire it is the key, not a field.
        at: time of the report, or of the exit.
        slots, free: agents that it can run at once, and how many more it could. check_slots, check_free: for
            validation.
        stalled: consumes no messages though it could. quiet: an operator ordered it to take nothing new.
        sick: why its machine cannot carry out turns; else empty.
        lease_round: longest round of lease renewals of the last minute, in seconds.
        took_at: when it last took a turn.
        loop_blocked: longest time of the last minute that its event loop was blocked, in seconds.
        sessions: name of the sessions folder that it sees; empty if that folder has none.
        validators, models: those it offers, and those whose agents it can run; empty in reports of older versions.
        cannot: other models that it offers -> why it cannot run their agents.
        kept: sessions whose idle agents it keeps -> since when, and the bytes of each.
    """

    name: str = ""
    at: float = 0.0
    started_at: float = 0.0
    host: str = ""
    pid: int = 0
    version: str = ""
    queues: tuple[str, ...] = ()
    slots: int = 0
    free: int = 0
    check_slots: int = 0
    check_free: int = 0
    stalled: bool = False
    sick: str = ""
    quiet: bool = False
    lease_round: float = 0.0
    took_at: float = 0.0
    loop_blocked: float = 0.0
    sessions: str = ""
    validators: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    cannot: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def worker(self) -> str:
        """Return the name of the worker to which the process belongs, without the process number."""
        return worker_name(self.name)

    def free_slots(self, queue: str) -> int:
        """Return how many more turns from a queue the process could carry out now."""
        return self.check_free if queue == CHECK_QUEUE else self.free

    def explain_cannot_run(self, model: str) -> str:
        """Return why the process cannot run a model's agents, or an empty string if it can or does not report this."""
        if not (self.models or self.cannot) or any(clean_label(name) == model for name in self.models):
            return ""
        why = next((str(text) for name, text in self.cannot.items() if clean_label(name) == model), "")
        return why or "it offers no such model (HELIX_MODELS)"

    def to_json(self) -> str:
        """Encode the report as JSON for the store, without the process's name."""
        data = asdict(self)
        del data["name"]
        return json.dumps(data)

    @classmethod
    def from_json(cls, name: str, text: str | bytes) -> WorkerReport:
        """Create a report from its stored JSON. Missing and invalid fields become empty.

        Raises ``ValueError`` if the text is not a JSON object.
        """
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"not a worker's report: {str(data)[:80]}")
        known = {each: read(data[each]) for each, read in _READ if each in data}
        return cls(**known | {"name": name})


def recent_reports(reports: Iterable[WorkerReport]) -> list[WorkerReport]:
    """Return the reports that are at most 15 seconds older than the latest report."""
    known = list(reports)
    last = max((each.at for each in known), default=0.0)
    return [each for each in known if last - each.at < HEARD_SECONDS]


def worker_name(name: str) -> str:
    """Return the name of the worker to which a process belongs, without the process number."""
    process, at, host = name.partition("@")
    worker, dash, number = process.rpartition("-")
    return f"{worker}{at}{host}" if dash and number.isdecimal() and worker else name


_READ = [(each.name, READ[str(each.type)]) for each in fields(WorkerReport)]


def missing_workers(reports: Iterable[WorkerReport], now: float) -> list[WorkerReport]:
    """Return the last reports of processes that disappeared without signing off or being replaced.

    A worker replaces one silent worker of the same queues if it started after the silent one's last report.
    ``reports`` has the last report of each worker; ``now`` is in seconds since the epoch.
    """
    lost: list[WorkerReport] = []
    known = sorted(reports, key=lambda each: each.at)
    heirs = sorted(known, key=lambda each: each.started_at)
    for each in known:
        if now - each.at < HEARD_SECONDS:
            continue
        place = (each.host, sorted(each.queues))
        for heir in heirs:
            if (heir.host, sorted(heir.queues)) == place and heir.started_at >= each.at:
                heirs.remove(heir)
                break
        else:
            lost.append(each)
    return lost
