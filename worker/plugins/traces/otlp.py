"""Sends spans by OTLP over HTTP, as configured by OpenTelemetry's standard variables."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SpanEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from api_client.contract.turn import Turn
from api_client.tracing.trace_spans import (
    Span,
    caller_span,
    derive_span_id,
    find_trace_id,
)

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class SpanExporter:
    """Sends spans to an OpenTelemetry receiver by OTLP over HTTP. Not thread-safe."""

    def __init__(self, version: str) -> None:
        self._exporter = OTLPSpanExporter()
        found = Resource({"service.version": version}).merge(Resource.create())
        if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
            found = found.merge(Resource({"service.name": "helix-turns"}))
        self._resource = found
        self._scope = InstrumentationScope("helix-turns", version)

    def send_spans(self, trees: Sequence[tuple[Turn, Sequence[Span]]]) -> bool:
        """Send the spans of some turns, retrying temporary errors. Return True if the receiver accepts them."""
        spans = [self._convert_span(turn, span) for turn, tree in trees for span in tree]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Close the connection to the receiver and stop retrying."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _convert_span(self, turn: Turn, span: Span) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=_span_context(turn, span.key),
            parent=_caller_context(turn) if span.parent is None else _span_context(turn, span.parent),
            resource=self._resource,
            attributes={**span.attributes, **({"error.type": span.error} if span.error else {})},
            events=[
                SpanEvent(note.name, attributes=dict(note.attributes), timestamp=_to_nanoseconds(note.at))
                for note in span.notes
            ],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=_to_nanoseconds(span.start),
            end_time=_to_nanoseconds(span.end),
            instrumentation_scope=self._scope,
        )


def _span_context(turn: Turn, key: str) -> SpanContext:
    return SpanContext(find_trace_id(turn), derive_span_id(turn, key), is_remote=False, trace_flags=_SAMPLED)


def _caller_context(turn: Turn) -> SpanContext | None:
    caller = caller_span(turn.request.traceparent)
    return SpanContext(caller.trace_id, caller.span_id, is_remote=True, trace_flags=_SAMPLED) if caller else None


def _to_nanoseconds(seconds: float) -> int:
    return round(seconds * 1000) * 1_000_000
