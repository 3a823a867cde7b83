"""Waits for a supervisor's programs."""

from tests.support import WAIT_SECONDS, wait_for
from worker.processes.supervisor import Supervisor


def wait_ready(supervisor: Supervisor, name: str, *, after: int = 0, seconds: float = WAIT_SECONDS) -> int:
    """Wait until a program is ready in a process other than ``after``, and return its process id."""
    child = supervisor._children[name]

    def find_ready() -> int:
        pid = supervisor.pid(name)
        return pid if child.ready and pid != after else 0

    return int(wait_for(find_ready, seconds))
