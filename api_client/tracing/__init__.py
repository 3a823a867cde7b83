"""Finished turns as OpenTelemetry traces: tree (pure) → backlog (what is to be sent) → sending → otlp."""
