"""Invariant 10: what each reader of events saw is the log: in order, once each, without a gap, from where it began."""

from collections.abc import Iterator

from tests.chaos.checker.facts import FINISHED, Facts, Line, Problem, TurnFacts, digest


def readers_agree(facts: Facts) -> Iterator[Problem]:
    """Each reader, over all its reconnections, and against the log."""
    for reader, lines in facts.reads.items():
        turn = facts.turns.get(lines[0]["turn"])
        if turn is None:
            continue  # lost: invariant 3 says so
        yield from _read(reader, lines, turn, {event["seq"]: digest(event) for event in turn.log})


def _read(reader: int, lines: list[Line], turn: TurnFacts, logged: dict[int, str]) -> Iterator[Problem]:
    at, ended = 0, False
    who = f"reader {reader} of {turn.turn}"
    for line in lines:
        if line["f"] == "read":
            if line["type"] == "invoke":
                at = int(line["after"].partition("-")[0] or 0)
            ended = ended or line["type"] == "ok"
            continue
        if line["type"] == "info":
            if line["kind"] == "log.reset":
                yield Problem(10, "reader_differs", f"{who} was told that its history is another one")
            continue
        number, epoch, *_ = line["id"].split("-")
        seq = int(number)
        if seq > at + 1:
            yield Problem(10, "seq_gaps", f"{who}: {seq} follows {at}")
        elif seq <= at:
            yield Problem(10, "seq_duplicates", f"{who}: {seq} follows {at}")
        if epoch != turn.record.get("epoch") or logged.get(seq) != line["sha256"]:
            yield Problem(10, "reader_differs", f"{who}: event {line['id']} is not the log's")
        at = seq
    if ended and at != turn.number("seq"):
        yield Problem(10, "reader_differs", f"{who} left at {at} as if that were the end")
    if not ended and turn.last(FINISHED):
        yield Problem(10, "reader_differs", f"{who} never saw the end")
