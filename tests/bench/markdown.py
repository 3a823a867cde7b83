"""CPU of our Markdown scanner beside markdown-it-py's block rules: ``python -m tests.bench.markdown``.

The scanner stays as long as it is at least four times cheaper at 4 kB, the size of a usual answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from markdown_it import MarkdownIt

from worker.enforcement.markdown.scan import outline

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
    """Print a row per size."""
    blocks = MarkdownIt("commonmark").disable("inline").parse
    print("| size | scanner, ms | markdown-it-py, ms | times |\n|---|---|---|---|")
    for size in (1_000, 4_000, 40_000):
        text = answer(size)
        ours, theirs = best(outline, text), best(blocks, text)
        print(f"| {size:,} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f} |")


if __name__ == "__main__":
    main()
