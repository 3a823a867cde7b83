"""``python -m tests.lab.bench.economy.replies``: what becomes of replies, asked for or not."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from tests.lab.bench.economy.replies.corpus import measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.economy.replies", description=__doc__)
    parser.add_argument("--show", action="store_true", help="list what ended badly")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trials = measure(Path(folder))
    counted, bad = Counter(trial.corpus for trial in trials), [trial for trial in trials if trial.bad]
    print("| corpus | trials | bad |\n|---|---:|---:|")
    for name, count in counted.items():
        print(f"| {name} | {count:,} | {sum(trial.corpus == name for trial in bad)} |")
    if options.show:
        for (corpus, kind, how), count in sorted(Counter((t.corpus, t.kind, t.bad[:60]) for t in bad).items()):
            print(f"{count:5} {corpus} | {kind}: {how}")
        for trial in bad:
            print(f"  {trial.corpus} | {trial.kind} | {trial.bad[:200]} | {trial.reply[:160]!r}")


if __name__ == "__main__":
    main()
