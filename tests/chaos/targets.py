"""Finding the processes a fault may hit: what runs below the installation's own processes, by what it is."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: A process's role by a word of its command line.
_ROLES = {
    "worker.celery_worker": "engine",
    "tests.chaos.yardstick.plain_app": "engine",
    "worker.runners.sandbox.guard": "guard",
    "worker.runners.scripted.agent": "agent",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A process: what it is, and when it started (so that a reused id is noticed)."""

    pid: int
    role: str
    born: str

    def alive(self) -> bool:
        """True while it is still this process and no zombie."""
        facts = _stat(self.pid)
        return len(facts) > 19 and facts[19] == self.born and facts[0] not in {"Z", "X"}


def below(pid: int) -> list[Target]:
    """Everything that descends from a process and has a role: engine, guard, agent. Oldest first."""
    found: list[Target] = []
    open_ = [pid]
    while open_:
        parent = open_.pop(0)
        for child in _children(parent):
            open_.append(child)
            role = _role(child)
            facts = _stat(child)
            if role and len(facts) > 19:
                found.append(Target(child, role, facts[19]))
    return found


def target(pid: int, role: str) -> Target | None:
    """A process whose role is known; None when it is gone."""
    facts = _stat(pid)
    return Target(pid, role, facts[19]) if len(facts) > 19 else None


def names(targets: Iterable[Target]) -> list[str]:
    """The names of the worker processes among them, without their host: ``worker-12-bcdf-1``."""
    found = []
    for each in targets:
        words = _words(each.pid) if each.role == "engine" else []
        if "-n" in words:
            found.append(words[words.index("-n") + 1].partition("@")[0])
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        return found  # it ended while we looked
    return found


def _role(pid: int) -> str:
    words = _words(pid)
    return next((role for word, role in _ROLES.items() if word in words), "")


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _stat(pid: int) -> list[str]:
    """The fields behind the name: state first, start time 20th."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
