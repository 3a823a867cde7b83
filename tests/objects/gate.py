"""The way to an object store, which can be shut: what asks is refused, and what is on its way is cut."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.support import wait_for


class Gate:
    """Listens on ``port`` of loopback while it is open, and passes on to ``target``.

    Attributes:
        url: for HELIX_FILES_ENDPOINT. passed: connections that were made through it.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.url, self.passed = f"http://127.0.0.1:{self._port}", 0
        self._sockets = set[socket.socket]()
        self._serve()

    def shut(self) -> None:
        """Refuse, and cut."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        """Pass on again."""

        def listened() -> bool:
            with contextlib.suppress(OSError):  # its port is still in use for a moment
                self._listener = socket.create_server(("127.0.0.1", self._port))
                return True
            return False

        wait_for(listened)
        self._serve()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Shut within it."""
        self.shut()
        try:
            yield
        finally:
            self.open()

    def _serve(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self._target)
                self.passed += 1
                self._sockets |= {near, far}
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for each in (source, sink):
            self._sockets.discard(each)
            each.close()
