"""What was added to the product since a revision: lines of files that did not exist then, by folder; and settings."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.house.figures import PRODUCT, settings_of

#: A file is the same one if so much of it is alike (git's own measure), in percent.
ALIKE = 40
#: Folders are printed down to this depth, if they have at least so many new lines.
_DEPTH, _LEAST = 3, 100


def since_lines(root: Path, revision: str, then: Path) -> Iterator[str]:
    """Lines to print; ``then`` is a copy of the product at ``revision``."""
    added, kept = _new_and_kept(root, revision)
    before = sum(_length(path) for package in PRODUCT for path in (then / package).rglob("*.py"))
    gone = sum(_length(then / old) for old in _gone(root, revision) if (then / old).suffix == ".py")
    yield f"Python lines at {revision}: {before:,}; {gone:,} of them in files that the product no longer has"
    yield f"now: {sum(kept.values()):,} in files that come from then, {sum(added.values()):,} in new files:"
    by_folder: Counter[str] = Counter()
    for path, count in added.items():
        by_folder["/".join(PurePosixPath(path).parts[:-1][:_DEPTH])] += count
    few = sum(count for count in by_folder.values() if count < _LEAST)
    for folder, count in by_folder.most_common():
        if count >= _LEAST:
            yield f"  {count:6,}  {folder}"
    yield f"  {few:6,}  folders with fewer than {_LEAST} new lines"
    old, new = settings_of(then), settings_of(root)
    yield f"settings: {len(old)} then, {len(old & new)} of them left; since then: {', '.join(sorted(new - old))}"


def _new_and_kept(root: Path, revision: str) -> tuple[dict[str, int], dict[str, int]]:
    """Lines of each Python file of the product: of new ones, and of those that existed, maybe elsewhere."""
    new = {fields[1] for fields in _changes(root, revision) if fields[0] == "A"}
    found = {str(path.relative_to(root)): _length(path) for name in PRODUCT for path in (root / name).rglob("*.py")}
    added = {path: count for path, count in found.items() if path in new}
    return added, {path: count for path, count in found.items() if path not in new}


def _gone(root: Path, revision: str) -> list[str]:
    """Files that are no longer in the product: deleted, or moved out of it."""
    changes = _changes(root, revision)
    return [fields[1] for fields in changes if fields[0] == "D"]


def _changes(root: Path, revision: str) -> list[list[str]]:
    """Status and path, or paths, of each file that changed.

    Raises:
        SystemExit: git does not know the revision.
    """
    command = ["git", "diff", f"--find-renames={ALIKE}%", "-l0", "--name-status", revision, "--", *PRODUCT]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"git has no revision {revision}: {ran.stderr.strip()}")
    return [line.split("\t") for line in ran.stdout.splitlines()]


def _length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())
