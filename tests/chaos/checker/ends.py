"""Invariants 1 to 4: each acknowledged turn ends, once, nothing follows, and nothing is invented."""

from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.checker.facts import FINISHED, Facts, Problem


def one_end(facts: Facts) -> Iterator[Problem]:
    """1: at most one ``turn.finished`` per turn, in the log and for each reader."""
    for turn in facts.turns.values():
        count = sum(event["kind"] == FINISHED for event in turn.log)
        if count > 1:
            yield Problem(1, "finished_twice", f"{turn.turn} ({turn.key}) ends {count} times in its log")
    ends: dict[tuple[str, int], set[str]] = defaultdict(set)
    for reader, lines in facts.reads.items():
        for line in lines:
            if line["f"] == "event" and line["kind"] == FINISHED:
                ends[line["turn"], reader].add(line["id"])
    for (turn_id, reader), ids in ends.items():
        if len(ids) > 1:
            yield Problem(1, "finished_twice", f"reader {reader} saw {turn_id} end as {sorted(ids)}")


def nothing_follows(facts: Facts) -> Iterator[Problem]:
    """2: the end is the last event, and the record's number is its number."""
    for turn in facts.turns.values():
        ends = [event["seq"] for event in turn.log if event["kind"] == FINISHED]
        if ends and turn.log[-1]["seq"] != ends[0]:
            last = turn.log[-1]
            yield Problem(
                2, "after_the_end", f"{turn.turn}: {last['kind']} has number {last['seq']}, the end {ends[0]}"
            )
        if ends and turn.number("seq") != turn.log[-1]["seq"]:
            yield Problem(2, "after_the_end", f"{turn.turn}: its record says {turn.number('seq')} events")


def nothing_lost(facts: Facts) -> Iterator[Problem]:
    """3: whatever was acknowledged has ended; whatever else is stored has ended too, never half."""
    for submit in facts.submits.values():
        for turn_id in submit.turns:
            turn = facts.turns.get(turn_id)
            if turn is None:
                yield Problem(3, "lost", f"{turn_id} ({submit.key}) was acknowledged and is not stored")
            elif not turn.finished:
                state = f"{turn.record.get('state')}, next {turn.record.get('next')!r}"
                yield Problem(3, "lost", f"{turn_id} ({submit.key}, {submit.kind}) was acknowledged and is {state}")
    acknowledged = {turn_id for submit in facts.submits.values() for turn_id in submit.turns}
    for turn in facts.turns.values():
        if turn.turn not in acknowledged and not turn.finished:
            yield Problem(3, "half_stored", f"{turn.turn} ({turn.key}) was never acknowledged and is half there")


def nothing_invented(facts: Facts) -> Iterator[Problem]:
    """4: every stored turn was asked for, and one key is one turn, in every reply and in the store."""
    stored: dict[str, set[str]] = defaultdict(set)
    for turn in facts.turns.values():
        stored[turn.key].add(turn.turn)
        if turn.key not in facts.submits:
            yield Problem(4, "invented", f"{turn.turn} was asked for by nobody")
    for key, submit in facts.submits.items():
        found = stored[key] | submit.turns
        if len(found) > 1:
            yield Problem(4, "doubled", f"{key} became {len(found)} turns: {sorted(found)}")
        if submit.refused and not submit.turns and stored[key]:
            yield Problem(4, "invented", f"{key} was refused and is stored as {sorted(stored[key])}")
