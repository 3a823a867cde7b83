"""Invariant 9: every counter is what the logs add up to, in the totals and in the sum of minutes, hours and days."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.chaos.checker.facts import Facts, Line, Problem

_BY_A_REAPER = {"running", "validating"}
#: What followed a rejection -> what was decided.
_DECISIONS = {"turn.retrying": "retry", "turn.fallback": "fallback", "turn.escalated": "escalate"}
#: Counters that no turn's log has: breakers belong to models.
_OF_NO_TURN = "breaker."
#: Upper bounds of the buckets durations are counted in, in ms.
_BOUNDS = (10, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000)


def folded(record: Mapping[str, str], log: Sequence[Line]) -> Counter[str]:
    """What one turn has added to the counters, as its log tells."""
    fold = _Fold(record)
    for place, event in enumerate(log):
        fold.add(event, log[place + 1]["kind"] if place + 1 < len(log) else "")
    return +fold.total


class _Fold:
    """Reads a log from its first event to its last. Times in ms of the store's clock."""

    def __init__(self, record: Mapping[str, str]) -> None:
        self.total: Counter[str] = Counter()
        self._asked, self._flow = record.get("model", "other"), record.get("flow", "none")
        self._policy = record.get("policy", "")
        self._model = self._asked  # who works: another one after an escalation
        request = json.loads(record["request"])
        self._validators, self._is_phase = request["validators"], request.get("work") == "phase"
        self._asked_again = False
        self._queued = self._since = 0
        self._alive = 0
        self._stands_at = self._still = 0
        self._used: dict[int, Mapping[str, Any]] = {}

    def add(self, event: Line, following: str) -> None:
        """Count one event; ``following`` is the kind of the next."""
        at, data = event["at"], event["data"]
        self._stands(event["kind"], at, data)
        match event["kind"]:
            case "turn.queued":
                self.total["turn.submitted"] += 1
                self._queued = at
            case "attempt.started":
                self._started(at, data)
            case "attempt.lost":
                self._lost(at, data)
            case "attempt.completed":
                self._completed(at, data, following)
            case "attempt.accepted":
                self._judged(at, "accept")
            case "attempt.rejected":
                self._rejected(at, data, _DECISIONS.get(following, "fail"))
            case "turn.escalated":
                self.total[f"turn.escalated|{data['stage']}"] += 1
                self._model = data.get("model") or self._model
            case "turn.decided":
                self.total[f"turn.decided|{data['kind']}"] += 1
            case "turn.retrying":
                self._asked_again |= data["reason"] == "rejected"
            case "turn.finished":
                self._finished(at, data)

    def _stands(self, kind: str, at: int, data: Line) -> None:
        """The time it waited for a person or a pause does not count as the turn's."""
        if kind == "turn.suspended" or (kind == "turn.paused" and data["what"] not in {"breaker", "limit"}):
            self._stands_at = self._stands_at or at
        elif kind in {"turn.decided", "turn.paused", "turn.resumed", "turn.finished"} and self._stands_at:
            self._still += at - self._stands_at
            self._stands_at = 0

    def _took(self, name: str, ms: int, labels: str = "") -> None:
        ms = max(0, ms)
        bucket = next((str(bound) for bound in _BOUNDS if ms <= bound), "inf")
        self.total[f"time.{name}.ms{labels}"] += ms
        self.total[f"time.{name}.le{labels}|{bucket}"] += 1

    def _started(self, at: int, data: Line) -> None:
        self.total["delivery.started"] += 1
        if data["delivery"] == 1:
            self._took("wait", at - self._queued)
        if self._alive:
            self._took("recovery", at - self._alive)
        self._since, self._alive = at, 0

    def _lost(self, at: int, data: Line) -> None:
        if data["during"] in _BY_A_REAPER:
            self.total[f"delivery.lost|{data['during']}"] += 1
        else:
            self.total["delivery.handed_over"] += 1
            self._spent(data.get("usage", {}), wasted=True)
        if data["during"] == "running":
            self._alive = at - data["silent_ms"]

    def _completed(self, at: int, data: Line, following: str) -> None:
        verdict = "transient" if data["verdict"] == "error" and following == "turn.retrying" else data["verdict"]
        self.total[f"attempt.ended|{verdict}|{self._model}"] += 1
        self._took("agent", at - self._since, f"|{self._model}")
        self._since = at
        self._used[data["attempt"]] = data.get("usage", {})
        self._spent(data.get("usage", {}), wasted=verdict not in {"complete", "asks"})

    def _spent(self, usage: Mapping[str, Any], *, wasted: bool) -> None:
        tokens = {name: usage.get(f"{name}_tokens", 0) for name in ("input", "output")}
        for name, amount in tokens.items():
            self.total[f"tokens.{name}|{self._model}"] += amount
        self.total[f"cost.all|{self._model}"] += int(usage.get("cost_usd", 0) * 1e6)
        if wasted:
            self._wasted(usage)

    def _wasted(self, usage: Mapping[str, Any]) -> None:
        self.total[f"tokens.failed|{self._model}"] += usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
        self.total[f"cost.failed|{self._model}"] += int(usage.get("cost_usd", 0) * 1e6)

    def _judged(self, at: int, decision: str) -> None:
        self.total[f"attempt.judged|{decision}|{self._model}"] += 1
        if self._is_phase:
            self.total[f"phase.judged|{decision}"] += 1
        self.total.update(f"validator.judged|{name}|{self._model}" for name in self._validators)
        self._took("validation", at - self._since)

    def _rejected(self, at: int, data: Line, decision: str) -> None:
        self._judged(at, decision)
        validators, codes = _rules(data["issues"])
        self.total.update(f"validator.rejected|{name}|{decision}|{self._model}" for name in validators)
        self.total.update(f"code.rejected|{code}|{decision}" for code in codes)
        self._wasted(self._used.get(data["attempt"], {}))

    def _finished(self, at: int, data: Line) -> None:
        labels = (data["outcome"], self._asked, self._flow, data["step"] or "none", str(int(self._asked_again)))
        self.total["|".join(("turn.finished", *labels))] += 1
        if policy := self._policy:
            self.total["|".join(("policy.finished", policy, data["outcome"], labels[-1]))] += 1
        self._took("turn", at - self._queued - self._still)
        if data["outcome"] == "failed":
            validators, codes = _rules(data["error"].get("issues", ()))
            self.total.update(f"validator.gave_up|{name}" for name in validators)
            self.total.update(f"code.gave_up|{code}" for code in codes)


def _rules(issues: Sequence[Line]) -> tuple[set[str], set[str]]:
    errors = [issue for issue in issues if issue["severity"] == "error"]
    # Codes of rules with options count as one; of them only these are ever checked here.
    codes = {"other" if issue["code"].startswith("CLAIMED_") else issue["code"] for issue in errors}
    return {issue["validator"] for issue in errors if issue["validator"]}, codes


def counters_equal(facts: Facts) -> Iterator[Problem]:
    """Every counter the logs tell of, and every counter that is stored."""
    told: Counter[str] = Counter()
    for turn in facts.turns.values():
        told.update(folded(turn.record, turn.log))
    for bucket in ("metrics:total", "metrics:minute", "metrics:hour", "metrics:day"):
        # Rules in shadow leave no event: the log is the same with and without them.
        stored = {name: n for name, n in facts.counters(bucket).items() if not name.startswith("shadow.")}
        for name in sorted(told.keys() | stored.keys()):
            if told[name] != stored.get(name, 0) and not name.startswith(_OF_NO_TURN):
                text = f"{bucket}: {name} is {stored.get(name, 0)}, the logs say {told[name]}"
                yield Problem(9, "counters_differ", text)
