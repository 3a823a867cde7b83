"""The sandbox of gates' programs, which execute files that an agent wrote (docs/security.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from api_client.contract.phase import Phase
from api_client.contract.settings import Settings
from worker.runners.guidance import readable_entries
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.bubblewrap import SandboxError, SandboxMount
from worker.runners.sandbox.launch import OUR_CODE
from worker.runners.sandbox.resource_usage import ResourceLimits

#: Gates that execute files of the phase; skipped if an earlier gate found an error.
RUNS_PROGRAMS = frozenset({"tests_pass", "command"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSandbox:
    """The sandbox in which the quality gates of a phase run programs, such as tests that an agent wrote."""

    mode: str = "auto"
    root: Path | None = None
    operator: bool = True
    bounds: ResourceLimits = field(default_factory=ResourceLimits)
    obstacle: str = field(default_factory=lambda: bubblewrap.find_obstacle())
    shared: str = field(default_factory=lambda: bubblewrap.find_network_obstacle())

    @classmethod
    def from_settings(cls, settings: Settings, *, operator: bool = True) -> GateSandbox:
        """Build the sandbox that the settings describe for the programs of quality gates."""
        return cls(
            mode=settings.sandbox, root=settings.root, operator=operator, bounds=ResourceLimits.from_settings(settings)
        )

    def explain_phase_refusal(self, phase: Phase) -> str:
        """Return why the quality gates of a phase may not run on this worker, or an empty string if they may."""
        programs = [gate.type for gate in phase.quality_gates if gate.type in RUNS_PROGRAMS]
        return self.explain_refusal(programs[0] if programs else "")

    def explain_refusal(self, gate: str) -> str:
        """Return why a quality gate may not run on this worker, or an empty string if the gate may run.

        ``gate`` names a gate that executes files of the phase; empty for other gates.
        """
        problem = "HELIX_SANDBOX=off" if self.mode == "off" else self.obstacle or self.shared
        if not problem:
            return ""
        if self.mode == "required":
            return f"HELIX_SANDBOX=required, but {problem}"
        if gate and not self.operator:
            return (
                "set up a sandbox on this worker, or let an operator submit the phase: "
                f"gate {gate} runs what an agent wrote, and {problem} (docs/security.md)"
            )
        return ""

    @property
    def sandboxed(self) -> bool:
        return self.mode != "off" and not self.obstacle

    def wrap_command(self, argv: Sequence[str], cwd: Path, own: SandboxMount) -> list[str]:
        """Return the command line that runs a program inside the sandbox. Raises ``SandboxError``.

        ``own`` is the folder of the program and, if writable, the only writable folder.
        """
        if problem := self.explain_refusal(""):
            raise SandboxError(problem)
        if not self.sandboxed:
            return list(argv)
        project = [SandboxMount(path) for path in readable_entries(self.root)] if self.root else []
        binds = bubblewrap.insert_mount(own, [*OUR_CODE, *project])
        return bubblewrap.sandbox_command(argv, cwd, binds, cut=not self.shared, tmp_mb=self.bounds.tmp_mb)
