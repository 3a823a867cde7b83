"""A phase: a piece of work whose output is really checked (ADR-025).

It travels inside a turn's request as JSON. docs/WORKFLOW-SYSTEM.md describes the keys; ``phase_checks`` says the
faults of a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api_client.contract.declared import Findings, Invalid, unknown
from api_client.contract.phase_checks import PHASE, PhaseError, gate_entries, spelled

#: Runs of a phase when it names no number (ADR-025: three).
DEFAULT_ATTEMPTS = 3
MAX_PHASES = 200


@dataclass(frozen=True, slots=True)
class QualityGate:
    """A deterministic check by name, with its options; ``criteria`` are for the verifier, who judges the rest."""

    type: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def criteria(self) -> tuple[str, ...]:
        """Return what only a reader can judge, one sentence each."""
        return tuple(self.options.get("criteria", ()))

    def to_dict(self) -> dict[str, Any]:
        """The gate as phases.yaml writes it."""
        return {"type": self.type, **self.options}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a workflow.

    Attributes:
        id: unique in its file; names the phase in commands, folders and events.
        name: for people. type: what kind of work it is, for people; it steers nothing.
        description: what the agent is to do.
        config: notes for the agent; ``model`` names the model of ``HELIX_MODELS`` that does the work.
        input_files: what the agent reads, relative to the folder of phases.yaml.
        output_files: what must be there afterwards, relative to the phase's ``output/``.
        quality_gates: the gates after ``files_exist`` and ``syntax``, which always come first.
        verify_agent: whether an independent agent judges the output once the gates have passed.
        max_attempts: how often the agent is run at most.
    """

    id: str
    name: str = ""
    type: str = "development"
    description: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    input_files: tuple[str, ...] = ()
    output_files: tuple[str, ...] = ()
    quality_gates: tuple[QualityGate, ...] = ()
    verify_agent: bool = False
    max_attempts: int = DEFAULT_ATTEMPTS

    @property
    def model(self) -> str:
        """The model that does the work; empty for the one the caller names."""
        return str(self.config.get("model", ""))

    @property
    def criteria(self) -> tuple[str, ...]:
        """Return what the verifier is to judge besides the description."""
        return tuple(criterion for gate in self.quality_gates for criterion in gate.criteria)

    def to_dict(self) -> dict[str, Any]:
        """The phase as phases.yaml writes it, JSON-ready; ``from_dict`` reads it back."""
        return {
            "id": self.id,
            "name": self.name or self.id,
            "type": self.type,
            "description": self.description,
            "config": self.config,
            "input_files": list(self.input_files),
            "output_files": list(self.output_files),
            "quality_gate": [gate.to_dict() for gate in self.quality_gates],
            "verify_agent": self.verify_agent,
            "max_attempts": self.max_attempts,
        }

    @classmethod
    def from_dict(cls, data: object) -> Phase:
        """Read one phase. Raises ``PhaseError``: it is wrong; names every problem."""
        found = Findings()
        found.read(PHASE, data)
        if found.problems:
            raise PhaseError(found.problems)
        return _read(data)


def read_phases(data: object) -> tuple[Phase, ...]:
    """Read the content of a phases.yaml: a list of phases, or a mapping with the list under ``phases``.

    Raises ``PhaseError``: it is wrong; names every problem.
    """
    try:
        return checked_phases(data)
    except Invalid as error:
        raise PhaseError(error.problems) from None


def checked_phases(data: object) -> tuple[Phase, ...]:
    """As ``read_phases``, but raises ``Invalid``, as a kind does."""
    found, prefix, seen = Findings(), list[str](), dict[str, int]()
    if isinstance(data, Mapping):
        known, prefix = ("phases", "name", "description"), ["phases"]
        for key in data:
            if key not in known:
                found.wrong(unknown(key, known), str(key)[:80], of_key=True)
        data = data.get("phases")
    entries = data if isinstance(data, list) else []
    if not entries:
        found.wrong("must be a list of phases with at least one phase", *prefix)
    if len(entries) > MAX_PHASES:
        found.wrong(f"has more than {MAX_PHASES} phases", *prefix)
        found.end()
    for number, entry in enumerate(entries):
        found.read(PHASE, entry, *prefix, number)
        name = spelled(entry.get("id")) if isinstance(entry, Mapping) else ""
        if name and name in seen:
            found.wrong(f"phase {seen[name] + 1} has the id {name!r} already", *prefix, number, "id")
        seen.setdefault(name, number)
    found.end()
    return tuple(map(_read, entries))


def _read(data: Any) -> Phase:
    """A phase that was found right. A key without a value counts as left out."""
    data = {key: value for key, value in data.items() if value is not None}
    name = spelled(data["id"])
    gates = gate_entries(data.get("quality_gate"))
    return Phase(
        id=name,
        name=data.get("name", name),
        type=data.get("type", "development"),
        description=data["description"],
        config=dict(data.get("config", {})),
        input_files=tuple(data.get("input_files", ())),
        output_files=tuple(data.get("output_files", ())),
        quality_gates=tuple(QualityGate(gate["type"], _options(gate)) for gate in gates),
        verify_agent=data.get("verify_agent", False),
        max_attempts=data.get("max_attempts", DEFAULT_ATTEMPTS),
    )


def _options(gate: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in gate.items() if key != "type" and value is not None}
