"""Invariant 21: a backup taken in the middle has every turn that was acknowledged before, as it was, and its files."""

from collections.abc import Iterator

from tests.chaos.checker.facts import FINISHED, Facts, Problem


def backup_whole(facts: Facts) -> Iterator[Problem]:
    """21: what was acknowledged before the backup began is in what was restored from it."""
    for line in facts.by["restored"]:
        if line["code"] != 0:
            yield Problem(21, "missing_in_backup", f"the restore ended with {line['code']}: {line['said']}")
            continue
        began = next(taken for taken in facts.by["backup"] if taken["type"] == "ok")
        for submit in facts.submits.values():
            if submit.accepted and submit.accepted < began["began"]:
                for missing in sorted(submit.turns - set(line["turns"])):
                    yield Problem(
                        21, "missing_in_backup", f"{missing} ({submit.key}) was acknowledged before the backup"
                    )
        for turn_id, turn in facts.turns.items():
            end = turn.last(FINISHED)
            if end is None or end["at"] / 1000 >= began["wall_began"]:
                continue
            if turn_id in line["turns"] and line["turns"][turn_id] != turn.outcome:
                yield Problem(21, "missing_in_backup", f"{turn_id} ended as {turn.outcome} before the backup")
            place = f"{turn.directory}/{turn.phase.get('id')}"
            if turn.phase and turn.outcome.startswith("passed") and not line["outputs"].get(place):
                yield Problem(21, "missing_in_backup", f"{turn_id}: the verified output of {place} is missing")
