"""Gates: deterministic checks of a phase's output, before any agent's opinion (ADR-025, docs/WORKFLOW-SYSTEM.md)."""

from worker.verification.gates.gate import GateReport, GateResult, check, each_gate

__all__ = ["GateReport", "GateResult", "check", "each_gate"]
