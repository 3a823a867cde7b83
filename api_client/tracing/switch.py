"""Decides whether traces are sent: OpenTelemetry must be installed and its variables must name a receiver."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from api_client.contract.plugins import COMMAND, why_missing

_INSTALL = 'pip install ".[otel]" in the checkout'
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def find_endpoint(environ: Mapping[str, str]) -> str:
    """Return the trace receiver's address in OpenTelemetry's variables, or an empty string if tracing is off."""
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = environ.get("OTEL_TRACES_EXPORTER", "").replace(" ", "").split(",")
    if off or not {"", "otlp"} & set(exporters):
        return ""
    return _first_set(environ, _ENDPOINTS)


def explain_off(environ: Mapping[str, str]) -> str:
    """Return why no traces are sent and how to change that, or an empty string if traces are sent."""
    if not find_endpoint(environ):
        return "no receiver: set OTEL_EXPORTER_OTLP_ENDPOINT=http://host:4318 (docs/traces.md)"
    protocol = _first_set(environ, _PROTOCOLS)
    if protocol not in ("", "http/protobuf"):
        return f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: only http/protobuf is spoken here, port 4318 of most receivers"
    if missing := why_missing(COMMAND, "run.traces"):
        return missing
    if not _is_installed():
        return f"OpenTelemetry is not installed: {_INSTALL}"
    return ""


def _is_installed() -> bool:
    try:
        names = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
        return all(importlib.util.find_spec(name) for name in names)
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _first_set(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environ.get(name, "").strip())), "")
