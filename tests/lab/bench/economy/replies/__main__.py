"""``python -m tests.lab.bench.economy.replies``: what becomes of replies, asked for or not."""

from __future__ import annotations

import argparse
from collections import Counter

from tests.lab.bench.economy.replies.corpus import Trial, counted, drafts, not_the_part, right_replies, wrong_replies


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench.economy.replies", description=__doc__)
    parser.add_argument("--show", action="store_true", help="list what ended badly, without the held-out third")
    options = parser.parse_args()
    wrong, right = list(wrong_replies(drafts())), list(right_replies(drafts()))
    texts = list(not_the_part())
    languages = {lang for _, _, lang, _ in texts} - {"-"}
    kinds = {kind for _, kind, _, _ in texts}
    print(f"{len(texts)} replies that are no section ({len(kinds)} kinds, {len(languages)} languages and none)\n")
    print("| replies | trials | bad | held out | bad |\n|---|---:|---:|---:|---:|")
    for name, trials in (("no section: entered or passed", wrong), ("a section: not taken, or not as sent", right)):
        bad, count = counted(trials, held_out=False)
        bad_out, count_out = counted(trials, held_out=True)
        print(f"| {name} | {count} | {bad} | {count_out} | {bad_out} |")
    if options.show:
        for trials in (wrong, right):
            _show([trial for trial in trials if trial.bad and not trial.held_out])


def _show(bad: list[Trial]) -> None:
    for (kind, how), count in sorted(Counter((t.kind, t.bad.partition(":")[0]) for t in bad).items()):
        print(f"{count:5} {kind}: {how}")
    for trial in bad:
        print(f"  {trial.kind} | {trial.draft} | {trial.bad} | {trial.reply[:300]!r}")


if __name__ == "__main__":
    main()
