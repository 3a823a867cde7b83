"""A receiver of traces: a real OTLP/HTTP server of this test's own, which decodes what it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver:
    """Keeps every span it took. ``answer`` says with which status a request is answered."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []
        self.resource: dict[str, Any] = {}
        self.answer: Callable[[ExportTraceServiceRequest], int] = lambda request: 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                status = receiver.take(self.path, dict(self.headers), ExportTraceServiceRequest.FromString(body))
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, path: str, headers: dict[str, str], request: ExportTraceServiceRequest) -> int:
        if path != "/v1/traces":
            return 404
        status = self.answer(request)
        if status == 200:
            self.headers.append(headers)
            for resource in request.resource_spans:
                self.resource = values(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self.spans += scope.spans
        return status

    def trace(self, turn_id: str) -> list[Span]:
        """The spans of a turn, as often as they were sent."""
        return [span for span in self.spans if span.trace_id.hex() == turn_id.partition("-")[2]]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def values(attributes: Any) -> dict[str, Any]:
    """OTLP's attributes as Python values."""
    found: dict[str, Any] = {}
    for pair in attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = tuple(item.string_value for item in value.values) if kind == "array_value" else value
    return found
