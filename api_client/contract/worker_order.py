"""Orders to worker processes, which read them with each heartbeat."""

from __future__ import annotations

from enum import StrEnum


class WorkerOrder(StrEnum):
    """An operator's order to a worker process. A process without an order accepts turns."""

    #: Take no new turns and finish those in progress, until resumed.
    QUIET = "quiet"
    #: Take no new turns, and exit once none is left. The supervisor does not restart the process.
    DRAIN = "drain"
    #: Exit now, as at SIGTERM: agents have HELIX_SHUTDOWN_SECONDS, then their turns are handed over.
    STOP = "stop"
    RESUME = "resume"
