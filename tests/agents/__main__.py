"""Certify the installed agents, one after the other, and print the table of docs/agents.md.

``python -m tests.agents [AGENT ...] [--only TEXT]``; ``make e2e-agents`` runs it. What was found of an agent is kept in
``certified.json`` at once, and docs/agents.md shows it. Exit code 1: a verdict was wrong.
"""

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

from tests.agents.page import keep
from tests.agents.running import RUNNERS, VERSIONS, program_of, with_node
from tests.installation import turns

_HEAD = """\
| Agent | Situations | Its own word: false, true ends kept | Without the call log | Our verdict |
|---|---|---|---|---|"""


def certified(agent: str, only: list[str]) -> dict[str, Any] | None:
    """What the kit counts for an agent; None where its program is not installed here."""
    program = program_of(agent)
    if program is None:
        return None
    runner = "claude_cli" if agent == "claude" else RUNNERS[agent]
    path = {"HELIX_CLAUDE_PATH" if agent == "claude" else "HELIX_AGENT_PATH": str(program)}
    environ = {**os.environ, "PATH": with_node(), **path}
    done = subprocess.run(  # its progress goes to stderr: a line for each situation, while it runs
        turns("worker", "certify", runner, "--json", "--jobs", "2", *(f"--only={text}" for text in only)),
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"{agent}: turns worker certify printed no result: {done.stdout}") from None
    return found


def _line(agent: str, found: dict[str, Any]) -> str:
    cells = [
        f"{each['false_complete']} false, {each['kept']} of {each['true_ends']}" for each in found["counts"].values()
    ]
    applied = f"{sum(each['applies'] for each in found['situations'])} of {len(found['situations'])}"
    return " | ".join([f"| {agent} {VERSIONS[agent]}", applied, *cells]) + " |"


def main() -> int:
    """Print a line for each agent, and below them what is wrong."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("agents", nargs="*", default=["claude", *RUNNERS])
    arguments.add_argument("--only", action="append", default=[])
    given = arguments.parse_args()
    print(f"Certified on {datetime.now(UTC):%Y-%m-%d}:\n\n{_HEAD}", flush=True)
    problems = []
    for agent in given.agents:
        found = certified(agent, given.only)
        if found is None:
            print(f"| {agent} | skipped: it is not installed here | | | |", flush=True)
            continue
        print(_line(agent, found), flush=True)
        keep(agent, found["situations"])
        problems += [
            f"{agent}: {each['situation']}: {each['problem']}: {each['reason']}"
            for each in found["situations"]
            if each["problem"]
        ]
    print("\n".join(["", *problems]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
