"""The phases of a phases.yaml, as relay and worker see them (ADR-025)."""
