"""``make bench-economy``: what enforcement costs in characters, and what it lets through, over 200 broken answers."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.lab.bench.economy.behaviours import AGENTS
from tests.lab.bench.economy.corpus import cases
from tests.lab.bench.economy.play import NAMES, Played, lay_out, play
from tests.lab.bench.economy.table import kinds, row, table

#: Policies: ADR-038's, and one that repairs before it asks.
POLICIES: dict[str, dict[str, Sequence[str]]] = {
    "ADR-038: retry, fallback, fail": {},
    "repair first": dict.fromkeys(NAMES, ("repair", "retry", "fallback", "fail")),
}


def measure(policy: str) -> dict[str, list[Played]]:
    """Every case against every behaviour."""
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder))
        return {
            name: [play(case, agent, Path(folder), POLICIES[policy]) for case in cases()]
            for name, agent in AGENTS.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.economy", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--kinds", action="store_true", help="say for each behaviour which kinds of fault ended badly")
    parser.add_argument("--show", metavar="BEHAVIOUR", help="list the turns of one behaviour that ended badly")
    options = parser.parse_args()
    found = {policy: measure(policy) for policy in POLICIES}
    if options.json:
        rows = {p: [asdict(row(name, one)) for name, one in played.items()] for p, played in found.items()}
        print(json.dumps(rows))
        return
    print("200 broken answers: 16 kinds of fault, German and English, 300 to 20,000 characters. Counts and characters.")
    for policy, played in found.items():
        print(f"\n{policy}\n\n{table(row(name, one) for name, one in played.items())}")
        for name, one in played.items():
            if options.kinds and (bad := kinds(one)):
                print(f"\n  {name}\n{bad}")
            if options.show == name:
                print(*(_line(turn) for turn in one if turn.wrong or turn.lost or not turn.success), sep="\n")


def _line(turn: Played) -> str:
    how = "; ".join(turn.wrong) or (f"{turn.lost} sentences lost" if turn.lost else "failed")
    return f"  {turn.case.name}: {how} ({turn.runs} runs)"


if __name__ == "__main__":
    main()
