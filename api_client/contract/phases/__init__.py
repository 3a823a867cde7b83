"""The phases of a phases.yaml, as both sides speak of them (ADR-025)."""
