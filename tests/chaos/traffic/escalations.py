"""Messages of a chaos run that no attempt answers well: another model is asked, then a person, and what they decide.

They are kinds of turns as in ``repertoire``, with what their user asks for when all fails, and what is decided.
"""

from dataclasses import dataclass
from typing import Any

from tests.chaos.traffic.phase_repertoire import LATE_SECONDS, SOON_SECONDS
from tests.chaos.traffic.repertoire import Steps, good

#: What a person writes who edits an answer.
EDITED = "Von Hand geschrieben.\n\n<!-- STEP: done -->"

_BARE: Steps = [{"say": {"text": "Ohne Marker.", "seconds": 0.6}}]
_again, _AGAIN = good("again", 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalating:
    """A kind of message.

    Attributes:
        runs: what the agent plays, by attempt; the last repeats. Another model's attempt is one more.
        answers: the texts that may be accepted by the validators.
        expert: another model (HELIX_ESCALATION_MODEL) is asked before a person is.
        decisions: what its user decides, each time it is suspended; the last repeats. Empty: the time-out decides.
    """

    runs: tuple[Steps, ...]
    answers: tuple[str, ...] = ()
    expert: bool = False
    decisions: tuple[str, ...] = ()

    def asked(self) -> dict[str, Any]:
        """What a request says besides its message: a missing marker is neither asked for again nor repaired."""
        escalation: dict[str, Any] = {"timeout_seconds": LATE_SECONDS if self.decisions else SOON_SECONDS}
        if not self.expert:
            escalation["model"] = ""
        return {"policy": {"step_marker": ["escalate"]}, "escalation": escalation, "max_attempts": 2}


#: The first ones are in short runs too: between them they meet everything a run must have met.
ESCALATING: dict[str, Escalating] = {
    "chat-consulted": Escalating(runs=(_BARE, _again), answers=(_AGAIN,), expert=True),
    "chat-approved": Escalating(runs=(_BARE,), expert=True, decisions=("approve",)),
    "chat-edited": Escalating(runs=(_BARE,), decisions=("edit",)),
    "chat-undecided": Escalating(runs=(_BARE,)),
    "chat-told": Escalating(runs=(_BARE, _again), answers=(_AGAIN,), decisions=("retry", "approve")),
    "chat-refused": Escalating(runs=(_BARE,), decisions=("reject",)),
}


def escalating_rules() -> list[dict[str, Any]]:
    """The rules of all kinds, for the agents' script."""
    return [{"when": f"{name}:", "attempts": list(kind.runs)} for name, kind in ESCALATING.items()]
