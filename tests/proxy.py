"""A proxy in front of the broker that loses replies: a command is carried out, but its reply never arrives."""

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self


class LossyProxy:
    """Listens on a unix socket of its own and forwards to the broker's. ``lose(marker)`` arms it once."""

    def __init__(self, upstream: str, path: Path) -> None:
        self.url = f"unix://{path}"
        self.lost: list[bytes] = []
        self._upstream = upstream.split("://", 1)[1]
        self._marker = b""
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def lose(self, marker: str) -> None:
        """Lose the reply to the next command that contains ``marker``."""
        with self._lock:
            self._marker = marker.encode()

    def _armed_for(self, data: bytes) -> bool:
        with self._lock:
            if self._marker and self._marker in data:
                self.lost.append(self._marker)
                self._marker = b""
                return True
        return False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._upstream)
        losing = threading.Event()
        threading.Thread(target=self._back, args=(client, server, losing), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                if self._armed_for(data):
                    losing.set()
                server.sendall(data)
        server.close()

    def _back(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                if losing.is_set():
                    break
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()
