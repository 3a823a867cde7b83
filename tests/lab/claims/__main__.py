"""``python -m tests.lab.claims``: how often the rule ``claims`` is right, over transcripts of real Claude runs.

Prints a table by class and set. Exit code 1 when an untrue claim passes, or more than 3 % of the true ones
are rejected.
``--wrong`` prints each wrong verdict.
"""

from __future__ import annotations

import sys
from collections import Counter

from tests.lab.claims.transcripts import judged

#: The share of true answers that may be rejected at most.
MOST = 0.03


def main() -> None:
    """Play, judge, print."""
    found = list(judged())
    cells: Counter[tuple[str, bool, bool, bool]] = Counter()
    for each in found:
        cells[each.transcript.kind, each.transcript.held_out, each.transcript.true, each.right] += 1
        if not each.right and "--wrong" in sys.argv:
            said = "untrue, passes" if not each.transcript.true else f"true, rejected: {each.codes}"
            held = "held out" if each.transcript.held_out else "designed"
            print(f"{held}, {each.transcript.scene}: {said}: {each.transcript.answer!r}", file=sys.stderr)
    kinds = list(dict.fromkeys(each.transcript.kind for each in found))
    print("| class | set | untrue | of them pass | true | of them rejected |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind in [*kinds, "all"]:
        for held_out in (False, True):
            named = kinds if kind == "all" else [kind]
            sums = {
                (true, right): sum(cells[each, held_out, true, right] for each in named)
                for true in (False, True)
                for right in (False, True)
            }
            untrue, true = (sum(sums[truth, right] for right in (False, True)) for truth in (False, True))
            row = [kind, "held out" if held_out else "designed", untrue, sums[False, False], true, sums[True, False]]
            print("| " + " | ".join(map(str, row)) + " |")
    passed = [each for each in found if not each.transcript.true and not each.right]
    accepted = [each for each in found if each.transcript.true]
    rejected = [each for each in accepted if not each.right]
    print(f"\n{len(found)} transcripts: {len(passed)} untrue ones pass,", end=" ")
    print(f"{len(rejected)} of {len(accepted)} true ones are rejected")
    sys.exit(bool(passed) or len(rejected) > MOST * len(accepted))


if __name__ == "__main__":
    main()
