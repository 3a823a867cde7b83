"""Shell scripts parse: ``bash -n`` reads them in the box and runs none."""

from __future__ import annotations

import re
from collections.abc import Sequence

from worker.enforcement.external.services import CannotRun, Program, services

#: Reads each file and goes on; the outer shell's own exit code says nothing about the scripts.
_CHECK = 'for each; do bash --norc -n "./$each"; done; exit 0'
_SAID = re.compile(r"^(?:\./)?(\d+)\.sh: line (\d+): (.*)$")
SECONDS = 10


def problems(scripts: Sequence[str]) -> list[tuple[int, int, str]]:
    """The first problem of each script that does not parse: its place in ``scripts``, its line, and words.

    Raises:
        CannotRun: there is no box or no bash here.
    """
    names = [f"{number}.sh" for number in range(len(scripts))]
    ended = services().run(
        Program(
            argv=["bash", "-c", _CHECK, "bash", *names], files=dict(zip(names, scripts, strict=True)), seconds=SECONDS
        )
    )
    if ended.code:
        raise CannotRun(f"bash ended with {ended.code}: {(ended.lines or ('',))[-1]}")
    found: dict[int, tuple[int, int, str]] = {}
    for line in ended.lines:
        if said := _SAID.match(line):
            found.setdefault(int(said[1]), (int(said[1]), int(said[2]), said[3]))
    return list(found.values())
