"""A small good history, made by hand, and how to spoil it."""

import json
from collections.abc import Callable
from typing import Any

from tests.chaos.checker.facts import digest

Line = dict[str, Any]
#: Wall time of the history's begin; its lines are told in seconds after it.
BEGIN = 1_000_000.0
ANSWER = "Die Antwort.\n\n<!-- STEP: done -->"
SHOWN = "Die Antwort."
CHAT, FIRST, SECOND, CANCELLED = "chat-a", "turn-1", "turn-2", "turn-3"
VALIDATORS = ["step_marker"]
ISSUE = {"code": "MISSING_STEP_MARKER", "validator": "step_marker", "severity": "error"}
PHASE, SUSPENDED, HANDED = "turn-4", "turn-5", "turn-6"
APPROVAL, BARE = "k6@12", "Ohne Marker."
DECISION, DONE, OUTPUT = "k5@11", "Fertig.", {"result.json": '{"done": true}'}
BROKEN = {"code": "JSON_SYNTAX", "validator": "syntax", "severity": "error"}


class Turn:
    """A turn of the history: its log, record and attempts grow together."""

    def __init__(self, turn: str, key: str, session: str, phase: Line | None = None) -> None:
        self.turn, self.key, self.session = turn, key, session
        self.log: list[Line] = []
        self.record = {
            "id": turn,
            "epoch": f"e{turn[-1]}",
            "state": "queued",
            "attempt": "1",
            "delivery": "0",
            "seq": "0",
            "tokens": "",
            "model": "m",
            "flow": "v2",
            "deadline_at": str(int((BEGIN + 600) * 1000)),
            "request": json.dumps(
                {
                    "messages": [{"role": "user", "content": f"[{key}] steady: Bitte antworte."}],
                    "session_id": session,
                    "validators": [] if phase else VALIDATORS,
                    "max_attempts": 3,
                    "work": "phase" if phase else "",
                    "work_data": {"directory": "work", "definition": phase} if phase else {},
                }
            ),
        }
        self.attempts: dict[str, str] = {}

    def tell(self, at: float, kind: str, /, **data: Any) -> None:
        seq = len(self.log) + 1
        event = {"seq": seq, "epoch": self.record["epoch"], "at": int((BEGIN + at) * 1000), "kind": kind, "data": data}
        self.log.append(event)
        self.record["seq"] = str(seq)

    def start(self, at: float, attempt: int, worker: int) -> None:
        delivery = int(self.record["delivery"]) + 1
        tokens = f"{self.record['tokens']}token-{self.turn}-{delivery} "
        self.record |= {"delivery": str(delivery), "attempt": str(attempt), "tokens": tokens}
        self.tell(at, "attempt.started", attempt=attempt, delivery=delivery, worker=f"worker-{worker}-1@host")

    def run(self, at: float, attempt: int, text: str) -> None:
        """The agent says a text in two pieces and ends well."""
        half = len(text) // 2
        self.tell(at, "attempt.output", attempt=attempt, text=text[:half])
        self.tell(at + 0.1, "attempt.output", attempt=attempt, text=text[half:])
        self.tell(at + 0.2, "attempt.completed", attempt=attempt, verdict="complete", reason="")
        self.attempts |= {f"{attempt}:text": text, f"{attempt}:last_delivery": self.record["delivery"]}

    def verify(self, at: float, attempt: int, *, passed: bool, judged: bool = False) -> None:
        """Code checks the output, and then another agent, where it is asked."""
        self.tell(at, "gate.checked", attempt=attempt, gate="files_exist", passed=True, skipped=False, issues=[])
        self.tell(at, "gate.checked", attempt=attempt, gate="syntax", passed=passed, skipped=False, issues=[])
        if judged:
            self.tell(at, "verifier.started", attempt=attempt, model="m")
            self.tell(at, "verifier.judged", attempt=attempt, success=True, ground="verdict", errors=[])
        self.attempts[f"{attempt}:verification"] = json.dumps({"success": passed})
        self.tell(at + 0.1, "attempt.accepted" if passed else "attempt.rejected", attempt=attempt,
                  issues=[] if passed else [BROKEN])  # fmt: skip

    def suspend(self, at: float, attempt: int) -> None:
        """It is handed to a person, for five seconds."""
        self.tell(at, "turn.escalated", attempt=attempt, stage=2, reason="rejected", issues=[BROKEN])
        self.tell(at, "turn.suspended", attempt=attempt, interruption={"wait_seconds": 5, "silence": "reject"})

    def finish(
        self, at: float, outcome: str, response: str = "", step: str = "done", error: Line | None = None
    ) -> None:
        told: dict[str, Any] = {"attempts": int(self.record["attempt"]), "deliveries": int(self.record["delivery"])}
        told |= {"step": step if response else "", "error": error or {}}
        self.tell(at, "turn.finished", outcome=outcome, response=response, **told)
        finished_at = str(int((BEGIN + at) * 1000))
        self.record |= {"state": "finished", "outcome": outcome, "response": response, "finished_at": finished_at}


def turns() -> list[Turn]:
    """Two turns of one chat (rejected once; killed once), and one of another chat that is called off."""
    first = Turn(FIRST, "k1", "chat-a-id")
    first.tell(1.0, "turn.queued", position=0)
    first.start(1.1, 1, 100)
    first.run(1.2, 1, "Ohne Marker.")
    first.tell(1.6, "attempt.rejected", attempt=1, issues=[ISSUE])
    first.tell(1.6, "turn.retrying", attempt=2, reason="rejected")
    first.start(1.7, 2, 100)
    first.run(1.8, 2, ANSWER)
    first.tell(2.2, "attempt.accepted", attempt=2, issues=[])
    first.finish(2.2, "passed_after_retry", ANSWER)
    second = Turn(SECOND, "k2", "chat-a-id")
    second.tell(3.0, "turn.queued", position=0)
    second.start(3.1, 1, 100)
    second.tell(3.2, "attempt.output", attempt=1, text="Ich fange an und")
    second.tell(11.0, "attempt.lost", attempt=1, delivery=1, during="running", silent_ms=6000)
    second.start(11.2, 1, 200)
    second.run(11.3, 1, ANSWER)
    second.tell(11.8, "attempt.accepted", attempt=1, issues=[])
    second.finish(11.8, "passed", ANSWER)
    cancelled = Turn(CANCELLED, "k3", "chat-b-id")
    cancelled.tell(4.0, "turn.queued", position=0)
    cancelled.start(4.1, 1, 200)
    cancelled.tell(4.2, "attempt.output", attempt=1, text="Ich")
    cancelled.tell(4.5, "turn.stopping", reason="cancelled")
    cancelled.tell(4.7, "attempt.completed", attempt=1, verdict="cancelled", reason="")
    cancelled.finish(4.7, "cancelled")
    return [first, second, cancelled, verified_phase(), suspended_phase(), handed_on_chat()]


def verified_phase() -> Turn:
    """A phase that is rejected once by a gate, and then passes gates and verifier."""
    phase = Turn(PHASE, "k4", "phases-a", {"id": "p0", "verify_agent": True})
    phase.tell(7.0, "turn.queued", position=0)
    phase.start(7.1, 1, 200)
    phase.run(7.2, 1, DONE)
    phase.verify(7.5, 1, passed=False)
    phase.tell(7.6, "turn.retrying", attempt=2, reason="rejected")
    phase.start(7.7, 2, 200)
    phase.run(7.8, 2, DONE)
    phase.verify(8.3, 2, passed=True, judged=True)
    phase.finish(8.4, "passed_after_retry", DONE, step="")
    return phase


def suspended_phase() -> Turn:
    """A phase that is never right: another model, a person who has it tried again, and a time-out that rejects."""
    phase = Turn(SUSPENDED, "k5", "phases-b", {"id": "p1", "verify_agent": False})
    phase.tell(5.0, "turn.queued", position=0)
    phase.start(5.1, 1, 200)
    phase.run(5.2, 1, DONE)
    phase.verify(5.5, 1, passed=False)
    phase.tell(5.6, "turn.escalated", attempt=1, stage=1, reason="rejected", model="expert", issues=[BROKEN])
    phase.start(5.7, 2, 200)
    phase.run(5.8, 2, DONE)
    phase.verify(6.1, 2, passed=False)
    phase.suspend(6.2, 2)
    phase.tell(9.0, "turn.decided", attempt=2, kind="retry", by=DECISION, note="")
    phase.tell(9.1, "turn.retrying", attempt=3, reason="decided")
    phase.start(9.2, 3, 200)
    phase.run(9.3, 3, DONE)
    phase.verify(9.6, 3, passed=False)
    phase.suspend(9.7, 3)
    phase.tell(14.7, "turn.decided", attempt=3, kind="reject", by="timeout", note="")
    phase.finish(14.8, "failed", error={"code": "undecided", "issues": [BROKEN]})
    phase.record |= {"allowed": "3", "best": "3"}
    return phase


def handed_on_chat() -> Turn:
    """A message no attempt answers well: another model, then a person, who lets the best answer pass."""
    chat = Turn(HANDED, "k6", "chat-c-id")
    chat.tell(12.0, "turn.queued", position=0)
    chat.start(12.1, 1, 200)
    chat.run(12.2, 1, BARE)
    chat.tell(12.6, "attempt.rejected", attempt=1, issues=[ISSUE])
    chat.tell(12.6, "turn.escalated", attempt=1, stage=1, reason="rejected", model="expert", issues=[ISSUE])
    chat.start(12.7, 2, 200)
    chat.run(12.8, 2, BARE)
    chat.tell(13.2, "attempt.rejected", attempt=2, issues=[ISSUE])
    chat.suspend(13.2, 2)
    chat.tell(14.0, "turn.decided", attempt=2, kind="approve", by=APPROVAL, note="")
    chat.finish(14.1, "passed_by_human", BARE)
    chat.record |= {"allowed": "2", "best": "2"}
    return chat


COUNTERS = {
    "turn.submitted": 6,
    "turn.finished|passed_by_human|m|v2|done|0": 1,
    "turn.decided|approve": 1,
    "validator.rejected|step_marker|escalate|m": 1,
    "validator.rejected|step_marker|escalate|expert": 1,
    "code.rejected|MISSING_STEP_MARKER|escalate": 2,
    "turn.finished|passed|m|v2|done|0": 1,
    "turn.finished|passed_after_retry|m|v2|done|1": 1,
    "turn.finished|cancelled|m|v2|none|0": 1,
    "turn.finished|passed_after_retry|m|v2|none|1": 1,
    "turn.finished|failed|m|v2|none|0": 1,
    "turn.escalated|1": 2,
    "turn.escalated|2": 3,
    "turn.decided|retry": 1,
    "turn.decided|reject": 1,
    "delivery.started": 12,
    "delivery.lost|running": 1,
    "attempt.ended|complete|m": 7,
    "attempt.ended|complete|expert": 3,
    "attempt.ended|cancelled|m": 1,
    "attempt.judged|accept|m": 3,
    "attempt.judged|retry|m": 2,
    "attempt.judged|escalate|m": 2,
    "attempt.judged|escalate|expert": 3,
    "phase.judged|accept": 1,
    "phase.judged|retry": 1,
    "phase.judged|escalate": 3,
    "validator.judged|step_marker|m": 4,
    "validator.judged|step_marker|expert": 1,
    "validator.rejected|step_marker|retry|m": 1,
    "code.rejected|MISSING_STEP_MARKER|retry": 1,
    "validator.rejected|syntax|retry|m": 1,
    "code.rejected|JSON_SYNTAX|retry": 1,
    "validator.rejected|syntax|escalate|m": 1,
    "validator.rejected|syntax|escalate|expert": 2,
    "code.rejected|JSON_SYNTAX|escalate": 3,
    "validator.gave_up|syntax": 1,
    "code.gave_up|JSON_SYNTAX": 1,
    "time.wait.ms": 600,
    "time.wait.le|100": 6,
    "time.agent.ms|m": 300 + 300 + 300 + 600 + 4 * 300,
    "time.agent.ms|expert": 3 * 300,
    "time.agent.le|m|500": 7,
    "time.agent.le|expert|500": 3,
    "time.agent.le|m|1000": 1,
    "time.validation.ms": 200 + 200 + 300 + 200 + 400 + 200 + 200 + 200 + 2 * 200,
    "time.validation.le|250": 8,
    "time.validation.le|500": 2,
    "time.recovery.ms": 6200,
    "time.recovery.le|10000": 1,
    "time.turn.ms": 1200 + 8800 + 700 + 1400 + (9800 - 7800) + (2100 - 800),
    "time.turn.le|2500": 4,
    "time.turn.le|10000": 1,
    "time.turn.le|1000": 1,
}


class History:
    """The lines of a history, still open to be spoiled: change ``turns``, or ``lines`` by name."""

    def __init__(self) -> None:
        self.turns = {turn.turn: turn for turn in turns()}
        self.lines: list[Line] = []
        self.extra_keys: list[Line] = []
        self.counters = {name: dict(COUNTERS) for name in ("total", "minute:60", "hour:3600", "day:86400")}
        self._clients()
        self._world()

    def add(self, at: float, f: str, type_: str = "ok", **facts: Any) -> Line:
        line = {"t": int(at * 1e9), "wall": BEGIN + at, "pid": 1, "f": f, "type": type_, **facts}
        self.lines.append(line)
        return line

    def find(self, f: str, **facts: Any) -> Line:
        """The first line of a kind with these facts."""
        return next(line for line in self.lines if line["f"] == f and facts.items() <= line.items())

    def submit(self, at: float, key: str, chat: str, turn: str, way: str, answer: str = ANSWER) -> None:
        told = {"key": key, "chat": chat, "kind": "steady", "way": way, "answers": [answer]}
        self.add(at, "submit", "invoke", **told)
        self.add(at + 0.05, "submit", "ok", **told, turn=turn)

    def _clients(self) -> None:
        self.submit(0.9, "k1", CHAT, FIRST, "stream")
        self.add(2.3, "chat", key="k1", turn=FIRST, text=SHOWN, error="")
        self.submit(2.9, "k2", CHAT, SECOND, "turn")
        self.submit(3.9, "k3", "chat-b", CANCELLED, "whole")
        self.add(4.8, "chat", key="k3", turn=CANCELLED, text="", error="cancelled")
        self.submit(4.9, "k5", "phases-b", SUSPENDED, "phase", DONE)
        self.submit(6.9, "k4", "phases-a", PHASE, "phase", DONE)
        told = {"turn": SUSPENDED, "decision": DECISION, "kind": "retry"}
        self.add(8.9, "decide", "invoke", **told)
        self.add(9.0, "decide", **told)
        self.submit(11.9, "k6", "chat-c", HANDED, "turn")
        told = {"turn": HANDED, "decision": APPROVAL, "kind": "approve"}
        self.add(13.9, "decide", "invoke", **told)
        self.add(14.0, "decide", **told)
        self.add(3.0, "read", "invoke", reader=1, turn=SECOND, after="")
        log = self.turns[SECOND].log
        for event in log[:3]:
            self._seen(event)
        self.add(10.0, "read", "info", reader=1, turn=SECOND, after="3-e2", why="ReadError")
        self.add(10.1, "read", "invoke", reader=1, turn=SECOND, after="3-e2")
        for event in log[3:]:
            self._seen(event)
        self.add(11.9, "read", reader=1, turn=SECOND, after=f"{len(log)}-e2", why="end")

    def _seen(self, event: Line, reader: int = 1) -> None:
        facts = {"id": f"{event['seq']}-{event['epoch']}", "kind": event["kind"], "sha256": digest(event)}
        self.add(event["at"] / 1000 - BEGIN, "event", reader=reader, turn=SECOND, **facts)

    def _world(self) -> None:
        self.add(0.0, "run", seed=1, settings={"lease_seconds": 6.0, "reap_seconds": 1.0, "kill_grace_seconds": 1.0})
        self.add(4.9, "fault", "invoke", name="fault-0", kind="kill engine", seconds=0, workers=["worker-100-1"])
        self.add(4.9, "fault", name="fault-0", kind="kill engine", seconds=0)
        for turn, delivery, attempt, start, end in (
            *((FIRST, 1, 1, 1.15, 1.4), (FIRST, 2, 2, 1.75, 2.0), (CANCELLED, 1, 1, 4.15, 4.6)),
            *((SECOND, 1, 1, 3.15, None), (SECOND, 2, 1, 11.25, 11.5)),
        ):
            for event, at in (("start", start), ("end", end)):
                if at is not None:
                    told = {"turn": turn, "attempt": attempt, "delivery": delivery, "event": event}
                    self.add(at, "execution", event, **told)["at"] = BEGIN + at
        self.add(4.5, "alive", marks=[f"{SECOND}.1.1", f"{CANCELLED}.1.1", "a stranger's", "turn-9.1.1"])
        self.add(4.9, "backup", "invoke")
        self.add(5.0, "backup", began=int(4.9e9), wall_began=BEGIN + 4.9)
        found = {FIRST: "passed_after_retry", SECOND: "", CANCELLED: "cancelled"}
        self.add(21.0, "restored", killed=True, code=0, said="", turns=found, outputs={"work/p0": ["result.json"]})
        self.add(20.0, "phase", name="final reads", clients_left=0)
        self.add(20.0, "server", memory_bytes=1, channels=["/0.celery.pidbox"])
        self.add(21.0, "logged", events={"turn.fenced": 1})
        self.add(21.0, "processes", left=[])
        self.add(21.0, "files", session="chat-a-id", done=json.dumps({"attempt_id": f"{SECOND}-1-2"}), response=ANSWER,
                 deliveries=[f"{FIRST}-1-1", f"{FIRST}-2-2", f"{SECOND}-1-1", f"{SECOND}-1-2"], strays=[])  # fmt: skip
        self.add(21.0, "files", session="chat-b-id", done=None, response=None, deliveries=[f"{CANCELLED}-1-1"],
                 strays=[])  # fmt: skip
        self.add(21.0, "files", session="chat-c-id", done=json.dumps({"attempt_id": f"{HANDED}-2-2"}), response=BARE,
                 deliveries=[f"{HANDED}-1-1", f"{HANDED}-2-2"], strays=[])  # fmt: skip
        deliveries: dict[str, Line] = {f"{PHASE}-1-1": {"result.json": "{"}, f"{PHASE}-2-2": OUTPUT}
        folder: Line = {"directory": "work", "feedback": False}
        self.add(21.0, "phase_files", **folder, phase="p0", output=OUTPUT, deliveries=deliveries)
        tried: dict[str, Line] = {f"{SUSPENDED}-{number}-{number}": {"result.json": "{"} for number in (1, 2, 3)}
        self.add(21.0, "phase_files", **folder, phase="p1", output={}, deliveries=tried)

    def made(self) -> list[Line]:
        """The lines as a run would have left them, with the store's content and the relays' answers at the end."""
        lines = list(self.lines)
        for turn in self.turns.values():
            name = f"{{chaos}}:turn:{turn.turn}"
            lines.append(key_line(name, "hash", turn.record))
            lines.append(key_line(f"{name}:log", "stream", [json.dumps(event) for event in turn.log]))
            lines.append(key_line(f"{name}:attempts", "hash", turn.attempts))
            told = {"turn": turn.turn, "outcome": turn.record.get("outcome"), "state": turn.record["state"]}
            lines.append({"t": 20 * 10**9, "wall": BEGIN + 20, "pid": 1, "f": "final", "type": "ok", **told})
        for bucket, counters in self.counters.items():
            values = {name: str(value) for name, value in counters.items()}
            lines.append(key_line(f"{{chaos}}:metrics:{bucket}", "hash", values, ttl=-1 if bucket == "total" else 1000))
        return sorted([*lines, *self.extra_keys], key=lambda line: line["t"])


def key_line(name: str, kind: str, value: Any, ttl: int = 1000) -> Line:
    """A key of the store as the final reads tell it."""
    told = {"name": name, "kind": kind, "ttl_ms": ttl, "value": value}
    return {"t": 20 * 10**9, "wall": BEGIN + 20, "pid": 1, "f": "key", "type": "ok", **told}


def meet_everything(history: History) -> None:
    """Make the first turn one that a fallback repaired, and let a reaper have announced something."""
    turn = history.turns[FIRST]
    end = turn.log.pop()
    turn.log[-1] |= {"kind": "attempt.rejected", "data": {"attempt": 2, "issues": [ISSUE]}}
    turn.record["seq"] = str(len(turn.log))
    turn.tell(2.2, "turn.fallback", attempt=2, codes=[])
    turn.tell(2.2, "turn.mended", attempt=2, changes=[])
    turn.finish(2.2, "passed_by_fallback", end["data"]["response"])
    for counters in history.counters.values():
        counters["attempt.judged|accept|m"] -= 1
        for name in ("attempt.judged|fallback|m", "validator.rejected|step_marker|fallback|m"):
            counters[name] = 1
        counters["code.rejected|MISSING_STEP_MARKER|fallback"] = 1
        passed = counters.pop("turn.finished|passed_after_retry|m|v2|done|1")
        counters["turn.finished|passed_by_fallback|m|v2|done|1"] = passed
    history.find("logged")["events"]["turn.announced"] = 1
    history.find("restored")["turns"][FIRST] = "passed_by_fallback"


Spoil = Callable[[History], object]
