"""Gates: deterministic checks of a phase's output, before any agent's opinion (ADR-025, docs/WORKFLOW-SYSTEM.md)."""

from worker.verification.gates.gate import Around, GateReport, GateResult, check, each_gate

__all__ = ["Around", "GateReport", "GateResult", "check", "each_gate"]
