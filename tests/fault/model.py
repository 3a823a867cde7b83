"""The ledger as plain Python: what every Lua command must answer and store, said a second time, without Redis.

Replies are lists of texts and numbers as the commands give them; ``Turn.record`` holds the fields of the turn's hash.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.fault.decisions import Sent
from tests.fault.scripts import LEASE_MS, STRIKES

Reply = list[Any]


@dataclass(slots=True)
class Turn:
    """One turn: its hash's fields, the kinds of its events, and every token it was claimed with."""

    record: dict[str, str]
    log: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    decisions: set[str] = field(default_factory=set)

    def number(self, name: str) -> int:
        return int(self.record.get(name) or 0)

    def text(self, name: str) -> str:
        return self.record.get(name, "")

    def write(self, **fields: Any) -> None:
        self.record.update({name: str(value) for name, value in fields.items()})


@dataclass(slots=True)
class Model:
    """Everything that is stored. Times in milliseconds by ``now``."""

    now: int
    announce_ms: int
    resume_ms: int
    turns: dict[str, Turn] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    due: dict[str, int] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    inbox: dict[str, int] = field(default_factory=dict)
    bodies: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def submit(
        self,
        turn_id: str,
        session: str,
        owner: str,
        policy: str,
        deadline_ms: int,
        key: str,
        body: str,
        budget: int,
        phase: int = 0,
    ) -> Reply:
        if turn_id in self.turns:
            return ["known", 0, turn_id]
        if key and (owner, key) in self.bodies:
            known_body, known_id = self.bodies[owner, key]
            return ["repeated" if known_body == body else "conflict", 0, known_id]
        line = self.lines.setdefault(session, [])
        if policy == "reject" and line:
            return ["busy", 0, line[0]]
        turn = self.turns[turn_id] = Turn({"state": "queued", "owner": owner, "session_id": session})
        turn.write(attempt=1, announced=1, deadline_ms=deadline_ms, double_text=policy)
        turn.write(next="phase.run/1" if phase else "turn.run/1")
        if not phase:
            turn.write(deadline_at=self.now + deadline_ms)
        if budget:
            turn.write(token_budget=budget, token_reserve=budget // 2)
        position = len(line)
        line.append(turn_id)
        if key:
            self.bodies[owner, key] = (body, turn_id)
        soon = position == 0 or policy == "interrupt"
        self._look_again(turn_id, self.now + self.announce_ms if soon else self._far(turn))
        turn.log.append("turn.queued")
        return ["stored", position, ""]

    def claim(self, turn_id: str, link: str, token: str, alone: int) -> Reply:
        turn = self.turns.get(turn_id)
        if turn is None:
            return ["refused", "missing"]
        if turn.text("token") == token:
            return ["claimed"]
        why = self._why_not(turn_id, turn, link, token, alone)
        if why:
            if why == "called_off":
                self._look_again(turn_id, self.now)
            return ["refused", why]
        if not turn.number("deadline_at"):
            turn.write(deadline_at=self.now + turn.number("deadline_ms"))
        turn.tokens.add(token)
        turn.write(token=token, cmd=0, alone=alone)
        self._begin(turn_id, turn, link, runs=turn.text("state") == "queued")
        return ["claimed"]

    def _begin(self, turn_id: str, turn: Turn, link: str, *, runs: bool) -> None:
        turn.write(state="running" if runs else "validating", next=link, lease_until=self.now + LEASE_MS)
        turn.write(attempt=link.partition("/")[2], not_before=0, announced=1)
        self._look_again(turn_id, self.now + LEASE_MS)
        if runs:
            turn.write(delivery=turn.number("delivery") + 1)
            turn.log.append("attempt.started")

    def _why_not(self, turn_id: str, turn: Turn, link: str, token: str, alone: int) -> str:
        refusals = {
            "finished": turn.text("state") == "finished",
            "late": token in turn.tokens,
            "held": turn.text("token") != "",
            "not_next": turn.text("next") != link,
            "waiting": self._line(turn)[:1] != [turn_id],
            "called_off": self._called_off(turn, turn.text("state") == "queued") != "",
            "early": turn.number("not_before") > self.now,
            "alone": not alone and turn.number("strikes") >= STRIKES - 1,
        }
        return next((why for why, holds in refusals.items() if holds), "")

    def beat(self, turn_id: str, token: str) -> Reply:
        turn = self._held(turn_id, token)
        if turn is None:
            return ["fenced", ""]
        turn.write(lease_until=self.now + LEASE_MS)
        self._look_again(turn_id, self.now + LEASE_MS)
        return ["held", turn.text("stop")]

    def append(self, turn_id: str, token: str, number: int, kinds: list[str]) -> Reply:
        turn = self._held(turn_id, token)
        if turn is None:
            return ["fenced", 0]
        if number > turn.number("cmd"):
            if number > turn.number("cmd") + 1:
                return ["behind", turn.number("cmd")]
            turn.write(cmd=number)
            turn.log += kinds
        return ["done", len(turn.log)]

    def seal(self, turn_id: str, token: str, accepted: str) -> Reply:
        turn = self._held(turn_id, token)
        if turn is None:
            return ["fenced"]
        if turn.text("stop"):
            return ["stopped"]
        if turn.text("state") == "running":  # judged before its run was stored
            turn.write(state="validating", next=f"turn.validate/{turn.number('attempt')}")
        turn.write(accepted=accepted)
        return ["sealed"]

    def commit(self, turn_id: str, token: str, number: int, keep: int, move: Sent) -> Reply:
        turn = self.turns.get(turn_id)
        if turn is not None and turn.text("last_token") == token and number <= turn.number("last_cmd"):
            return ["done", turn.text("last_head"), turn.text("last_outcome")]
        turn = self._held(turn_id, token)
        if turn is None:
            return ["fenced", "", ""]
        if number > turn.number("cmd") + 1:
            return ["behind", turn.number("cmd"), ""]
        if number <= turn.number("cmd"):
            return ["claimed"]
        turn.write(cmd=number, accepted="", **move.fields)
        turn.log += move.events[::2]
        outcome = turn.text("stop") or move.outcome or self._called_off(turn, move.state == "queued")
        head = ""
        if outcome:
            head = self._finish(turn_id, outcome, move.response if outcome == move.outcome else "")
        else:
            delay, parks = move.delay_ms, move.park_ms
            if keep and move.next and not delay:
                due = (
                    min(self.due[turn_id], self.now + LEASE_MS)
                    if turn.number("lease_until") <= self.now + LEASE_MS
                    else 0
                )
                self._begin(turn_id, turn, move.next, runs=move.state == "queued")
                self.due[turn_id] = due or self.due[turn_id]
                return ["went_on"]
            turn.write(token="", lease_until=0)
            turn.write(state=move.state, next=move.next, announced=1, not_before=self.now + delay if delay else 0)
            if parks:
                turn.write(decide_by=self.now + parks, deadline_at=turn.number("deadline_at") + parks)
                self.inbox[turn_id] = self.now
            self._look_again(turn_id, self.now + (parks or delay or self.announce_ms))
        turn.write(last_token=token, last_cmd=number, last_head=head, last_outcome=outcome)
        return ["done", head, outcome]

    def reap(self, turn_id: str, may_take: int) -> Reply:
        turn = self.turns.get(turn_id)
        session = turn.text("session_id") if turn else ""
        if turn is None or turn.text("state") == "finished":
            return ["gone", "", session, "", ""]
        if self.due[turn_id] > self.now:
            return ["early", "", session, "", ""]
        held = turn.text("token") != ""
        if held:
            if turn.number("lease_until") > self.now:
                self._look_again(turn_id, turn.number("lease_until"))
                return ["held", "", session, "", ""]
            if not may_take:
                return ["later", "", session, "", ""]
            self._lose(turn)
            if turn.number("strikes") >= STRIKES and turn.text("alone") == "1" and not self._called_off(turn, False):
                return ["finished", "", session, self._finish(turn_id, "dead"), "dead"]
        if turn.text("state") == "parked":
            return self._reap_parked(turn_id, turn, session)
        outcome = self._called_off(turn, turn.text("state") == "queued")
        if outcome:
            return ["finished", "", session, self._finish(turn_id, outcome), outcome]
        what, head = self._look(turn_id, turn, held)
        return [what, turn.text("next") if what == "announce" else "", session, head, ""]

    def _reap_parked(self, turn_id: str, turn: Turn, session: str) -> Reply:
        if turn.number("decide_by") > self.now:
            self._look_again(turn_id, turn.number("decide_by"))
            return ["parked", "", session, "", ""]
        self._decide(turn_id, turn, turn.text("decide_default"))
        return ["announce", turn.text("next"), session, "", ""]

    def decide(self, turn_id: str, owner: str, decision: str, kind: str) -> Reply:
        turn = self.turns.get(turn_id)
        if turn is None or owner not in {"", turn.text("owner")}:
            return ["missing", ""]
        if decision in turn.decisions:
            return ["known", turn.text("next")]
        if turn.text("state") != "parked":
            return ["not_parked", turn.text("state")]
        turn.decisions.add(decision)
        self._decide(turn_id, turn, kind)
        return ["decided", turn.text("next")]

    def _decide(self, turn_id: str, turn: Turn, kind: str) -> None:
        left = turn.number("deadline_at") - turn.number("decide_by")
        turn.write(state="ran", next=f"turn.resume/{turn.number('attempt')}", announced=1, not_before=0, decide_by=0)
        turn.write(deadline_at=self.now + max(left, self.resume_ms))
        del self.inbox[turn_id]
        self._look_again(turn_id, self.now + self.announce_ms)
        turn.log.append("turn.decided")

    def _look(self, turn_id: str, turn: Turn, held: bool) -> tuple[str, str]:
        head = self._line(turn)[0]
        if head != turn_id:
            interrupts = turn.text("double_text") == "interrupt"
            self._look_again(turn_id, self.now + self.announce_ms if interrupts else self._far(turn))
            return ("interrupt", head) if interrupts else ("waiting", "")
        if turn.number("not_before") > self.now:
            self._look_again(turn_id, turn.number("not_before"))
            return "early", ""
        announced = 1 if held else turn.number("announced") + 1
        turn.write(announced=announced)
        self._look_again(turn_id, self.now + self.announce_ms * 2 ** min(announced - 1, 6))
        return "announce", ""

    def cancel(self, turn_id: str, owner: str) -> Reply:
        turn = self.turns.get(turn_id)
        if turn is None or owner not in {"", turn.text("owner")}:
            return ["missing", ""]
        if turn.text("state") == "finished":
            return ["finished", ""]
        if turn.text("accepted"):
            return ["accepted", ""]
        if turn.text("token"):
            if not turn.text("stop"):
                turn.write(stop="cancelled")
                turn.log.append("turn.stopping")
            return ["stopping", ""]
        return ["finished", self._finish(turn_id, "cancelled")]

    def drop(self, turn_id: str, owner: str) -> Reply:
        turn = self.turns.get(turn_id)
        if turn is None or owner not in {"", turn.text("owner")}:
            return ["missing"]
        if turn.text("outcome") != "dead":
            return ["alive"]
        self.dead.discard(turn_id)
        return ["dropped"]

    def _far(self, turn: Turn) -> int:
        return turn.number("deadline_at") or self.now + 64 * self.announce_ms

    def _line(self, turn: Turn) -> list[str]:
        return self.lines[turn.text("session_id")]

    def _held(self, turn_id: str, token: str) -> Turn | None:
        turn = self.turns.get(turn_id)
        return turn if turn and turn.text("token") == token else None

    def _look_again(self, turn_id: str, at: int) -> None:
        deadline = self.turns[turn_id].number("deadline_at")
        self.due[turn_id] = deadline if self.now < deadline < at else at

    def _called_off(self, turn: Turn, will_run: bool) -> str:
        if turn.text("accepted"):
            return ""
        spent = will_run and 0 < turn.number("token_budget") <= turn.number("tokens_used")
        late = 0 < turn.number("deadline_at") <= self.now
        return turn.text("stop") or ("expired" if late or spent else "")

    def _lose(self, turn: Turn) -> None:
        runs = turn.text("state") == "running"
        turn.write(token="", lease_until=0, state="queued" if runs else "ran", strikes=turn.number("strikes") + 1)
        turn.log.append("attempt.lost")
        if runs:
            turn.write(tokens_used=turn.number("tokens_used") + turn.number("token_reserve"))

    def _finish(self, turn_id: str, outcome: str, response: str = "") -> str:
        turn = self.turns[turn_id]
        line = self._line(turn)
        led = line[0] == turn_id
        turn.write(state="finished", outcome=outcome, next="", token="", lease_until=0, response=response)
        line.remove(turn_id)
        del self.due[turn_id]
        self.inbox.pop(turn_id, None)
        head = line[0] if led and line else ""
        if head:
            self.due[head] = min(self.due[head], self.now + self.announce_ms)
        if outcome == "dead":
            self.dead.add(turn_id)
        turn.log.append("turn.finished")
        return head
