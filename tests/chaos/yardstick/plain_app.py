"""The yardstick's worker: ``run -> validate`` in plain Celery, twice for turns whose first answer is rejected.

No record, no lease, no reaper: what survives is what Celery's own settings save. Each step is written to a file of its
own, so that the checker knows what was really done.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, signals

#: What `python -m tests.chaos --plain` tells the workers: the variant, and where they write what they did.
VARIANT, ACTION_LOG = "HELIX_AGENT_PLAIN", "HELIX_AGENT_PLAIN_ACTION_LOG"
RUN_QUEUE, CHECK_QUEUE = "helix.run", "helix.check"

_COMMON = {"task_default_queue": RUN_QUEUE, "worker_hijack_root_logger": False}
#: variant -> Celery's settings. ``best`` is what saves most: late acknowledgement, redelivery within seconds, and
#: remote control off, without which a worker of Celery 5.7 exits when the broker drops under an unacknowledged message.
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {**_COMMON, "task_ignore_result": True},
    "best": {
        **_COMMON,
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "worker_enable_remote_control": False,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            "visibility_timeout": 20,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
    },
}


def create_app(broker_url: str, variant: str) -> Celery:
    """A plain application."""
    made = Celery("plain", broker=broker_url, set_as_current=False)
    made.conf.update(SETTINGS[variant])
    return made


app = create_app(os.environ.get("HELIX_BROKER_URL", "").replace("unix://", "redis+socket://", 1), os.environ[VARIANT])


def _record(event: str, key: str, **facts: Any) -> None:
    line = {"event": event, "key": key, "pid": os.getpid(), "at": time.time(), "monotonic": time.monotonic(), **facts}
    fd = os.open(os.environ[ACTION_LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")
    finally:
        os.close(fd)


@app.task(name="plain.run")
def run(key: str, number: int, seconds: float) -> None:
    """The agent: it takes its time."""
    _record("start", key, run=number)
    time.sleep(seconds)
    _record("end", key, run=number)


@app.task(name="plain.validate")
def validate(key: str, last: bool) -> None:
    """The judge: the last answer finishes the turn."""
    if last:
        _record("finished", key)


@signals.worker_ready.connect
def _on_ready(**_: Any) -> None:
    Path(os.environ["HELIX_AGENT_READY_FILE"]).touch()
