"""What the agents and the verifier of a chaos run's phases play, and what their users decide when a phase is suspended.

A description names its kind, as a message does (``repertoire``): ``[p1-0-0] phase-mended: ...``. It stands in the
verifier's prompt too, so the rules of the verifiers come first in the script.
"""

import json
from dataclasses import dataclass
from typing import Any

from tests.chaos.traffic.repertoire import Steps

#: What every phase has to make, and what its agents and users write there.
FILE = "result.json"
GOOD, EDITED, BAD = json.dumps({"done": True}), json.dumps({"done": True, "by": "hand"}), '{"done": '
EMPTY = "{}"

#: How long a phase waits in the inbox: nobody decides on some, and others are to be decided before this.
SOON_SECONDS, LATE_SECONDS = 5.0, 30.0

_TEXT = "Das Ergebnis liegt in output/."


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseKind:
    """A kind of phase.

    Attributes:
        weight: how often it is drawn.
        runs: what the agent plays, by attempt; an attempt of the other model is one more. The last repeats.
        verdicts: what the verifier plays, by attempt; empty for a phase without one.
        gates: its gates besides those that all phases have.
        max_attempts: runs of its agent. expert: another model is asked before a person is.
        decisions: what its user decides, each time it is suspended; the last repeats. Empty: the time-out decides.
        default: what a time-out decides.
    """

    weight: int = 1
    runs: tuple[Steps, ...]
    verdicts: tuple[Steps, ...] = ()
    gates: tuple[dict[str, Any], ...] = ()
    max_attempts: int = 1
    expert: bool = False
    decisions: tuple[str, ...] = ()
    default: str = "reject"

    def escalation(self) -> dict[str, Any]:
        """What is asked for when all attempts fail, as HTTP takes it."""
        return {
            "model": "expert" if self.expert else "",
            "runs": 1,
            "human": True,
            "timeout_seconds": LATE_SECONDS if self.decisions else SOON_SECONDS,
            "default": self.default,
        }


def _writes(content: str, seconds: float = 0.5) -> Steps:
    return [{"write": {"path": f"output/{FILE}", "content": content}}, {"say": {"text": _TEXT, "seconds": seconds}}]


def _judges(success: bool, seconds: float = 0.5) -> Steps:
    errors = [] if success else [f"{FILE}: not what was asked for"]
    return [{"wait": seconds}, {"verdict": {"success": success, "errors": errors}}]


_PASS, _FAIL = _judges(success=True), _judges(success=False)
_NO_VERDICT: Steps = [{"say": "Sieht gut aus."}]
_COMMAND = {"type": "command", "command": ["grep", "-q", "done", FILE], "seconds": 20}
_WRONG, _WRONG_THEN_RIGHT = (_writes(BAD),), (_writes(BAD), _writes(GOOD))

#: The first ones are in short runs too: between them they meet everything a run must have met.
PHASES: dict[str, PhaseKind] = {
    "phase-sound": PhaseKind(weight=4, runs=(_writes(GOOD),), verdicts=(_PASS,), max_attempts=3),
    "phase-mended": PhaseKind(weight=3, runs=_WRONG_THEN_RIGHT, verdicts=(_PASS,), max_attempts=3),
    "phase-consulted": PhaseKind(weight=2, runs=_WRONG_THEN_RIGHT, expert=True),
    "phase-approved": PhaseKind(weight=2, runs=_WRONG, decisions=("approve",)),
    "phase-forgotten": PhaseKind(weight=2, runs=_WRONG, default="approve"),
    "phase-doubted": PhaseKind(weight=3, runs=(_writes(GOOD),), verdicts=(_FAIL, _FAIL, _PASS), max_attempts=3),
    "phase-redone": PhaseKind(weight=2, runs=_WRONG_THEN_RIGHT, decisions=("retry", "approve")),
    "phase-slow": PhaseKind(weight=3, runs=(_writes(GOOD, 4.0),), verdicts=(_judges(success=True, seconds=3.0),)),
    "phase-commanded": PhaseKind(weight=2, runs=(_writes(EMPTY), _writes(GOOD)), gates=(_COMMAND,), max_attempts=2),
    "phase-edited": PhaseKind(runs=_WRONG, decisions=("edit",)),
    "phase-refused": PhaseKind(runs=_WRONG, expert=True, decisions=("reject",)),
    "phase-abandoned": PhaseKind(runs=_WRONG),
    "phase-unjudged": PhaseKind(runs=(_writes(GOOD),), verdicts=(_NO_VERDICT,), decisions=("approve",)),
}
#: What the agent of a phase that passes says.
ANSWERS = (_TEXT,)


def phase_rules() -> list[dict[str, Any]]:
    """The rules of all kinds of phases, for the agents' script; they must stand before all others."""
    verifiers = [
        {"matches": rf"(?s)HELIX verification.*\] {name}:", "attempts": list(kind.verdicts)}
        for name, kind in PHASES.items()
        if kind.verdicts
    ]
    return verifiers + [{"when": f"{name}:", "attempts": list(kind.runs)} for name, kind in PHASES.items()]


def phase(number: int, kind: str, description: str) -> dict[str, Any]:
    """One phase, as phases.yaml and HTTP have it; ``number`` names it in its folder."""
    what = PHASES[kind]
    return {
        "id": f"p{number}",
        "description": description,
        "output_files": [FILE],
        "quality_gate": list(what.gates) or None,
        "verify_agent": bool(what.verdicts),
        "max_attempts": what.max_attempts,
    }
