"""The surroundings of gates' programs: the box that agents run in, or none, for whom that is allowed.

A gate's program runs what an agent wrote. So it runs in a box wherever one can be made; where none can, only phases
that an operator submitted may run programs (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from api_client.contract.phase import Phase
from api_client.contract.settings import Settings
from worker.runners.claude.hooks import readable_entries
from worker.runners.guard import box
from worker.runners.guard.box import Bind, BoxError
from worker.runners.guard.footprint import Bounds
from worker.runners.guard.launch import OUR_CODE

#: Gates that start programs of the phase's own: they run only when the gates before them found no error.
RUNS_PROGRAMS = frozenset({"tests_pass", "command"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The surroundings of gates.

    Attributes:
        mode: ``HELIX_BOX``: auto, off or required.
        root: HELIX_ROOT: programs may read there what agents may read; None for nothing.
        operator: an operator submitted the phase: its programs may run where no box can be made.
        bounds: what its programs may use of the machine. obstacle: why no box can be made here; empty when one can.
        shared: why a box here shares the machine's network; empty when it has its own.
    """

    mode: str = "auto"
    root: Path | None = None
    operator: bool = True
    bounds: Bounds = field(default_factory=Bounds)
    obstacle: str = field(default_factory=lambda: box.obstacle())
    shared: str = field(default_factory=lambda: box.network_obstacle())

    @classmethod
    def of(cls, settings: Settings, *, operator: bool = True) -> Fence:
        """The fence of an installation."""
        return cls(mode=settings.box, root=settings.root, operator=operator, bounds=Bounds.of(settings))

    def refusal(self, phase: Phase) -> str:
        """Return why the gates of a phase may not run here; empty when they may."""
        programs = [gate.type for gate in phase.quality_gates if gate.type in RUNS_PROGRAMS]
        return self.refused(programs[0] if programs else "")

    def refused(self, gate: str) -> str:
        """Return why a gate may not run here, empty when it may; ``gate`` is the name of one that runs programs."""
        problem = "HELIX_BOX=off" if self.mode == "off" else self.obstacle or self.shared
        if not problem:
            return ""
        if self.mode == "required":
            return f"HELIX_BOX=required, but {problem}"
        if gate and not self.operator:
            return (
                "set up a box on this worker, or let an operator submit the phase: "
                f"gate {gate} runs what an agent wrote, and {problem} (docs/security.md)"
            )
        return ""

    @property
    def boxed(self) -> bool:
        """True when programs run in a box."""
        return self.mode != "off" and not self.obstacle

    def around(self, argv: Sequence[str], cwd: Path, own: Bind) -> list[str]:
        """The command that runs ``argv`` behind the fence; ``own``, when writable, is its only writable place.

        Raises ``BoxError``: a box is required, and none can be made.
        """
        if problem := self.refused(""):
            raise BoxError(problem)
        if not self.boxed:
            return list(argv)
        project = [Bind(path) for path in readable_entries(self.root)] if self.root else []
        binds = box.nested(own, [*OUR_CODE, *project])
        return box.boxed(argv, cwd, binds, cut=not self.shared, tmp_mb=self.bounds.tmp_mb)
