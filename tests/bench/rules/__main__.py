"""CPU of judging one 4 kB answer with ten active rules, and of replaying 10,000 recorded answers.

Run: ``python -m tests.bench.rules [ANSWERS]``. Process time, so that other work on the machine counts little.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from pathlib import Path

from tests.bench.rules.policy import POLICY, answer
from worker.enforcement import examine, judge
from worker.enforcement.documents.document import parse
from worker.enforcement.isolation import isolated
from worker.enforcement.policies import Comparison, Judged, Subject, choose, read_policy


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    chosen = choose(read_policy(POLICY), Subject(), root=Path())
    texts = [answer(number) for number in range(200)]
    assert examine(texts[0], chosen.validators) == []
    spent = []
    for _ in range(7):
        start = time.process_time()
        for text in texts:
            parse.cache_clear()
            judge([], text, chosen.validators, policy=chosen.policy)
        spent.append((time.process_time() - start) / len(texts) * 1000)
    print(
        f"{len(texts[0])} characters, {len(chosen.validators)} rules: {statistics.median(spent):.3f} ms CPU an answer"
    )

    comparison = Comparison()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    with isolated(chosen.validators) as guarded:
        assert len(guarded) == len(chosen.validators)
        for number in range(count):
            comparison.add(Judged(turn_id=str(number), attempt=1, answer=answer(number), accepted=True), chosen)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(
        f"{comparison.answers} answers judged again: {time.perf_counter() - wall:.1f} s, "
        f"{time.process_time() - cpu:.1f} s CPU, memory grown by {grown / 1024:.1f} MiB"
    )


if __name__ == "__main__":
    main()
