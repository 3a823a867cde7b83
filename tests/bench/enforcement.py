"""CPU time of one validated attempt: three validators on a 4 kB answer, beside the figures of three peers.

Run by ``python -m tests.bench.enforcement``. Every answer is a new text, so that nothing is found in a cache.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from worker.enforcement import build_validators, decide, examine, judge, repair_answer

#: CPU per validated attempt as measured by us on two cores with Python 3.11; two attempts a turn, a trivial validator
#: and a model that answers at once. Quoted, not measured again here. ADR-038's own sample searches by regular
#: expressions and parses nothing, which is why most of its verdicts are wrong.
PEERS = {"ADR-038's sample": 0.015, "Instructor 1.17": 0.593, "Guardrails 0.11": 1.886, "pydantic-ai 2.68": 2.118}

_NAMES = ("step_marker", "adr_structure", "file_existence")
_ROUNDS, _PER_ROUND = 15, 60

_ADR = """Hier ist das ADR.

---
adr_id: "{n:04}"
title: "Ein Cache vor der Suche"
status: Proposed
files:
  create:
    - src/search/cache.py
  modify:
    - src/search/index.py
    - src/search/query.py
  docs:
    - docs/search.md
---

# ADR-{n:04}: Ein Cache vor der Suche

## Kontext

{prose}

```python
def find(query: str) -> list[str]:
    return index.search(query)
```

## Entscheidung

{prose}

1. Zuerst der Cache.
2. Dann der Index.

## Akzeptanzkriterien

- [ ] Eine Suche dauert unter 100 ms
- [ ] Veraltete Einträge verschwinden
- [ ] Trefferquote ist messbar

## Konsequenzen

{prose}

<!-- STEP: generate -->
"""

_CHAT = """Verstanden, Anfrage {n}.

{prose}

- Punkt eins
- Punkt zwei

```bash
make test
```

{prose}

> Ein Zitat aus der Anfrage.

{prose}

Welche Datenbank soll es sein?

<!-- STEP: what -->
"""

_SENTENCE = "Die Suche ist zu langsam, weil jede Anfrage den ganzen Index liest und nichts behält. "


def answers(template: str) -> Iterator[str]:
    """Answers of 4 kB, no two alike."""
    places = template.count("{prose}")
    room = (4096 - len(template)) // places
    prose = (_SENTENCE * (room // len(_SENTENCE) + 1))[:room]
    lines = prose.replace("behält. Die", "behält.\nDie")
    return (template.format(n=n, prose=lines) for n in count())


def milliseconds(work: Callable[[], object]) -> tuple[float, float, float]:
    """CPU milliseconds of one call: median, fastest and slowest of the rounds."""
    rounds = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        for _ in range(_PER_ROUND):
            work()
        rounds.append((time.process_time() - start) / _PER_ROUND * 1000)
    return statistics.median(rounds), min(rounds), max(rounds)


def measure() -> dict[str, tuple[float, float, float]]:
    """CPU milliseconds per validated attempt, by kind of answer."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("src/search/index.py", "src/search/query.py", "docs/search.md"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        validators = build_validators(_NAMES, root=root)
        result = {}
        for kind, template in (("an ADR", _ADR), ("a chat answer", _CHAT)):
            texts = answers(template)
            attempt = judge([], next(texts), validators)
            if attempt.issues:
                raise SystemExit(f"the benchmark's answer is not valid: {attempt.issues}")
            result[kind] = milliseconds(lambda texts=texts: decide([judge([], next(texts), validators)]))  # type: ignore[misc]
        return result


def missing_paths(count: int = 1_800, beside: int = 480) -> dict[str, float]:
    """CPU milliseconds to judge and to repair a header with so many near misses of the names in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "src").mkdir()
        for number in range(beside):
            (root / "src" / f"module_{number:03}.py").touch()
        paths = ", ".join(f"src/modul_{number:04}.py" for number in range(count))
        header = f'---\nadr_id: "1"\ntitle: X\nstatus: Proposed\nfiles:\n  modify: [{paths}, src/module_000.py]\n---\n'
        validators = build_validators(("file_existence",), root=root)
        started = time.process_time()
        found = examine(header, validators)
        judged = time.process_time()
        repaired = repair_answer(header, validators)
        ended = time.process_time()
        if len(found) != count or not repaired.accepted:
            raise SystemExit(f"{len(found)} of {count} paths were told, repaired: {repaired.accepted}")
        return {"judged": (judged - started) * 1000, "repaired": (ended - judged) * 1000}


def main() -> None:
    """Print our figures beside the peers'."""
    print("Enforcement: CPU per validated attempt (assemble, three validators, decide; 4 kB answer)")
    for kind, (median, low, high) in measure().items():
        print(f"  helix-turns, {kind:14} {median:6.3f} ms  [{low:.3f}-{high:.3f}]")
    for peer, figure in PEERS.items():
        print(f"  {peer:27} {figure:6.3f} ms  (measured before, with one trivial validator)")
    print("Enforcement: CPU for 1,800 missing paths in one header, beside 480 files with near names")
    for what, figure in missing_paths().items():
        print(f"  {what:27} {figure:6.0f} ms")


if __name__ == "__main__":
    main()
