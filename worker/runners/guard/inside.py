"""The first program in a box: ``python -I -S inside.py SOCKET PORT PROCESSES PROGRAM ARGUMENT...``.

Listens on the box's own loopback at ``PORT`` and hands every connection to ``SOCKET``, the door that leads out
(``forwarder``); with an empty ``SOCKET`` it does neither. Then it becomes the program. What listens is a child of the
box's first process, and ends with the box. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import threading

#: Exit code when the program cannot be started, as shells have it.
_CANNOT_RUN = 127
_PIECE = 65_536


def main() -> int:
    """Open the way out and become the program; returns only when that fails."""
    door, port, processes, *command = sys.argv[1:]
    if door:
        _listen(door, int(port))
    # Older kernels would count all processes of the worker's user, not those of the box.
    if int(processes) and tuple(map(int, os.uname().release.split(".", 2)[:2])) >= (5, 14):
        resource.setrlimit(resource.RLIMIT_NPROC, (int(processes), int(processes)))
    try:
        os.execvp(command[0], command)  # noqa: S606 - this is what it is for
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201 - its owner reads it
    return _CANNOT_RUN


def _listen(door: str, port: int) -> None:
    """Listen, and leave a grandchild behind that answers."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        if os.fork():
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):  # the agent's output ends with the agent
            os.dup2(null, fd)
        while True:
            with contextlib.suppress(OSError):
                asker, _ = listener.accept()
                threading.Thread(target=_join, args=(asker, door), daemon=True).start()


def _join(asker: socket.socket, door: str) -> None:
    with asker, socket.socket(socket.AF_UNIX) as out, contextlib.suppress(OSError):
        asker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        out.connect(door)
        back = threading.Thread(target=_pump, args=(out, asker), daemon=True)
        back.start()
        _pump(asker, out)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main())
