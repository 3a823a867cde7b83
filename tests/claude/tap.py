"""A tap on the CLI's standard output: a test passes its lines on, holds them back, repeats them or cuts them off.

The CLI stays the process that the guard started, and the only one: a wrapper lends its standard output to the test.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

#: Is given each line; what it returns goes to the worker.
Tell = Callable[["Tapped", bytes], bytes]

#: Descriptor 9 is the worker's end of standard output, until the test has opened it too, through /proc.
_WRAPPER = """#!/bin/bash
FIFO={folder}/$$
mkfifo "$FIFO.go" "$FIFO"
exec 9>&1 >"$FIFO"
read -r <"$FIFO.go"
exec 9>&-
exec {program} "$@"
"""


class Tapped:
    """One process of the CLI. ``results``: how many messages have ended in it; ``cut`` ends its output for good."""

    def __init__(self) -> None:
        self.results = 0
        self.cut = False
        self.kept = b""


class Tap:
    """As a context: ``program`` is to be run instead of the CLI; ``tell`` decides about each line."""

    def __init__(self, folder: Path, program: Path, tell: Tell) -> None:
        self._folder, self._tell = folder / "tap", tell
        self._folder.mkdir()
        self.program = folder / "claude-tapped"
        self.program.write_text(_WRAPPER.format(folder=self._folder, program=program))
        self.program.chmod(0o755)
        self.failed: list[BaseException] = []

    def __enter__(self) -> Tap:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self.failed, self.failed

    def _look(self) -> None:
        known: set[str] = set()
        while not self._over.wait(0.01):
            for name in {each.name for each in self._folder.iterdir() if each.name.isdecimal()} - known:
                known.add(name)
                threading.Thread(target=self._carry, args=(int(name),), daemon=True).start()

    def _carry(self, pid: int) -> None:
        tapped = Tapped()
        try:
            with (self._folder / str(pid)).open("rb") as source, _lent(pid) as lent:
                (self._folder / f"{pid}.go").write_text("\n")
                for line in source:
                    out = self._tell(tapped, line)
                    tapped.results += b'"type":"result"' in line
                    if tapped.cut:
                        return
                    lent(out)
        except (BrokenPipeError, FileNotFoundError, ProcessLookupError):
            return  # the worker or the CLI is gone
        except BaseException as error:
            self.failed.append(error)


@contextlib.contextmanager
def _lent(pid: int) -> Iterator[Callable[[bytes], object]]:
    """Writes to what was the standard output of the process."""
    path = Path(f"/proc/{pid}/fd/9")
    assert path.is_fifo()
    descriptor = os.open(path, os.O_WRONLY)
    try:
        yield lambda out: os.write(descriptor, out) if out else None
    finally:
        os.close(descriptor)
