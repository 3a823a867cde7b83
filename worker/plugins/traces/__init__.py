"""Finished turns as OpenTelemetry traces, sent by a separate process. It notes in the store how far it has come."""

COMMANDS = {
    "traces": ("worker.plugins.traces.sending_traces:traces", "Send finished turns as OpenTelemetry traces."),
}
