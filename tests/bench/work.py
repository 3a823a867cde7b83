"""The work that is measured: the same answers on both sides, from an agent that costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from api_client.contract.turn import Outcome

_TEXT = """\
Ich würde die Zustellung von der Verarbeitung trennen:

1. Jeder Webhook wird zuerst gespeichert, dann zugestellt.
2. Schlägt die Zustellung fehl, wird sie mit wachsendem Abstand wiederholt: 10 s, 1 min, 10 min, 1 h.
3. Nach fünf Versuchen landet er in einer Liste, die ein Mensch sieht.

Jede Zustellung trägt dieselbe Kennung, damit der Empfänger Doppelte erkennt.
"""
_MARKER = "\n<!-- STEP: what -->\n"
REJECTED, ACCEPTED = _TEXT, _TEXT + _MARKER

#: Where the plain side publishes, and how it says that a stream is over.
CHANNEL, ENDED = "plain:", "ended"
#: Streams: as many pieces as fast as the agent can, and a fast model's: a piece a millisecond.
BURST, PACED = 2000, 500
PACED_SECONDS = 0.5


@dataclass(frozen=True)
class Kind:
    """One kind of turn: the message that asks for it, its agent runs, and how it must end."""

    message: str
    runs: int
    outcome: Outcome

    @property
    def answers(self) -> list[str]:
        """What the agent says, run by run."""
        return [*[REJECTED] * (self.runs - 1), ACCEPTED]


VALID = Kind("Webhooks, gleich richtig?", 1, Outcome.PASSED)
RETRIED = Kind("Webhooks, erst falsch?", 2, Outcome.PASSED_AFTER_RETRY)


def pieces(count: int) -> list[str]:
    """The pieces of a streamed answer."""
    return [f"Wort-nummer-{number:07d} " for number in range(count)]


def stream_message(count: int) -> str:
    """The message that is answered with a stream of so many pieces."""
    return f"{count} Worte?"


def write_script(path: Path) -> None:
    """Write the script of the inline runner: a rule for each kind of turn and for each stream."""
    rules = [
        {"when": kind.message, "attempts": [[{"say": answer}] for answer in kind.answers]} for kind in (VALID, RETRIED)
    ]
    for count, seconds in ((BURST, 0), (PACED, PACED_SECONDS)):
        said = {"say": {"text": "".join(pieces(count)), "pieces": count, "seconds": seconds}}
        rules.append({"when": stream_message(count), "attempts": [[said, {"say": _MARKER}]]})
    path.write_text(yaml.safe_dump(rules, allow_unicode=True), encoding="utf-8")
