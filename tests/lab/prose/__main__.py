"""``python -m tests.lab.prose [PATH...] [--lower]``: phrases and table cells that the project does not want.

A room that is not clean yet has a ceiling in ``ceilings.txt``: more findings than that are an error, and all its
findings are printed. ``--lower`` writes the ceilings down to what was found; they are never raised by hand.
With paths, every finding in them is printed, and ceilings do not count.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.lab.prose.texts import files, texts_of
from tests.lab.prose.words import RULES

ROOT = Path(__file__).parents[3]
CEILINGS = Path(__file__).with_name("ceilings.txt")
#: Characters of a cell of a Markdown table; a longer one is a list or a section.
LONGEST_CELL = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """A phrase or a cell to rewrite: path below the root, line from 1, and what to do."""

    path: PurePosixPath
    line: int
    problem: str

    @property
    def room(self) -> str:
        """What has one ceiling: a page, or a package of the product."""
        parts = self.path.parts
        return "/".join(parts[:2]) if len(parts) > 2 or self.path.suffix == ".md" else parts[0]


def findings(root: Path) -> Iterator[Finding]:
    """All findings below a checkout."""
    for path in files(root):
        named = PurePosixPath(path.relative_to(root).as_posix())
        for line, problem in [*phrases(path), *cells(path)]:
            yield Finding(named, line, problem)


def phrases(path: Path) -> Iterator[tuple[int, str]]:
    """Line and problem of each unwanted phrase in a file."""
    for start, text in texts_of(path):
        for pattern, instead in RULES:
            for found in pattern.finditer(text):
                said = " ".join(found[0].split())
                yield start + text.count("\n", 0, found.start()), f'"{said}": write {instead}'


def cells(path: Path) -> Iterator[tuple[int, str]]:
    """Line and problem of each cell that is too long in a Markdown file."""
    if path.suffix == ".md":
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for cell in line.split("|") if line.startswith("|") else ():
                if len(cell.strip()) > LONGEST_CELL:
                    yield number, f"a cell of {len(cell.strip())} characters, more than {LONGEST_CELL}: make it a list"


def ceilings() -> dict[str, int]:
    """Room -> how many findings it may still have."""
    rows = (line.rsplit(" ", 1) for line in CEILINGS.read_text(encoding="utf-8").splitlines() if line)
    return {room: int(count) for room, count in rows}


def too_many(found: dict[str, list[Finding]], allowed: dict[str, int]) -> dict[str, list[Finding]]:
    """The rooms above their ceiling. A room without one has none left."""
    return {room: those for room, those in found.items() if len(those) > allowed.get(room, 0)}


def main(arguments: list[str]) -> int:
    """Check the checkout. Returns the exit status: 1 when something is to be rewritten."""
    rooms: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings(ROOT):
        rooms[finding.room].append(finding)
    if "--lower" in arguments:
        lower = {room: min(count, len(rooms.get(room, ()))) for room, count in ceilings().items()}
        CEILINGS.write_text(
            "".join(f"{room} {count}\n" for room, count in sorted(lower.items()) if count), encoding="utf-8"
        )
    if asked := [argument.removeprefix("./").rstrip("/") for argument in arguments if not argument.startswith("-")]:
        chosen = [it for those in rooms.values() for it in those if any(it.path.is_relative_to(path) for path in asked)]
    else:
        allowed = ceilings()
        wrong = too_many(rooms, allowed)
        chosen = [finding for those in wrong.values() for finding in those]
        for room, those in wrong.items():
            print(f"{room}: {len(those)} findings, {allowed.get(room, 0)} are still allowed; rewrite what you added")
    for finding in chosen:
        print(f"{finding.path}:{finding.line}: {finding.problem}")
    if not chosen and not asked:
        print(f"plain English: {sum(map(len, rooms.values()))} findings left, all below their rooms' ceilings")
    return 1 if chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
