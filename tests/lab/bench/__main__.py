"""``make bench``: helix-turns beside other queues on the same work, interleaved, in one run."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.lab.bench.turns.measure import measure
from tests.lab.bench.turns.peers_home import NoPeers
from tests.lab.bench.turns.plan import Plan
from tests.lab.bench.turns.result import context, result
from tests.lab.bench.turns.rows import ROWS
from tests.lab.bench.turns.running import RowFailed
from tests.lab.bench.turns.tables import text


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="rejected once only, on four rows: 40 s a round")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"some of {','.join(ROWS)}")
    parser.add_argument("--durability", choices=("everysec", "power"), default="everysec")
    parser.add_argument("--json", type=Path, help="also write everything that was seen into this file")
    options = parser.parse_args()
    rows = tuple(options.rows.split(","))
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    plan = Plan(rounds=max(1, options.rounds), rows=rows, durability=options.durability)
    where, started = context(plan), time.monotonic()
    try:
        found = measure(plan.quick() if options.quick else plan, lambda line: print(line, file=sys.stderr, flush=True))
    except (NoPeers, RowFailed) as error:
        sys.exit(f"bench: {error}")
    shown = result(where | {"seconds": time.monotonic() - started}, found)
    if options.json:
        options.json.write_text(json.dumps(shown, indent=1), encoding="utf-8")
    print(text(shown))


if __name__ == "__main__":
    main()
