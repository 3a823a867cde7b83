"""The scenes of ``turns demo`` and the checks of their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api_client.contract.turn import Outcome, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A message that ``turns demo`` sends, with the expected result.

    Attributes:
        step_source: expected origin of the step; empty: any.
    """

    title: str
    de: str
    en: str
    outcome: Outcome = Outcome.PASSED_AFTER_RETRY
    attempts: int = 2
    step_source: str = "marker"
    kill_worker: bool = False


SCENES = (
    Scene(
        title="a good answer",
        de="Wie sollen wir fehlgeschlagene Webhooks erneut zustellen?",
        en="How should we redeliver failed webhooks?",
        outcome=Outcome.PASSED,
        attempts=1,
    ),
    Scene(
        title="an answer that forgets its step marker",
        de="Warum gehen uns bei einem Neustart Nachrichten verloren?",
        en="Why do we lose messages when we restart?",
    ),
    Scene(
        title="an agent that dies in mid-answer",
        de="Welche Datenbank passt zu unserem Auftragsarchiv?",
        en="Which database fits our order archive?",
    ),
    Scene(
        title="an ADR that lacks one section: only that is asked for, the rest stays as it was",
        de="Schreib ein ADR zum Wechsel von Cron zu Celery Beat.",
        en="Write an ADR about replacing cron by Celery Beat.",
    ),
    Scene(
        title="an agent that never writes the marker: the step is inferred, and labelled as inferred",
        de="Kannst du uns beim Aufräumen der Log-Dateien helfen?",
        en="Can you help us to clean up our log files?",
        outcome=Outcome.PASSED_BY_FALLBACK,
        attempts=3,
        step_source="inferred",
    ),
    Scene(
        title="an ADR that never gets its sections: the user reads an honest error",
        de="Schreib ein ADR zur Umstellung auf ereignisbasierte Rechnungen.",
        en="Write an ADR about invoices made from events.",
        outcome=Outcome.FAILED,
        attempts=3,
        step_source="",
    ),
    Scene(
        title="the worker is killed in the middle",
        de="Erkläre ausführlich, wie ein Lease einen abgestürzten Worker erkennt.",
        en="Explain in detail how a lease detects a crashed worker.",
        outcome=Outcome.PASSED,
        attempts=1,
        kill_worker=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneResult:
    """The result of one demo message, with the text or the error that the client received."""

    scene: Scene
    turn: Turn
    seconds: float
    client_text: str
    client_error: str

    @property
    def problems(self) -> list[str]:
        """Return the differences between the result and the scene's expectations, as sentences."""
        turn, scene = self.turn, self.scene
        pairs: list[tuple[str, Any, Any]] = [
            ("outcome", turn.outcome, scene.outcome),
            ("attempts", turn.attempt, scene.attempts),
            ("deliveries", turn.delivery, scene.attempts + scene.kill_worker),
        ]
        if scene.step_source:
            pairs.append(("step_source", turn.step_source, scene.step_source))
        found = [f"{name} is {is_!s}, not {wanted!s}" for name, is_, wanted in pairs if is_ != wanted]
        if bool(self.client_text) != scene.outcome.success or bool(self.client_error) == scene.outcome.success:
            found.append("the client did not see what the turn's record says")
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "turn_id": self.turn.turn_id,
            "scene": self.scene.title,
            "outcome": self.turn.outcome.value if self.turn.outcome else None,
            "attempts": self.turn.attempt,
            "deliveries": self.turn.delivery,
            "seconds": round(self.seconds, 2),
            "step": self.turn.step,
            "step_source": self.turn.step_source,
            "as_expected": not self.problems,
            "problems": self.problems,
        }
