"""A stand-in for an HTTP service: a real server on loopback, whose replies a function makes."""

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self


class Asked(NamedTuple):
    """A received request, with header names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


class Reply(NamedTuple):
    """The reply to a request."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


class HttpService:
    """Serves at ``url`` within a ``with`` block, replying with what ``answer`` returns; keeps requests in ``asked``."""

    def __init__(self, answer: Callable[[Asked], Reply]) -> None:
        self.asked: list[Asked] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.path, headers, self.rfile.read(int(headers.get("content-length", 0))))
                service.asked.append(asked)
                reply = answer(asked)
                self.send_response(reply.status)
                for name, value in {"content-length": str(len(reply.body)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            do_GET = do_POST  # noqa: N815 - the server looks for this name

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
