"""``python -m tests.approvals``: tries to run what nobody allowed, at the hook of each agent, as one table per agent.

Exit code 1 when something ran.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from api_client.contract.settings import Settings
from tests.approvals.cases import Case, cases
from tests.approvals.stages import AGENTS, Stage
from worker.logs import configure_logging


def played(agent: str, every: int = 1) -> Iterator[tuple[Case, int]]:
    """Play every case at an agent's hook, of spellings one in ``every``; yields how much ran that nobody allowed."""
    spelled = 0
    for case in cases():
        spelled += case.kind == "spelling"
        if agent in case.agents and (case.kind != "spelling" or spelled % every == 0):
            with tempfile.TemporaryDirectory(prefix="helix-approvals-", dir="/tmp") as folder:
                stage = Stage(agent, Path(folder), case.rules_of(agent))
                try:
                    yield case, case.play(stage)
                finally:
                    stage.close()


def main() -> None:
    """Print a table for each agent, and what ran."""
    configure_logging(Settings(log_level="critical"))  # standard output is the table's
    bad = 0
    for agent in AGENTS:
        tries: Counter[str] = Counter()
        ran: Counter[str] = Counter()
        for case, count in played(agent):
            tries[case.kind] += 1
            ran[case.kind] += bool(count)
            if count:
                print(f"{agent}: {case.kind}: {case.name!r} ran {count} times", file=sys.stderr)
        print(f"\n| {agent}: tried | times | ran |\n| --- | --- | --- |")
        for kind, count in tries.items():
            print(f"| {kind} | {count} | {ran[kind]} |")
        print(f"| all | {tries.total()} | {ran.total()} |")
        bad += ran.total()
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
