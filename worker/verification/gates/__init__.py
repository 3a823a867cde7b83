"""Gates: deterministic checks of a phase's output, before any agent's opinion (ADR-025, docs/WORKFLOW-SYSTEM.md)."""

from worker.verification.gates.check import Around as Around
from worker.verification.gates.check import check as check
from worker.verification.gates.check import each_gate as each_gate
from worker.verification.gates.gate import GateReport as GateReport
from worker.verification.gates.gate import GateResult as GateResult
