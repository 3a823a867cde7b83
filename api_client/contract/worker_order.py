"""The orders of an operator to a worker process. It reads its order with each heartbeat."""

from __future__ import annotations

from enum import StrEnum


class WorkerOrder(StrEnum):
    """An order; without one a worker takes turns."""

    #: Take no new turn; those it holds go on. Until it is resumed.
    QUIET = "quiet"
    #: Take no new turn, and end once it holds none. Its supervisor does not start it again.
    DRAIN = "drain"
    #: End now, as at SIGTERM: agents have HELIX_SHUTDOWN_SECONDS, then their turns are handed over.
    STOP = "stop"
    #: Take turns again.
    RESUME = "resume"
