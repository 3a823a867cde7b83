"""How often ``turns policy compare`` calls two equal versions different: sessions split at random, many times.

Run: ``python -m tests.lab.bench.rules.splits [SPLITS]``.
"""

import random
import sys
from collections.abc import Iterator

from api_client.contract.turn import Outcome
from worker.plugins.analysis.versions import FinishedTurn, compare_versions

#: Sessions of both versions together in one split.
SESSIONS = 240


def session(drawn: random.Random, name: str, flow: str, failing: float = 0.03) -> Iterator[FinishedTurn]:
    """The turns of one session; sessions differ in how often they are asked again and how slow they are."""
    lean, slow = drawn.betavariate(1.2, 4), drawn.lognormvariate(0, 0.6)
    for _ in range(1 + min(19, int(drawn.expovariate(0.3)))):
        again, end = drawn.random() < lean, drawn.random()
        good = Outcome.PASSED_BY_FALLBACK if end < failing + lean * 0.2 else Outcome.PASSED
        seconds = slow * drawn.lognormvariate(2.5, 0.8) * (1 + again)
        yield FinishedTurn(
            session_id=name,
            flow=flow,
            outcome=Outcome.FAILED if end < failing else good,
            asked_again=again,
            seconds=seconds,
            usd=seconds * 0.002,
        )


def called_real(splits: int, seed: int = 16) -> int:
    """In how many of these splits of equal sessions a difference is called real."""
    drawn = random.Random(seed)
    called = 0
    for _ in range(splits):
        turns = [turn for n in range(SESSIONS) for turn in session(drawn, f"s{n}", drawn.choice(("v2", "v3")))]
        called += any(figure.real for figure in compare_versions(turns, "v2", "v3").figures)
    return called


def main() -> None:
    splits = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    called = called_real(splits)
    print(f"{splits} A/A splits of {SESSIONS} sessions: {called} called different ({called / splits:.1%})")


if __name__ == "__main__":
    main()
