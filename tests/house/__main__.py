"""Figures of this checkout and earlier ones.

``python -m tests.house [REVISION...] [--trace] [--files] [--functions] [--folders] [--since]``

``--trace`` starts each version and counts what one chat message runs: files (``--files`` lists them), functions
(``--functions`` lists them with their stage), lines.
``--since`` lists the lines of files that the first revision did not have, by folder.
``--folders`` lists every folder with its files, by how many other folders it is imported, and how many it imports.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.house.figures import PRODUCT, figures, folder_lines
from tests.house.since import since_lines
from tests.house.structure import structure
from tests.house.trace import STAGES, Passed, main_path

ROOT = Path(__file__).parents[2]


def check_out(revision: str, target: Path) -> Path:
    """A copy of the product: of the working tree for an empty revision, else of that revision.

    Raises:
        SystemExit: git does not know the revision.
    """
    target.mkdir(parents=True)
    if not revision:
        for package in PRODUCT:
            shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
        return target
    ran = subprocess.run(["git", "archive", revision, *PRODUCT], cwd=ROOT, capture_output=True, check=False)
    if ran.returncode:
        raise SystemExit(f"git has no revision {revision}: {ran.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as archive:
        archive.extractall(target, filter="data")
    return target


def _said(passed: Passed) -> dict[str, str]:
    """The rows that tell what one message runs."""
    rows = {
        "functions run": passed.functions,
        "code lines run": passed.lines,
        "switches of file": passed.switches,
    }
    stages = " / ".join(STAGES)
    files = f"{len(passed.files)} ({len(passed.idle)} of them also while nothing is asked)"
    return (
        {"files on the main path": files, "Lua scripts": f"{passed.scripts}"}
        | {"code lines of the functions run": f"{passed.bodies:,}"}
        | {
            f"{name} ({stages})": f"{found['all']:,} ({' / '.join(f'{found[stage]:,}' for stage in STAGES)})"
            for name, found in rows.items()
        }
    )


def main(arguments: list[str]) -> None:
    """Print a table: a line for each figure, a column for each version, this checkout last."""
    revisions = [argument for argument in arguments if not argument.startswith("--")]
    columns: dict[str, dict[str, str]] = {}
    since: list[str] = []
    with tempfile.TemporaryDirectory(prefix="house-", dir="/tmp") as scratch:
        for number, revision in enumerate([*revisions, ""]):
            copy = check_out(revision, Path(scratch, f"{number}"))
            columns[revision or "now"] = figures(copy) | structure(copy)
            if "--since" in arguments and revision and not number:
                since = list(since_lines(ROOT, revision, copy))
            if "--trace" in arguments:
                folder = Path(scratch, f"run{number}")
                folder.mkdir()
                passed = main_path(copy, folder)
                columns[revision or "now"] |= _said(passed)
                if not revision and "--files" in arguments:
                    background = dict.fromkeys(passed.idle, " (background too)")
                    print("\n".join(f"{name}{background.get(name, '')}" for name in passed.files))
                if not revision and "--functions" in arguments:
                    print("\n".join(passed.run))
    rows = dict.fromkeys(name for column in columns.values() for name in column)
    print("| " + " | ".join(["", *columns]) + " |")
    print("|" + " --- |" * (len(columns) + 1))
    for row in rows:
        print("| " + " | ".join([row, *(column.get(row, "") for column in columns.values())]) + " |")
    if since:
        print("\n" + "\n".join(since))
    if "--folders" in arguments:
        print("\nfolder: files, imported by so many folders, imports so many")
        print("\n".join(folder_lines(ROOT)))


if __name__ == "__main__":
    main(sys.argv[1:])
