"""A phase: a unit of work whose output is verified (ADR-025)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api_client.contract.phase_checks import PHASE, PhaseError, list_gates, spell_id
from api_client.contract.value_kinds import Findings, InvalidValue, describe_unknown_key

DEFAULT_ATTEMPTS = 3
MAX_PHASES = 200


@dataclass(frozen=True, slots=True)
class QualityGate:
    """An automatic check of a phase's result, chosen by name and configured by options."""

    type: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def criteria(self) -> tuple[str, ...]:
        """Return the criteria of this check that the verifying agent must judge, one sentence each."""
        return tuple(self.options.get("criteria", ()))

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type, **self.options}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase of a workflow: a task for an agent, and the checks that its result must pass.

    Attributes:
        id: unique in its file; names the phase in commands, folders and events.
        name, type: shown to people; ``type`` changes nothing.
        description: the task of the agent.
        config: notes for the agent; ``model`` names the model of ``HELIX_MODELS`` that does the work.
        input_files: files that the agent reads, relative to the folder of phases.yaml.
        output_files: files that must exist afterwards, relative to the phase's ``output/``.
        quality_gates: gates after ``files_exist`` and ``syntax``, which always come first.
        verify_agent: an independent agent verifies the output after the gates have passed.
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
        """Return the model that works on the phase, or an empty string for the caller's model."""
        return str(self.config.get("model", ""))

    @property
    def criteria(self) -> tuple[str, ...]:
        """Return the criteria that the verifying agent judges in addition to the description."""
        return tuple(criterion for gate in self.quality_gates for criterion in gate.criteria)

    def to_dict(self) -> dict[str, Any]:
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
        """Create a phase from its form in phases.yaml. Raises ``PhaseError`` naming every problem."""
        found = Findings()
        found.read_part(PHASE, data)
        if found.problems:
            raise PhaseError(found.problems)
        return _build_phase(data)


def read_phases(data: object) -> tuple[Phase, ...]:
    """Parse the content of a phases.yaml file: a list of phases, alone or under the key ``phases``.

    Raises ``PhaseError``, which names every problem.
    """
    try:
        return read_phases_kind(data)
    except InvalidValue as error:
        raise PhaseError(error.problems) from None


def read_phases_kind(data: object) -> tuple[Phase, ...]:
    """Parse the content of a phases.yaml file. Raises ``InvalidValue``, which holds every problem."""
    found, prefix, seen = Findings(), list[str](), dict[str, int]()
    if isinstance(data, Mapping):
        known, prefix = ("phases", "name", "description"), ["phases"]
        for key in data:
            if key not in known:
                found.add_problem(describe_unknown_key(key, known), str(key)[:80], of_key=True)
        data = data.get("phases")
    entries = data if isinstance(data, list) else []
    if not entries:
        found.add_problem("must be a list of phases with at least one phase", *prefix)
    if len(entries) > MAX_PHASES:
        found.add_problem(f"has more than {MAX_PHASES} phases", *prefix)
        found.raise_problems()
    for number, entry in enumerate(entries):
        found.read_part(PHASE, entry, *prefix, number)
        name = spell_id(entry.get("id")) if isinstance(entry, Mapping) else ""
        if name and name in seen:
            found.add_problem(f"phase {seen[name] + 1} has the id {name!r} already", *prefix, number, "id")
        seen.setdefault(name, number)
    found.raise_problems()
    return tuple(map(_build_phase, entries))


def _build_phase(data: Any) -> Phase:
    data = {key: value for key, value in data.items() if value is not None}
    name = spell_id(data["id"])
    gates = list_gates(data.get("quality_gate"))
    return Phase(
        id=name,
        name=data.get("name", name),
        type=data.get("type", "development"),
        description=data["description"],
        config=dict(data.get("config", {})),
        input_files=tuple(data.get("input_files", ())),
        output_files=tuple(data.get("output_files", ())),
        quality_gates=tuple(
            QualityGate(
                gate["type"], {key: value for key, value in gate.items() if key != "type" and value is not None}
            )
            for gate in gates
        ),
        verify_agent=data.get("verify_agent", False),
        max_attempts=data.get("max_attempts", DEFAULT_ATTEMPTS),
    )
