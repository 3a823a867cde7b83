"""The bench's figures: one row per behaviour, as a table and JSON-ready."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.lab.bench.economy.play import Played


@dataclass(frozen=True, slots=True)
class Row:
    """One behaviour over all cases. Counts of turns, and characters.

    Attributes:
        repaired: passed, and the oracle finds nothing wrong. honest: failed, and says so.
        wrong_pass: passed, and the oracle finds something wrong. content_lost: passed, good text gone.
        unwritten: passed without sentences that the agent never wrote.
        regenerated: characters sent after the first answer. missing: characters that really lacked.
        seeds: what the agent sends when everything is asked for again.
        small_regenerated, small_seeds: the same where only marker, field, header or path is wrong.
    """

    agent: str
    repaired: int
    honest: int
    wrong_pass: int
    content_lost: int
    unwritten: int
    regenerated: int
    missing: int
    seeds: int
    small_regenerated: int
    small_seeds: int

    @property
    def saved(self) -> float:
        return _share(self.seeds - self.regenerated, self.seeds)

    @property
    def small_saved(self) -> float:
        return _share(self.small_seeds - self.small_regenerated, self.small_seeds)

    @property
    def beyond(self) -> float:
        """Characters beyond those really missing, as a share of the seeds' policy's."""
        return _share(self.regenerated - self.missing, self.seeds)


def row(agent: str, played: Sequence[Played]) -> Row:
    small = [one for one in played if one.case.small]
    asked = [one for one in played if one.runs > 1]
    return Row(
        agent,
        repaired=sum(one.success and not one.wrong and not one.lost for one in played),
        honest=sum(not one.success for one in played),
        wrong_pass=sum(one.success and bool(one.wrong) for one in played),
        content_lost=sum(one.success and bool(one.lost) for one in played),
        unwritten=sum(one.success and bool(one.unwritten) for one in played),
        regenerated=sum(one.regenerated for one in played),
        missing=sum(one.case.missing for one in asked),
        seeds=sum(one.seeds for one in played),
        small_regenerated=sum(one.regenerated for one in small),
        small_seeds=sum(one.seeds for one in small),
    )


_HEADS = (
    "repaired",
    "honestly failed",
    "WRONG PASS",
    "CONTENT LOST",
    "never written",
    "regenerated",
    "really missing",
    "seeds' policy",
    "saved",
    "saved, small faults",
    "beyond missing",
)


def table(rows: Iterable[Row]) -> str:
    lines = ["| model | " + " | ".join(_HEADS) + " |", "|---|" + "---:|" * len(_HEADS)]
    for one in rows:
        cells = (
            one.repaired,
            one.honest,
            one.wrong_pass,
            one.content_lost,
            one.unwritten,
            f"{one.regenerated:,}",
            f"{one.missing:,}",
            f"{one.seeds:,}",
            f"{one.saved:.1%}",
            f"{one.small_saved:.1%}",
            f"{one.beyond:.1%}",
        )
        lines.append(f"| {one.agent} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def kinds(played: Sequence[Played]) -> str:
    """Per kind of fault what did not end well; for whoever looks for the cause."""
    bad = [one for one in played if not one.success or one.wrong or one.lost]
    counted: Counter[str] = Counter()
    for one in bad:
        how = "wrong pass" if one.wrong else "content lost" if one.lost else "failed"
        counted[f"{one.case.kind}: {how}"] += 1
    return "\n".join(f"    {what} x {count}" for what, count in sorted(counted.items()))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
