"""``python -m tests.claude``: bring about every ending of the real CLI and print what was seen, as a Markdown table.

Three at a time, because most of them wait. Exit code 1 when any verdict, or any text, is not what it must be. With
``HELIX_SANDBOX=required`` the CLI runs in a sandbox. Arguments name the wanted endings, by a part of their names.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.claude.endings import ENDINGS, Ending, mistakes
from tests.claude.running import Agent, cli, inside
from tests.claude.stub import Stub
from tests.runs import Ran
from worker.runners.sandbox.guard_client import AgentProcesses

_COMPLETE = {"complete", "config"}  # config: the answer is whole, and the installation is to be repaired first


def _ran() -> Iterator[tuple[Ending, Ran]]:
    program = cli()
    if program is None:
        sys.exit("the Claude CLI is not installed here: `make e2e-claude` installs it")
    agents = AgentProcesses()
    mode = os.environ.get("HELIX_SANDBOX", "off")
    endings = [e for e in ENDINGS if all(word in e.name for word in sys.argv[1:])]
    for ending in [e for e in endings if e.obstacle]:
        print(f"left out: {ending.name}: {ending.obstacle}", file=sys.stderr)
        endings.remove(ending)

    def ran(ending: Ending) -> Ran:
        with tempfile.TemporaryDirectory() as root, Stub() as stub:
            return ending.run(Agent(Path(root), stub, agents, inside(Path(root), program), {"sandbox": mode}))

    try:
        with ThreadPoolExecutor(3) as pool:
            yield from zip(endings, pool.map(ran, endings), strict=True)
    finally:
        agents.stop_guard()


def _row(ending: Ending, ran: Ran) -> str:
    short = {"SessionStart": "start", "Stop": "stop", "StopFailure": "failure", "SessionEnd": "end"}
    hooks = " ".join(short[hook] for hook in ran.hooks) or "none"
    result = ran.evidence.get("result") or {}
    told = " ".join(str(result[name]) for name in ("subtype", "terminal_reason") if name in result) or "none"
    done = "done" if "SessionEnd" in ran.hooks else "-"
    cells = [ending.name, ending.truth, str(ran.evidence["exit_code"]), told, hooks, done, ran.verdict, ran.reason[:90]]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Print the table, and the count of wrong verdicts of both rules."""
    print("| Ending | Truth | Exit | Result | Hooks | ADR-036 | Verdict | Reason |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    wrong = {"ADR-036's .done": [0, 0], "the gate": [0, 0]}
    problems: list[str] = []
    for ending, ran in _ran():
        print(_row(ending, ran), flush=True)
        problems += [f"{ending.name}: {mistake}" for mistake in mistakes(ending, ran)]
        truth = ending.truth in _COMPLETE
        for rule, says in (("ADR-036's .done", "SessionEnd" in ran.hooks), ("the gate", ran.verdict in _COMPLETE)):
            wrong[rule][0] += says and not truth
            wrong[rule][1] += truth and not says
    print()
    for rule, (false_complete, false_incomplete) in wrong.items():
        print(f"{rule}: {false_complete} taken for complete falsely, {false_incomplete} thrown away falsely")
    if problems:
        sys.exit("\n".join(["", *problems]))


if __name__ == "__main__":
    main()
