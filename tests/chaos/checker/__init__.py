"""The checker: judges a stored history by the 21 invariants, without any server.

It imports nothing of the engine. Each rule reads ``Facts`` and yields ``Problem``; an invariant whose evidence is
missing gets no good verdict but ``unknown``.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.checker.counters import counters_equal
from tests.chaos.checker.decisions import decided_once
from tests.chaos.checker.ends import nothing_follows, nothing_invented, nothing_lost, one_end
from tests.chaos.checker.facts import Facts, Line, Problem, gather
from tests.chaos.checker.files import files_marked
from tests.chaos.checker.leftovers import nothing_left, within_budget
from tests.chaos.checker.order import session_order
from tests.chaos.checker.path import legal_path, no_overlap, one_commit, whole_log
from tests.chaos.checker.phases import verified_files, verified_once
from tests.chaos.checker.rare import SURE, rare_events
from tests.chaos.checker.readers import readers_agree
from tests.chaos.checker.recovery import Recovery, bounded_recovery, recoveries
from tests.chaos.checker.restored import backup_whole
from tests.chaos.checker.starts import starts_explained
from tests.chaos.checker.suspended import suspended_hold_nothing
from tests.chaos.checker.texts import client_texts, committed_texts, decided_texts

#: invariant -> its name, and what must be in the history for a verdict.
INVARIANTS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("at most one end", ("server",)),
    2: ("nothing follows the end", ("server",)),
    3: ("nothing lost", ("server", "submit")),
    4: ("nothing invented or doubled", ("server", "submit")),
    5: ("legal path", ("server",)),
    6: ("one commit per attempt", ("server", "execution")),
    7: ("late workers never commit", ("server", "execution")),
    8: ("session order", ("server", "submit")),
    9: ("counters equal the logs", ("server",)),
    10: ("readers see the log", ("server", "event")),
    11: ("gap-free log", ("server", "final")),
    12: ("the client's text is the answer", ("server", "chat")),
    13: ("files of the accepted delivery", ("server", "files")),
    14: ("bounded recovery", ("server", "fault")),
    15: ("nothing left behind", ("server", "processes")),
    16: ("within budget", ("server", "execution")),
    17: ("phases verified once", ("server", "phase_files")),
    18: ("suspended turns hold nothing", ("server", "alive")),
    19: ("decisions applied once", ("server", "decide")),
    20: ("agent starts explained", ("server", "execution", "fault")),
    21: ("backup has what was acknowledged", ("server", "submit", "restored")),
}
_RULES: tuple[Callable[[Facts], Iterable[Problem]], ...] = (
    *(one_end, nothing_follows, nothing_lost, nothing_invented, legal_path, one_commit, no_overlap, session_order),
    *(counters_equal, readers_agree, whole_log, client_texts, committed_texts, decided_texts, files_marked),
    *(
        bounded_recovery,
        nothing_left,
        within_budget,
        verified_once,
        verified_files,
        suspended_hold_nothing,
        decided_once,
    ),
    *(starts_explained, backup_whole),
)
#: Figures that must be zero, as the result names them; any other figure a rule counts must be zero too.
MUST_BE_ZERO = (
    *("lost", "finished_twice", "late_commits_accepted", "seq_gaps", "seq_duplicates", "order_violations"),
    *("client_text_differs", "counters_differ", "verified_twice", "blocked_by_suspended", "decided_twice"),
    *("starts_unexplained", "missing_in_backup"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the checker says of a run.

    Attributes:
        figures: counts, the must-be-zero ones among them. verdicts: invariant -> "true", "false" or "unknown".
        recovery: n, p50, p99, max in seconds, for workers killed alone and where faults overlap (``recovery``).
        kills, disturbances: faults that hit, by kind.
        rare: how often each was met. outcomes: of all turns. machine: how busy it was; the latest a sample came.
    """

    figures: dict[str, int]
    verdicts: dict[int, str]
    problems: list[Problem]
    recovery: dict[str, dict[str, float]]
    kills: dict[str, int]
    disturbances: dict[str, int]
    rare: dict[str, int]
    outcomes: dict[str, int]
    run: Line = field(default_factory=dict)
    machine: dict[str, float] = field(default_factory=dict)

    @property
    def too_little(self) -> list[str]:
        """Why the run proves too little: verdicts nobody can give, and events every run must meet and this did not."""
        unknown = [f"{INVARIANTS[number][0]}: unknown" for number, said in self.verdicts.items() if said == "unknown"]
        return unknown + [f"{name}: never met" for name in SURE if not self.rare[name]]

    @property
    def good(self) -> bool:
        """Nothing was violated, and enough happened to say so."""
        return not self.problems and not self.too_little

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON, one flat object with the figures first."""
        return {
            **self.figures,
            "kills": self.kills,
            "disturbances": self.disturbances,
            "recovery_seconds": self.recovery,
            "outcomes": self.outcomes,
            "verdicts": {f"{number} {INVARIANTS[number][0]}": said for number, said in self.verdicts.items()},
            "sometimes": self.rare,
            "problems": [problem._asdict() for problem in self.problems[:50]],
            "too_little": self.too_little,
            "good": self.good,
            "machine": self.machine,
            "seed": self.run.get("seed"),
            "settings": {name: self.run.get(name) for name in ("turns", "seconds", "broken", "settings")},
        }


def judge(lines: Sequence[Line]) -> Judgement:
    """Judge a history. O(n) but for the pairs within one session and one fault."""
    facts = gather(lines)
    problems = [problem for rule in _RULES for problem in rule(facts)]
    counted = Counter(problem.figure for problem in problems)
    figures = {
        "submitted": len(facts.submits),
        "acknowledged": sum(bool(submit.turns) for submit in facts.submits.values()),
        "finished": sum(turn.finished for turn in facts.turns.values()),
        "phases": sum(bool(turn.phase) for turn in facts.turns.values()),
        **{name: counted[name] for name in MUST_BE_ZERO},
        **{name: count for name, count in counted.items() if name not in MUST_BE_ZERO},
        "agent_runs": sum(line["event"] == "start" for line in facts.by["execution"]),
    }
    return Judgement(
        figures=figures,
        verdicts={number: _verdict(facts, number, problems) for number in INVARIANTS},
        problems=problems,
        recovery=_recovery(recoveries(facts)),
        kills=dict(Counter(fault.kind for fault in facts.faults if fault.kind.startswith(("kill", "freeze")))),
        disturbances=dict(Counter(f.kind for f in facts.faults if not f.kind.startswith(("kill", "freeze")))),
        rare=rare_events(facts),
        outcomes=dict(Counter(turn.record.get("outcome") or "unfinished" for turn in facts.turns.values())),
        run=facts.run,
        machine=_machine(facts),
    )


def _machine(facts: Facts) -> dict[str, float]:
    """How busy the machine was: figures of time mean little on one that was kept waiting."""
    return {
        "processors": facts.run.get("processors", 0),
        "load_before": round(facts.run.get("load", 0.0), 1),
        "load_after": round(max((line.get("load", 0.0) for line in facts.by["phase"]), default=0.0), 1),
        "latest_seconds": max((line["seconds"] for line in facts.by["late"]), default=0.0),
    }


def _verdict(facts: Facts, number: int, problems: list[Problem]) -> str:
    if any(problem.invariant == number for problem in problems):
        return "false"
    return "true" if all(facts.by[what] for what in INVARIANTS[number][1]) and facts.turns else "unknown"


def _recovery(found: list[Recovery]) -> dict[str, dict[str, float]]:
    overlapping = [each for each in found if not each.alone]
    return {
        "alone": _percentiles([each.waited for each in found if each.alone]),
        "overlapping, since the last fault": _percentiles([each.undisturbed for each in overlapping]),
        "overlapping, since the first fault": _percentiles([each.waited for each in overlapping]),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {"n": 0}
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 2)

    return {"n": len(ordered), "p50": at(0.5), "p99": at(0.99), "max": at(1.0)}
