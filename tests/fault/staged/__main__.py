"""``python -m tests.fault.staged [NAME ...] [--short] [--json]``: stage faults and print one table.

Exit code 0: every promise held; 1: one was broken, or a stage failed to complete; 2: unknown name.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

import pytest

from tests.fault.staged import STAGES, Seen, stage_of


def main(arguments: list[str]) -> int:
    """Stage the named faults, or all; print each row as soon as it is known."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(STAGES)} (default: all)")
    parser.add_argument("--short", action="store_true", help="the size of the tests")
    parser.add_argument("--json", action="store_true", help="one line of JSON a fault")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.names if name not in STAGES]:
        parser.error(f"no such fault: {', '.join(unknown)}")
    if not asked.json:
        print("| promise | tried | wrong | beside | seconds |\n|---|---|---|---|---|", flush=True)
    broken = False
    for name in asked.names or STAGES:
        begun = time.monotonic()
        try:
            seen = stage_of(name)(not asked.short)
        except pytest.skip.Exception as skipped:  # no failure: this machine cannot stage it
            print(f"not staged: {name}: {skipped}", file=sys.stderr)
            continue
        except Exception as error:
            seen = Seen(0, "none", 1, f"failed to complete: {error!r}")
        broken = broken or bool(seen.wrong) or not seen.tried
        seconds = round(time.monotonic() - begun)
        if asked.json:
            print(json.dumps({"fault": name, "promise": STAGES[name], **asdict(seen), "seconds": seconds}), flush=True)
        else:
            row = (STAGES[name], f"{seen.tried} {seen.cases}", str(seen.wrong), seen.beside, str(seconds))
            print(f"| {' | '.join(row)} |", flush=True)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
