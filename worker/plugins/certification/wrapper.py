"""A wrapper that disturbs an agent's program: ``python -I -S wrapper.py KIND PROGRAM ARGUMENT...``.

Standard library only.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from typing import IO

_JUNK = b'\x00\xff not a line of yours\n{}\n[1, 2]\nnull\n{"type": \n'
#: Largest file the program may write, in bytes.
_SMALL = 16_384
_TO_CLOSE = 400


def main() -> int:
    """Run an agent's program with the disturbance that the first argument names, and return the exit code."""
    kind, *command = sys.argv[1:]
    if kind == "small-files":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_SMALL, _SMALL))
        os.execvp(command[0], command)  # noqa: S606 - it becomes the program
    if kind == "forks":
        subprocess.Popen(["sleep", "600"], start_new_session=True)  # noqa: S607 - as an agent would
    piped = kind in {"junk", "close-stdout", "lose-last-line"}
    with subprocess.Popen(command, stdout=subprocess.PIPE if piped else None) as process:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda found, _: process.send_signal(found))
        if process.stdout:
            thread = threading.Thread(target=_forward_output, args=(kind, process.stdout))
            thread.start()
            thread.join()
        code = process.wait()
    forced = {"exit-zero": 0, "exit-one": 1}
    return forced.get(kind, code if code >= 0 else 128 - code)


def _forward_output(kind: str, output: IO[bytes]) -> None:
    said, held = 0, b""
    if kind == "junk":
        _write_output(_JUNK)
    for line in output:
        if kind == "close-stdout" and said > _TO_CLOSE:
            break
        _write_output(held if kind == "lose-last-line" else line)
        held, said = line, said + len(line)
    if kind == "junk":
        _write_output(_JUNK)
    if kind == "close-stdout":
        os.close(1)
        while output.read(65_536):
            pass


def _write_output(content: bytes) -> None:
    while content:
        content = content[os.write(1, content) :]


if __name__ == "__main__":
    sys.exit(main())
