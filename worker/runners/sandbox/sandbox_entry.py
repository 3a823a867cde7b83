"""Start an agent inside a sandbox: ``python -I -S sandbox_entry.py SOCKET PORT PROCESSES PROGRAM ARGUMENT...``.

A child process forwards connections from the loopback ``PORT`` to ``SOCKET``, the model proxy (empty: none). Standard
library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import threading

#: Exit code of a program that cannot be started, as in shells.
_CANNOT_RUN = 127
_PIECE = 65_536


def main() -> int:
    """Connect the sandbox to the model proxy, then replace this process with the agent's program."""
    proxy_socket, port, processes, *command = sys.argv[1:]
    if proxy_socket:
        _start_forwarder(proxy_socket, int(port))
    # Kernels before 5.14 count all processes of the user, not only the sandbox's.
    if int(processes) and tuple(map(int, os.uname().release.split(".", 2)[:2])) >= (5, 14):
        resource.setrlimit(resource.RLIMIT_NPROC, (int(processes), int(processes)))
    try:
        os.execvp(command[0], command)  # noqa: S606 - this is what it is for
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201 - its owner reads it
    return _CANNOT_RUN


def _start_forwarder(proxy_socket: str, port: int) -> None:
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
        for fd in range(3):  # the daemon must not keep the agent's output open
            os.dup2(null, fd)
        while True:
            with contextlib.suppress(OSError):
                client, _ = listener.accept()
                threading.Thread(target=_forward_connection, args=(client, proxy_socket), daemon=True).start()


def _forward_connection(client: socket.socket, proxy_socket: str) -> None:
    with client, socket.socket(socket.AF_UNIX) as out, contextlib.suppress(OSError):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        out.connect(proxy_socket)
        back = threading.Thread(target=_copy_bytes, args=(out, client), daemon=True)
        back.start()
        _copy_bytes(client, out)
        back.join()


def _copy_bytes(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main())
