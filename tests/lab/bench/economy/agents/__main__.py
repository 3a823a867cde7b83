"""``make bench-agents``: what real agents make of requests for parts: first answer rejected, repaired, judged.

``python -m tests.lab.bench.economy.agents --agent claude --repairs 200`` prints a row for each agent.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.agents.running import VERSIONS, program_of, with_node
from tests.lab.bench.economy.agents.repairs import KINDS, Repair, measure_repairs

AGENTS = ("claude", "codex", "opencode", "qwen")
_HEADS = (
    "agent", "model", "repairs", "accepted at once", "after another question", "not accepted", "exact", "wrong passes",
    "characters lost", "output saved",
)  # fmt: skip


def row(agent: str, kind: str, repairs: Sequence[Repair]) -> str:
    """Return a row of the table."""
    asked = sum(len(each.document.good) * (each.runs - 1) for each in repairs)
    cells = (
        f"{agent} {VERSIONS[agent]}",
        kind,
        len(repairs),
        sum(each.accepted and each.runs == 2 for each in repairs),
        sum(each.accepted and each.runs > 2 for each in repairs),
        sum(not each.accepted for each in repairs),
        sum(each.exact for each in repairs),
        sum(each.wrong for each in repairs),
        sum(each.lost for each in repairs),
        f"{1 - sum(each.sent for each in repairs) / asked:.1%}" if asked else "-",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def describe(repair: Repair) -> str:
    how = "wrong pass" if repair.wrong else "not accepted" if not repair.accepted else "not exact" * (not repair.exact)
    counts = {"characters lost": repair.lost, "requests changed": repair.unheard, "replies changed": repair.changed}
    found = [how, *(f"{count} {name}" for name, count in counts.items() if count)]
    return f"{repair.kind}, {repair.form} | {repair.document.name} | {'; '.join(filter(None, found))}"


def print_progress(agent: str, count: int, begun: float, done: int) -> None:
    """Print on stderr how many of an agent's repairs are done."""
    print(f"{agent}: {done} of {count} repairs, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.economy.agents", description=__doc__)
    parser.add_argument("--agent", action="append", choices=AGENTS, help="an agent (default: all that are installed)")
    parser.add_argument("--repairs", type=int, default=200, help="repairs for each agent (default: 200)")
    parser.add_argument("--documents", type=Path, action="append", default=[], help="a folder of Markdown files")
    parser.add_argument("--jobs", type=int, default=2, help="agents at the same time (default: 2)")
    parser.add_argument("--show", action="store_true", help="list each repair that was not exact, or was changed")
    options = parser.parse_args()
    os.environ["PATH"] = with_node()
    print("| " + " | ".join(_HEADS) + " |\n|---|---|" + "---:|" * (len(_HEADS) - 2), flush=True)
    for agent in options.agent or AGENTS:
        if program_of(agent) is None:
            print(f"| {agent} | skipped: it is not installed here |" + " |" * (len(_HEADS) - 2), flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = partial(print_progress, agent, options.repairs, time.monotonic())
            found = measure_repairs(agent, options.repairs, Path(folder), options.documents, options.jobs, report)
        for kind in KINDS:
            print(row(agent, kind, [each for each in found if each.kind == kind]), flush=True)
        if options.show:
            odd = [each for each in found if not each.exact or each.lost or each.unheard or each.changed]
            print(*(f"  {describe(each)}" for each in odd), sep="\n", flush=True)
            for (kind, form), runs in sorted(
                Counter((each.kind, f"{each.form}: {each.runs} runs") for each in found).items()
            ):
                print(f"    {kind} | {form} x {runs}")


if __name__ == "__main__":
    main()
