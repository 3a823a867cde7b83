"""CPU of an answer's outline, and of judging it by all rules in place: ``python -m tests.bench.markdown``.

A usual answer has 4 kB; all rules may cost 3 ms of CPU there.
"""

import time
from collections.abc import Callable
from pathlib import Path

from worker.enforcement import build_validators, examine
from worker.enforcement.documents.document import parse
from worker.enforcement.documents.outline import outline
from worker.enforcement.rules import Citations, CodeBlocks, Forbidden, Language, Length, LinksRule, Regex, Structure

_SECTION = """## Abschnitt {n}

Ein Absatz mit `Code`, einem [Verweis](https://example.org) und **Betonung**, wie Antworten sie haben.

- erstens
- zweitens
  - darunter

```python
def antwort() -> int:
    return {n}
```

> Zitat, eine Zeile lang

"""
_ROUNDS = 9


def answer(size: int) -> str:
    """An answer of about ``size`` characters: headings, paragraphs, lists, code and quotes."""
    sections = size // len(_SECTION) + 1
    return "".join(_SECTION.format(n=number) for number in range(sections))[:size]


def best(work: Callable[[str], object], text: str) -> float:
    """Least CPU of one call in milliseconds, over several rounds."""
    calls = max(1, 40_000 // len(text))
    found = []
    for _ in range(_ROUNDS):
        begun = time.process_time()
        for _ in range(calls):
            work(text)
        found.append((time.process_time() - begun) / calls)
    return min(found) * 1000


def main() -> None:
    rules = [Length(max_chars=10**6), Language(), LinksRule(), Structure(sections=("Abschnitt 1",)), CodeBlocks()]
    rules += [Citations(), Forbidden(), Regex(must="Abschnitt")]
    own = build_validators(["step_marker", "adr_structure", "file_existence"], root=Path("/nonexistent-project"))

    def judged(text: str) -> None:
        parse.cache_clear()
        examine(text, [*own, *rules])

    print("| size | outline, ms | all rules, ms |\n|---|---|---|")
    for size in (1_000, 4_000, 40_000):
        text = answer(size)
        print(f"| {size:,} | {best(outline, text):.2f} | {best(judged, text):.2f} |")


if __name__ == "__main__":
    main()
