"""Check a phase's output deterministically, before the verifier does (ADR-025, docs/WORKFLOW-SYSTEM.md)."""

from worker.verification.gates.check import Around as Around
from worker.verification.gates.check import check as check
from worker.verification.gates.check import each_gate as each_gate
from worker.verification.gates.gate import GateReport as GateReport
from worker.verification.gates.gate import GateResult as GateResult
