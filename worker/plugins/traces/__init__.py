"""Sends finished turns as OpenTelemetry traces from a process that keeps its position in the store."""

COMMANDS = {
    "run.traces": ("worker.plugins.traces.traces_command:traces", "Send finished turns as OpenTelemetry traces.")
}
