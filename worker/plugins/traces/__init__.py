"""Send finished turns as OpenTelemetry traces from a separate process, which keeps its position in the store."""

COMMANDS = {
    "traces": ("worker.plugins.traces.sending_traces:traces", "Send finished turns as OpenTelemetry traces."),
}
