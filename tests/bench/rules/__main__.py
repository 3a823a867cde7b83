"""CPU of judging one 4 kB answer with ten active rules, and of replaying 10,000 recorded answers.

Run: ``python -m tests.bench.rules [ANSWERS]``. Process time, so that other work on the machine counts little.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from pathlib import Path

from worker.enforcement import examine, judge
from worker.enforcement.documents.document import parse
from worker.enforcement.isolation import isolated
from worker.enforcement.policies import Comparison, Judged, Subject, choose, read_policy

#: Ten rules that start no process and ask no model; all are judged in place.
POLICY = """
locale: en
rules:
  - step_marker
  - adr_structure
  - file_existence
  - {rule: length, options: {min_chars: 10, max_chars: 20000}}
  - {rule: language, options: {expect: en}}
  - {rule: forbidden, options: {words: [lorem ipsum, foobar]}}
  - {rule: links, options: {hosts: [example.org]}}
  - code
  - {rule: structure, options: {sections: [Context, Decision]}}
  - {rule: forbidden, name: no_names, options: {words: [Alice, Bob], secrets: false}}
"""
PARAGRAPH = "The cache stands in front of the search, and it is filled again when the index has changed. "
CODE = '```python\ndef cached(key: str) -> str:\n    return key.lower()\n```\n\n```json\n{"ttl": 60}\n```\n\n'


def answer(number: int) -> str:
    """An answer of about 4 kB; no two are equal."""
    body = PARAGRAPH * 21
    return (
        f"# Answer {number}\n\n## Context\n\n{body}\n\n{CODE}See https://example.org/{number}.\n\n"
        f"## Decision\n\n{body}\n\n<!-- STEP: done -->\n"
    )


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
