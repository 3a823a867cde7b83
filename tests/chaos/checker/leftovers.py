"""Invariants 15 and 16: nothing is left behind, and no cap is overrun, whatever the faults."""

import json
import re
from collections import Counter
from collections.abc import Iterator

from tests.chaos.checker.facts import Facts, Problem

#: Keys that never expire, by design: totals, work (sessions, due), the index of finished turns, dead letters, the audit
#: log (cut by age), policies and templates and the folders phases were run in (`turns data gc` removes those of no
#: turn, and those that are gone), Celery's own.
DECLARED = re.compile(
    r"\{[^}]+\}:(metrics:(total|pending|folds)|due|finished|dead|audit|policies(:used)?|installation|phase_folders|session:.*)|celery:.*"
)


def nothing_left(facts: Facts) -> Iterator[Problem]:
    """15: no process, no temporary folder, no key without expiry beyond the declared ones, no channel of a turn."""
    for line in facts.by["processes"]:
        for process in line["left"]:
            yield Problem(15, "leftovers", f"process {process['pid']} still runs: {process['command'][:100]}")
        for name in line.get("scratch", ()):
            yield Problem(15, "leftovers", f"the temporary folder {name} was left")
    # Those that live have no expiry on purpose: invariant 3 judges that they live.
    kept = {turn.turn for turn in facts.turns.values() if turn.record.get("outcome") == "dead" or not turn.finished}
    for line in facts.keys:
        name = line["name"]
        if line["ttl_ms"] == -1 and not DECLARED.fullmatch(name) and not any(f":{turn}" in name for turn in kept):
            yield Problem(15, "leftovers", f"the key {name} never expires")
    for line in facts.by["server"]:
        for channel in line["channels"]:
            if channel.endswith(":bell"):
                yield Problem(15, "leftovers", f"somebody still listens to {channel}")


def within_budget(facts: Facts) -> Iterator[Problem]:
    """16: attempts, passing errors, strikes and executions stay within their caps."""
    executions = Counter(line["turn"] for line in facts.by["execution"] if line["event"] == "start")
    most_transients = facts.setting("transient_retries", 4)
    for turn in facts.turns.values():
        request = json.loads(turn.record.get("request") or "{}")
        # Another model's runs, and those a person orders, are more than the request names.
        allowed = turn.number("allowed") or int(request.get("max_attempts", 3))
        if turn.number("attempt") > allowed:
            yield Problem(16, "over_budget", f"{turn.turn}: {turn.number('attempt')} attempts")
        if turn.number("transients") > most_transients:
            yield Problem(16, "over_budget", f"{turn.turn}: {turn.number('transients')} passing errors forgiven")
        if executions[turn.turn] > turn.number("delivery"):
            text = f"{turn.turn}: {executions[turn.turn]} agents ran in {turn.number('delivery')} deliveries"
            yield Problem(16, "over_budget", text)
        submit = facts.submits.get(turn.key)
        if turn.record.get("outcome") == "dead" and submit and submit.kind != "poison":
            yield Problem(16, "dead_innocents", f"{turn.turn} ({turn.key}, {submit.kind}) was given up as dead")
