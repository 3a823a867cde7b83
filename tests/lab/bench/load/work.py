"""The work: what the agent says for each kind of turn, the same in every row."""

import re

_TEXT = """\
Ich würde die Zustellung von der Verarbeitung trennen:

1. Jeder Webhook wird zuerst gespeichert, dann zugestellt.
2. Schlägt die Zustellung fehl, wird sie mit wachsendem Abstand wiederholt: 10 s, 1 min, 10 min, 1 h.
3. Nach fünf Versuchen landet er in einer Liste, die ein Mensch sieht.

Jede Zustellung trägt dieselbe Kennung, damit der Empfänger Doppelte erkennt.
"""
_MARKED = _TEXT + "\n<!-- STEP: what -->\n"
#: The pieces of a streamed answer: so many, of so many characters.
PIECES, PIECE_CHARACTERS = 200, 20
#: A held turn's agent sleeps this long, in seconds: longer than anybody waits for it.
HELD_SECONDS = 600

FIRST, REJECTED, STREAM, HELD = "first", "rejected", "stream", "held"
#: kind of turn -> what the agent says, attempt by attempt.
ANSWERS = {
    FIRST: (_MARKED,),
    REJECTED: (_TEXT, _MARKED),
    STREAM: ("<!-- STEP: what -->\n" + "x" * (PIECES * PIECE_CHARACTERS),),
    HELD: (_MARKED,),
}
_STEP = re.compile(r"<!--\s*STEP:\s*(init|what|why|how|validate|done)\s*-->", re.IGNORECASE)


def pieces(text: str) -> list[str]:
    """A text cut into pieces of ``PIECE_CHARACTERS``."""
    return [text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS)]


def answer(kind: str, attempt: int) -> str:
    """What the agent says in this attempt (from 1)."""
    return ANSWERS[kind][attempt - 1]


def accepted(text: str) -> bool:
    """The peers' only rule: the answer has a step marker."""
    return _STEP.search(text) is not None
