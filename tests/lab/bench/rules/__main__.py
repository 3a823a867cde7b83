"""CPU of judging one 4 kB answer with ten active rules, and of replaying 10,000 recorded answers.

Run: ``python -m tests.lab.bench.rules [ANSWERS] [--peers]``. Process time, so that other work on the machine counts
little.
With ``--peers`` Guardrails and pydantic-ai judge the same answers by ten simple validators in the same run.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.lab.bench.rules.policy import POLICY, answer
from tests.lab.bench.turns.peers_home import python_of_peers
from worker.enforcement import run_validators, validate_attempt
from worker.enforcement.documents.document import parse_document
from worker.enforcement.policies import PolicySubject, choose_rules, read_policy
from worker.enforcement.validator_process import isolate_validators
from worker.plugins.analysis.policy_replay.comparison import Comparison, RecordedAttempt, RecordedTurn


def peers(texts: list[str]) -> dict[str, float]:
    """CPU of judging one answer by each peer, in milliseconds, each in the environment of the bench."""
    python = python_of_peers(Path(__file__).with_name("requirements.txt"))
    script = str(Path(__file__).with_name("peers.py"))
    done = subprocess.run([str(python), script], input=json.dumps(texts), capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    count = numbers[0] if numbers else 10_000
    chosen = choose_rules(read_policy(POLICY), PolicySubject(), root=Path())
    texts = [answer(number) for number in range(200)]
    assert run_validators(texts[0], chosen.validators) == []
    spent = []
    for _ in range(7):
        start = time.process_time()
        for text in texts:
            parse_document.cache_clear()
            validate_attempt([], text, chosen.validators, policy=chosen.policy)
        spent.append((time.process_time() - start) / len(texts) * 1000)
    print(
        f"{len(texts[0])} characters, {len(chosen.validators)} rules: {statistics.median(spent):.3f} ms CPU an answer"
    )
    if "--peers" in sys.argv:
        for name, ms in peers(texts[:60]).items():
            print(f"{name}, ten simple validators: {ms:.3f} ms CPU an answer")

    comparison = Comparison()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    with isolate_validators(chosen.validators) as guarded:
        assert len(guarded) == len(chosen.validators)
        for number in range(count):
            comparison.add_turn(
                RecordedTurn(turn_id=str(number), attempts=(RecordedAttempt(text=answer(number)),)), chosen
            )
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(
        f"{comparison.answers} answers judged again: {time.perf_counter() - wall:.1f} s, "
        f"{time.process_time() - cpu:.1f} s CPU, memory grown by {grown / 1024:.1f} MiB"
    )


if __name__ == "__main__":
    main()
