"""The exit of a worker process as seen by its supervisor; shown with dead letters."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

#: Most recent exits that are kept, and for how long after the last one, in seconds.
MOST, KEEP_SECONDS = 2_000, 30 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """Describes how and when a worker process exited.

    ``code`` is the exit code, or minus the signal that killed the process.
    """

    worker: str
    pid: int
    code: int
    at: float = 0.0

    @property
    def signal(self) -> str:
        """Return the name of the signal that killed the process, or an empty string if it exited normally."""
        if self.code >= 0:
            return ""
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"

    def __str__(self) -> str:
        """Describe why the process ended, such as ``killed by SIGKILL`` or ``exit code 1``."""
        if self.signal == "SIGKILL":
            return "killed by SIGKILL (out of memory, or by somebody)"
        return f"killed by {self.signal}" if self.signal else f"exit code {self.code}"

    def to_fields(self) -> dict[str, str]:
        """Return the fields of the exit's entry in the Redis stream."""
        return {"worker": self.worker, "pid": str(self.pid), "code": str(self.code)}

    @classmethod
    def from_entry(cls, entry: bytes, fields: Mapping[bytes, bytes]) -> ProcessExit:
        """Create an exit from an entry of the Redis stream. Raises ``KeyError`` or ``ValueError`` for other entries."""
        return cls(
            worker=fields[b"worker"].decode("utf-8", "replace"),
            pid=int(fields[b"pid"]),
            code=int(fields[b"code"]),
            at=int(entry.partition(b"-")[0]) / 1000,
        )
