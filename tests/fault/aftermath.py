"""Judges everything that is stored at the end of a schedule against what was reported on the way.

Numbers in brackets are explained in ``rules``.
"""

import json
import re
from collections import Counter
from typing import Any

from api_client.contract.keys import Keys
from tests.chaos.checker import counters
from tests.fault.rules import rule
from tests.fault.seen import PretendTurn
from tests.records import pending

Store = dict[str, tuple[bytes, int, Any]]

_LETTER = {
    "turn.queued": "Q",
    "attempt.started": "S",
    "attempt.output": "o",
    "attempt.completed": "C",
    "attempt.accepted": "A",
    "attempt.rejected": "R",
    "attempt.lost": "L",
    "turn.retrying": "y",
    "turn.fallback": "f",
    "turn.mended": "m",
    "turn.stopping": "",
    "turn.escalated": "",
    "turn.suspended": "P",
    "turn.decided": "D",
    "turn.finished": "F",
}
#: [5] Every log, in the letters above: runs that were lost or are followed by another, the last one, and the end.
#: An l is a run that was sealed with its verdict and is lost while it is published: nobody runs it again.
_PATH = re.compile(r"Q(So*L|So*Cy|So*CL*Ry|So*CL*RPDL*y)*(So*(CL*(A|RL*|RfL*m?L*|RP(DL*)?)?|l+(CA)?)?)?F")
_NO_EXPIRY = {"installation", "metrics:pending", "finished", "dead", "policies", "policies:used"}


def judge_end(namespace: str, turns: list[PretendTurn], stored: Store, heard: dict[bytes, list[bytes]]) -> None:
    """Judge what is stored after a schedule was healed and drained."""
    counted: Counter[str] = Counter()
    start = Keys(namespace).prefix
    kept = {turn.turn_id for turn in turns if turn.seen and turn.seen.outcome == b"dead" and not turn.dropped}
    _judge_keys(start, stored, kept)
    zsets = {name: stored.get(start + name, (b"", 0, []))[2][::2] for name in ("finished", "dead")}
    for turn in turns:
        kind, _, content = stored.get(f"{start}turn:{turn.turn_id}", (b"hash", 0, []))
        content = content + stored.get(f"{start}turn:{turn.turn_id}:texts", (b"hash", 0, []))[2]
        record = dict(zip(content[::2], content[1::2], strict=True))
        rule(kind == b"hash" and bool(record) == turn.stored, "[3, 4] a turn was lost or invented")
        if not turn.stored:
            continue
        rule(record[b"state"] == b"finished", "[3] an acknowledged turn did not end")
        rule(b"request" in record, "[3] a turn's request was lost")
        entries = [fields[1].split(b"\n") for _, fields in stored[f"{start}turn:{turn.turn_id}:log"][2]]
        wires = [line for lines in entries for line in lines]
        bell = f"{start}turn:{turn.turn_id}:bell".encode()
        rule(
            wires[len(entries[0]) :] == heard.get(bell, []), "[10] what was published is not the log behind the submit"
        )
        _judge_log(turn, record, [json.loads(wire) for wire in wires], counted)
        rule((turn.id in zsets["dead"]) == (turn.turn_id in kept), "the dead letters are not the dead turns")
    _judge_counters(start, stored, counted)


def _judge_keys(start: str, stored: Store, kept: set[str]) -> None:
    for name, (_, life, _) in stored.items():
        rule(name.startswith(start), "a key of another installation")
        rest = name.removeprefix(start)
        if rest.startswith("session:") and rest.endswith(":history"):
            _judge_history(stored[name], kept)
            continue
        rule(
            rest not in {"due", "inbox"} and not rest.startswith("session:"),
            "[11] something is left in due, in the inbox or in a session",
        )
        stays = rest in _NO_EXPIRY or (rest.startswith("turn:") and rest.split(":")[1] in kept)
        rule((life < 0) == stays, "[15] a key never expires, or one expires that must not")


def _judge_history(stored: tuple[bytes, int, Any], kept: set[str]) -> None:
    _, life, content = stored
    fields = {name.decode(): value.decode() for name, value in zip(content[::2], content[1::2], strict=True)}
    heads = {name[1:]: value for name, value in fields.items() if name.startswith("@")}
    still_open = {turn_id for turn_id, head in heads.items() if " " not in head}
    rule(still_open <= kept and int(fields["open"]) == len(still_open), "[15] an ended turn holds a history open")
    rule((life < 0) == bool(still_open), "[15] a history never expires, or one expires that must not")
    rule(all(head[:32] in fields for head in heads.values()), "[3] a turn's earlier messages were lost")


def _path(events: list[Any]) -> str:
    path = ""
    for event in events:
        letter = _LETTER[event["kind"]]
        sealed = letter == "L" and event["data"]["during"] == "validating" and "C" not in path.rpartition("S")[2]
        path += "l" if sealed else letter
    return path


def _judge_log(turn: PretendTurn, record: dict[bytes, bytes], events: list[Any], counted: Counter[str]) -> None:
    """[1, 2, 4, 5, 11] Check that the log has the reported events in a legal order, and that the record matches it."""
    kinds = [event["kind"] for event in events]
    rule(kinds == [kind for kind, _ in turn.told], "[4] the log is not what was told")
    rule([event["seq"] for event in events] == list(range(1, len(events) + 1)), "[11] seq has gaps")
    rule({event["epoch"] for event in events} == {turn.epoch}, "[11] the log has another epoch")
    for event, (_, data) in zip(events, turn.told, strict=True):
        rule(not data or event["data"] == json.loads(data), "[12] an event's data was changed")
    path = _path(events)
    rule(_PATH.fullmatch(path), f"[1, 2, 5] no legal path: {path}")
    end = events[-1]["data"]
    lost = [event for event in events if event["kind"] == "attempt.lost" and event["data"]["during"] != "shutdown"]
    stopping = [event["data"]["reason"] for event in events if event["kind"] == "turn.stopping"]
    started = [event["data"] for event in events if event["kind"] == "attempt.started"]
    folded: dict[str, Any] = {
        "seq": len(events),
        "outcome": end["outcome"],
        "response": end["response"],
        "delivery": len(started),
        "strikes": len(lost),
        "attempt": started[-1]["attempt"] if started else 1,
    }
    for name, value in folded.items():
        rule(record.get(name.encode(), b"0").decode() == str(value), f"[11] {name} is not the fold of the log")
    rule(json.loads(record[b"error"]) == end["error"], "[11] error is not the fold of the log")
    rule([s["delivery"] for s in started] == list(range(1, len(started) + 1)), "[6] a delivery is missing or doubled")
    rule(stopping in ([], ["cancelled"]) and (not stopping or end["outcome"] == "cancelled"), "a cancel was not kept")
    rule(end["success"] == end["outcome"].startswith("passed"), "success lies")
    rule((end["deliveries"], end["attempts"]) == (len(started), folded["attempt"]), "the end tells wrong figures")
    counted.update(counters.folded({name.decode(): value.decode() for name, value in record.items()}, events))


def _judge_counters(start: str, stored: Store, counted: Counter[str]) -> None:
    """[9] Check that the counters are the sum over all logs."""
    entries = stored.get(f"{start}metrics:pending", (b"list", 0, []))[2]
    rule(+pending(entries) == +counted, "[9] the counters are not the fold of the logs")
