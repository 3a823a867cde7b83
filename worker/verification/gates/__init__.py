"""Deterministic checks of a phase's output, which run before the verifier (ADR-025, docs/WORKFLOW-SYSTEM.md)."""

from worker.verification.gates.gate import GateReport as GateReport
from worker.verification.gates.gate import GateResult as GateResult
from worker.verification.gates.gate_run import GateSettings as GateSettings
from worker.verification.gates.gate_run import iterate_gates as iterate_gates
from worker.verification.gates.gate_run import run_gates as run_gates
