"""``python -m tests.claude.memory``: the memory of the real CLIs that a worker process keeps, over many sessions.

Each session asks one message, and now and then an earlier one asks its next. Only ``claude_warm_mb`` bounds how
many are kept. After each message, and every 0.1 s, all kept ones are weighed together, as the kernel counts them now.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tests.claude.running import VERSION, Agent, Ran, cli
from tests.claude.stub import Stub, says
from worker.runners.claude.warm_agent import ClaudeAgent
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.sandbox.resource_usage import ProcessStat, _proportional_memory
from worker.runners.warm import idle_agents

_MIB = 2**20
#: One in so many messages is the next one of the session before, which is kept.
_AGAIN = 4


@dataclass(frozen=True)
class Weighed:
    """What was seen: the most that all kept CLIs held together, in bytes, their most, and how messages began."""

    most: int
    kept: int
    warm: int
    cold: int


class Scales:
    """Weighs all kept CLIs every 0.1 s."""

    def __init__(self) -> None:
        self.most = self.kept = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Scales:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def weigh(self) -> int:
        """Return what they hold now, in bytes."""
        idle = [cast("ClaudeAgent", living) for living, *_ in list(idle_agents.shared_idle_agents()._idle.values())]
        held = sum(_proportional_memory(ProcessStat(pid, 1, 0)) for living in idle for pid in list(living._pids))
        self.most, self.kept = max(self.most, held), max(self.kept, len(idle_agents.shared_idle_agents()))
        return held

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.weigh()


def carry_out(folder: Path, program: Path, sessions: int, mb: int, *, say: bool = False) -> Weighed:
    """Hold all sessions, one message after the other."""
    agents, before, began = AgentProcesses(), list[tuple[Agent, Ran]](), list[str]()
    settings = {"claude_warm_seconds": 600.0, "claude_warm_mb": mb}
    settings |= {"claude_warm_processes": sessions, "claude_warm_per_owner": sessions}
    try:
        with Stub([says("Gut.")]) as stub, Scales() as scales:
            for number in range(sessions):
                agent = Agent(folder, stub, agents, program, settings, f"s{number}")
                before.append((agent, agent.run(owner="o")))
                began.append(before[-1][1].evidence["start"])
                if number % _AGAIN == _AGAIN - 1:
                    agent, ran = before[-2]
                    again = agent.run(owner="o", agent_session=ran.result.agent_session)
                    began.append(again.evidence["start"])
                held = scales.weigh()
                if say:
                    print(
                        f"{number + 1} sessions, {len(idle_agents.shared_idle_agents())} kept, {held / _MIB:.0f} MiB",
                        flush=True,
                    )
        return Weighed(scales.most, scales.kept, began.count("warm"), began.count("cold"))
    finally:
        idle_agents.shared_idle_agents().close()
        agents.stop_guard()


def main() -> None:
    """Print what is kept after each message, and the most of all; exit code 1 where that is over the bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.claude.memory", description=__doc__)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--mb", type=int, default=1024)
    options = parser.parse_args()
    if (program := cli()) is None:
        sys.exit("the Claude CLI is not installed here: `make e2e-claude` installs it")
    with tempfile.TemporaryDirectory(prefix="kept-") as name:
        found = carry_out(Path(name), program, options.sessions, options.mb, say=True)
    print(
        f"Claude CLI {VERSION}, {options.sessions} sessions, a bound of {options.mb} MiB: at most {found.kept} kept, "
        f"{found.most / _MIB:.0f} MiB together; {found.warm} messages warm, {found.cold} cold"
    )
    sys.exit(0 if found.most <= options.mb * _MIB else 1)


if __name__ == "__main__":
    main()
