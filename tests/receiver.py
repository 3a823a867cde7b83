"""A receiver of traces: a real OTLP/HTTP server that decodes what it receives."""

import gzip
from collections.abc import Callable
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.http_service import Asked, HttpService, Reply


class Receiver(HttpService):
    """Keeps every received span. ``answer`` chooses the status of each reply."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []
        self.resource: dict[str, Any] = {}
        self.answer: Callable[[ExportTraceServiceRequest], int] = lambda request: 200

    def _reply(self, asked: Asked) -> Reply:
        if asked.path != "/v1/traces":
            return Reply(404)
        body = gzip.decompress(asked.body) if asked.headers.get("content-encoding") == "gzip" else asked.body
        request = ExportTraceServiceRequest.FromString(body)
        status = self.answer(request)
        if status == 200:
            self.headers.append(asked.headers)
            for resource in request.resource_spans:
                self.resource = values(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self.spans += scope.spans
        return Reply(status)

    def trace(self, turn_id: str) -> list[Span]:
        """Return the received spans of a turn, including repetitions."""
        return [span for span in self.spans if span.trace_id.hex() == turn_id.partition("-")[2]]


def values(attributes: Any) -> dict[str, Any]:
    """Convert OTLP attributes to Python values."""
    found: dict[str, Any] = {}
    for pair in attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = tuple(item.string_value for item in value.values) if kind == "array_value" else value
    return found
