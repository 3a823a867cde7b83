"""What the agents of a chaos run play: kinds of turns, good and bad, and the script made of them.

A message names its kind, so that the script finds it: ``[k-17] forgetful: ...``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

_WORDS = (
    "Jeder Schritt wird zuerst aufgeschrieben und dann getan, damit nach einem Absturz jemand anders dort weitermachen "
    "kann, wo der Erste stehen geblieben ist. Was zweimal ankommt, wird am Schein erkannt und abgewiesen. "
)
#: Other words: where a text says one thing twice, an agent that is to go on behind it cannot know behind which.
_OTHER_WORDS = (
    "Ein Lauf, der abbricht, hat nichts verloren: der nächste sieht, wie weit der letzte kam, und sagt nur den Rest. "
    "Davor und dahinter bleibt jedes Zeichen stehen. "
)
_DONE = "\n\n<!-- STEP: done -->"

_HALF_ADR = """---
adr_id: "042"
title: "Warteschlange statt Cron"
status: Proposed
---

# ADR-042: Warteschlange statt Cron

## Kontext

Die Aufgaben laufen auf drei Rechnern, und niemand weiß, welche gelaufen sind.

<!-- STEP: generate -->
"""

Steps = list[Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of turn.

    Attributes:
        weight: how often it is drawn.
        attempts: what the agent plays, by attempt. deliveries: the same by delivery, instead.
        answers: the texts that may come out as the answer; empty when none may.
    """

    weight: int
    attempts: list[Steps] = field(default_factory=list)
    answers: tuple[str, ...] = ()
    deliveries: list[Steps] = field(default_factory=list)


def _say(text: str, seconds: float = 0.0) -> dict[str, Any]:
    return {"say": {"text": text, "seconds": seconds}}


def good(name: str, seconds: float, repeat: int = 1) -> tuple[Steps, str]:
    """Steps that give a good answer, and its text."""
    text = f"Antwort ({name}). {_WORDS * repeat}".strip() + _DONE
    return [_say(text, seconds)], text


_quick, _QUICK = good("quick", 0)
_steady, _STEADY = good("steady", 1.5)
_slow, _SLOW = good("slow", 4.5, 2)
_long, _LONG = good("long", 9.0, 3)
_again, _AGAIN = good("again", 1.0)
_BARE = f"Ohne Marker. {_WORDS}".strip()
_bare = [_say(_BARE, 0.6)]
_BROKEN = f"Antwort (broken). {_WORDS}{_OTHER_WORDS}".strip() + _DONE
_breaks = [_say(_BROKEN[:250], 0.8), "die"]


def _rest(text: str, seconds: float) -> Steps:
    """Steps that say a text, or what is missing of it where the agent is asked to go on."""
    return [{"say": {"text": text, "seconds": seconds, "goes_on": True}}]


_torn = [_say("Ich fange an, und dann ", 0.4), "die"]

KINDS: dict[str, Kind] = {
    "quick": Kind(20, [_quick], (_QUICK,)),
    "steady": Kind(20, [_steady], (_STEADY,)),
    "slow": Kind(16, [_slow], (_SLOW,)),
    "long": Kind(6, [_long], (_LONG,)),
    "forgetful": Kind(10, [_bare, _rest(_BARE + _DONE, 1.0)], (_BARE + _DONE,)),
    "stubborn": Kind(5, [_bare], (_BARE,)),
    "torn": Kind(5, [_torn, _again], (_AGAIN,)),
    "broken": Kind(5, [_breaks, _rest(_BROKEN, 1.5)], (_BROKEN,)),
    "hopeless": Kind(2, [_torn]),
    "cut": Kind(3, [[_say("Ich höre mitten im"), "cut"], _again], (_AGAIN,)),
    "resetting": Kind(3, [[_say("Falscher Anfang. ", 0.3), {"reset": "von vorn"}, *_again]], (_AGAIN,)),
    "halfadr": Kind(2, [[_say(_HALF_ADR, 0.5)]]),
    "passing": Kind(4, [], (_AGAIN,), [[_say("Gleich "), {"error": "transient"}], _again]),
    "refused": Kind(2, [[{"error": {"kind": "permanent", "message": "no such account"}}]]),
    "silent": Kind(2, [[_say("Ich sage nun nichts mehr "), "hang"], _again], (_AGAIN,)),
    "deaf": Kind(1, [["ignore_sigterm", _say("Ich höre nicht "), "hang"], _again], (_AGAIN,)),
    "forking": Kind(3, [[{"fork": 600}, *_again]], (_AGAIN,)),
    # Drawn by number, not by weight: each kills the workers that run it.
    "poison": Kind(0, [[_say("Gift "), "kill_parent"]]),
}


def script(before: Iterable[dict[str, Any]] = ()) -> str:
    """The script of all kinds, behind other rules, as the scripted agent reads it."""
    rules = [
        {"when": f"{name}:"} | ({"deliveries": kind.deliveries} if kind.deliveries else {"attempts": kind.attempts})
        for name, kind in KINDS.items()
    ]
    return yaml.safe_dump([*before, *rules], allow_unicode=True, sort_keys=False)


def message(key: str, kind: str) -> str:
    """What the user of turn ``key`` says."""
    return f"[{key}] {kind}: Bitte antworte."
