"""The plan of a chaos run: who asks what when, and what breaks when. Pure: the same seed makes the same plan."""

import random
from dataclasses import dataclass, replace

from tests.chaos.traffic.escalations import ESCALATING
from tests.chaos.traffic.phase_repertoire import PHASES
from tests.chaos.traffic.repertoire import KINDS

#: Seconds of one round of faults: several at once, then calm, then one worker killed alone, to measure its recovery.
STORM, CALM, ALONE = 11.0, 12.0, 13.0

#: One submission in so many is a phase, and phases begin within this part of the load's time: they take longer.
PHASES_EVERY, PHASES_WITHIN = 8, 0.8

#: One submission in so many is a message that no attempt answers well.
ESCALATING_EVERY = 24

#: The ``pick`` that hits the busiest.
BUSIEST = 0.0

#: fault -> weight in a storm. What each does is in ``nemesis``.
STORMS = {
    "kill engine": 10,
    "kill worker": 3,
    "kill all workers": 1,
    "kill guard": 3,
    "kill broker": 5,
    "freeze engine": 5,
    "freeze guard": 1,
    "freeze broker": 2,
    "freeze relay": 1,
    "cut": 3,
    "stall": 2,
    "delay": 2,
    "throttle": 1,
    "deafen": 2,
    "lose message": 2,
    "double message": 3,
    "late message": 2,
    "flush scripts": 1,
    "drop connections": 1,
}
#: Faults that hold up no turn on another worker: they go on at any time.
ANY_TIME = {"kill agent": 4, "kill relay": 2, "cut client": 2, "freeze agent": 1}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault, ``at`` seconds after the load's start; ``pick`` (0 to 1) chooses among what it may hit."""

    at: float
    kind: str
    seconds: float
    pick: float


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One message. ``way``: turn, stream, whole or phase (how it is sent); ``readers``: followers of its events.

    ``cancel_after``: seconds until its user calls it off; 0 for never.
    """

    key: str
    kind: str
    way: str
    readers: int
    double_text: str
    cancel_after: float


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """One chat: its messages in order. ``hasty``: sends the next one without waiting for the answer.

    Or one folder of phases: ``chat`` is its name, and ``hasty`` sends all of them at once.
    """

    at: float
    chat: str
    hasty: bool
    turns: tuple[PlannedTurn, ...]

    @property
    def phases(self) -> bool:
        """True for a folder of phases."""
        return self.turns[0].way == "phase"


def sessions(seed: int, turns: int, seconds: float) -> list[PlannedSession]:
    """Chats and folders of phases with ``turns`` submissions in all, beginning over ``seconds``."""
    phases, handed_on = turns // PHASES_EVERY, turns // ESCALATING_EVERY
    planned = chats(seed, turns - phases - handed_on, seconds)
    planned += folders(seed, phases, seconds * PHASES_WITHIN)
    planned += hard_chats(seed, handed_on, seconds * PHASES_WITHIN)
    return sorted(planned, key=lambda session: session.at)


def chats(seed: int, turns: int, seconds: float) -> list[PlannedSession]:
    """Chats with ``turns`` messages in all, beginning over ``seconds``."""
    draw = random.Random(f"sessions {seed}")
    kinds = _kinds(draw, {name: kind.weight for name, kind in KINDS.items()}, turns)
    for place in range(turns // 300):
        kinds[-1 - place] = "poison"
    draw.shuffle(kinds)
    planned: list[PlannedSession] = []
    while kinds:
        number = len(planned)
        size = min(len(kinds), draw.choice((1, 2, 3, 4)))
        hasty = draw.random() < 0.5
        chat = [_turn(draw, f"k{seed}-{number}-{place}", kinds.pop(), hasty) for place in range(size)]
        planned.append(PlannedSession(0.0, f"chat-{seed}-{number}", hasty, tuple(chat)))
    return _over(draw, planned, seconds)


def hard_chats(seed: int, turns: int, seconds: float) -> list[PlannedSession]:
    """Chats with ``turns`` messages that no attempt answers well; a second one waits while the first is suspended."""
    draw = random.Random(f"hard chats {seed}")
    kinds = _kinds(draw, dict.fromkeys(ESCALATING, 1), turns)
    draw.shuffle(kinds)
    planned: list[PlannedSession] = []
    while kinds:
        number = len(planned)
        keys = [f"h{seed}-{number}-{place}" for place in range(min(len(kinds), draw.choice((1, 2))))]
        messages = tuple(
            PlannedTurn(key=key, kind=kinds.pop(), way="turn", readers=0, double_text="queue", cancel_after=0.0)
            for key in keys
        )
        planned.append(PlannedSession(0.0, f"hard-{seed}-{number}", True, messages))
    return _over(draw, planned, seconds)


def folders(seed: int, phases: int, seconds: float) -> list[PlannedSession]:
    """Folders with ``phases`` phases in all, beginning over ``seconds``."""
    draw = random.Random(f"phases {seed}")
    kinds = _kinds(draw, {name: kind.weight for name, kind in PHASES.items()}, phases)
    draw.shuffle(kinds)
    planned: list[PlannedSession] = []
    while kinds:
        number = len(planned)
        size = min(len(kinds), draw.choice((1, 1, 2, 3)))
        turns = tuple(_phase(draw, f"p{seed}-{number}-{place}", kinds.pop()) for place in range(size))
        planned.append(PlannedSession(0.0, f"phases-{seed}-{number}", size > 1 and draw.random() < 0.5, turns))
    return _over(draw, planned, seconds)


def _over(draw: random.Random, planned: list[PlannedSession], seconds: float) -> list[PlannedSession]:
    starts = sorted(draw.uniform(0, seconds) for _ in planned)
    return [replace(session, at=at) for at, session in zip(starts, planned, strict=True)]


def _kinds(draw: random.Random, weights: dict[str, int], count: int) -> list[str]:
    """So many kinds: every kind at least once if there are enough, the rest by weight."""
    drawn = [name for name, weight in weights.items() if weight][:count]
    return drawn + draw.choices(list(weights), list(weights.values()), k=count - len(drawn))


def _turn(draw: random.Random, key: str, kind: str, hasty: bool) -> PlannedTurn:
    way = "turn" if hasty else draw.choice(("turn", "stream", "stream", "whole"))
    return PlannedTurn(
        key=key,
        kind=kind,
        way=way,
        readers=draw.choice((0, 1, 1) if hasty else (0, 0, 1)),
        double_text=draw.choices(("queue", "reject", "interrupt"), (16, 1, 3))[0] if hasty else "queue",
        cancel_after=draw.uniform(0.1, 4.0) if kind != "poison" and draw.random() < 0.05 else 0.0,
    )


def _phase(draw: random.Random, key: str, kind: str) -> PlannedTurn:
    cancel_after = draw.uniform(0.1, 6.0) if draw.random() < 0.05 else 0.0
    return PlannedTurn(
        key=key, kind=kind, way="phase", readers=draw.choice((0, 0, 1)), double_text="queue", cancel_after=cancel_after
    )


def faults(seed: int, seconds: float, lease: float) -> list[PlannedFault]:
    """The faults of ``seconds``, in rounds of storm, calm, and one worker killed alone."""
    draw = random.Random(f"faults {seed}")
    planned: list[PlannedFault] = []
    begin = 2.0
    while begin < seconds - 2.0:
        at = begin
        while at < min(begin + STORM, seconds):
            planned.append(_drawn(draw, at, STORMS, begin + STORM - at, lease))
            at += draw.uniform(0.7, 2.6)
        alone = begin + STORM + CALM
        if alone < seconds:
            planned.append(PlannedFault(alone, draw.choice(("kill engine", "kill worker")), 0.0, BUSIEST))
        begin = alone + ALONE
    at = 4.0
    while at < seconds:
        planned.append(_drawn(draw, at, ANY_TIME, 6.0, lease))
        at += draw.uniform(2.5, 7.0)
    return sorted(planned, key=lambda fault: fault.at)


def _drawn(draw: random.Random, at: float, weights: dict[str, int], room: float, lease: float) -> PlannedFault:
    kind = draw.choices(list(weights), list(weights.values()))[0]
    lasting = draw.choice((0.2, 1.0, 3.0, 6.0))
    if kind in {"freeze engine", "freeze guard"}:
        lasting = lease * draw.choice((0.3, 1.3, 1.6))
    return PlannedFault(round(at, 3), kind, round(max(0.2, min(lasting, room + 3.0)), 3), draw.random())
