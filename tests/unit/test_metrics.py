"""From counters to figures, and which buckets answer for a span of time."""

import math
from collections import Counter
from itertools import pairwise

import pytest

from api_client.contract.counters import BOUNDS_MS, COUNTERS, clean_label, counter_field, parse_field
from api_client.contract.issue import ValidationIssue
from api_client.contract.tasks import VALIDATE, ChainTask
from api_client.contract.turn import Turn, TurnRequest, TurnState
from api_client.contract.usage import Usage
from api_client.figures.figure_reader import choose_buckets
from api_client.figures.rollup import compute_retry_rate, compute_stats
from api_client.figures.statistics import Duration, RuleRow, TurnRow
from api_client.policies.flows import choose_flow
from worker.enforcement.attempt import Attempt
from worker.enforcement.policy import Fail, Policy
from worker.turns.transitions.after_validation import after_validation

LIVES: dict[str, float] = {"minute": 2 * 86_400, "hour": 40 * 86_400, "day": 400 * 86_400}
SECONDS = {"minute": 60, "hour": 3600, "day": 86_400}

FOUND = Counter(
    {
        "turn.submitted": 12,
        "turn.finished|passed|big|v2|done|0": 6,
        "turn.finished|passed_after_retry|big|v2|what|1": 2,
        "turn.finished|passed_by_fallback|small|v3|unknown|1": 1,
        "turn.finished|failed|small|v3|none|1": 1,
        "turn.finished|dead|small|v3|none|0": 1,
        "turn.finished|cancelled|small|v3|none|0": 1,
        "delivery.started": 15,
        "delivery.lost|running": 2,
        "delivery.lost|validating": 1,
        "attempt.ended|complete|big": 10,
        "attempt.ended|transient|small": 3,
        "attempt.judged|accept|big": 8,
        "attempt.judged|retry|big": 2,
        "validator.judged|step_marker|big": 10,
        "validator.rejected|step_marker|retry|big": 2,
        "validator.gave_up|step_marker": 1,
        "code.rejected|MISSING_STEP_MARKER|retry": 2,
        "tokens.input|big": 900,
        "tokens.output|big": 100,
        "tokens.failed|big": 200,
        "cost.all|big": 1_500_000,
        "cost.failed|big": 250_000,
        "time.agent.ms|big": 30_000,
        "time.agent.le|big|1000": 5,
        "time.agent.le|big|5000": 4,
        "time.agent.le|big|inf": 1,
    }
)


def figures(by: str = "") -> dict[str, TurnRow | RuleRow]:
    return {row.name: row for row in compute_stats(FOUND, since=0, until=60, by=by).rows}


def test_the_total_adds_up_every_turn_and_every_run() -> None:
    total = compute_stats(FOUND, since=0, until=60).total
    assert (total.turns, total.passed, total.asked_again, total.repaired) == (12, 9, 4, 1)
    assert (total.gave_up, total.errors, total.cancelled) == (1, 1, 1)
    assert (total.runs, total.rejected) == (13, 2)
    assert (total.tokens, total.failed_tokens, total.cost_usd, total.failed_cost_usd) == (1000, 200, 1.5, 0.25)
    assert total.to_dict()["retry_rate"] == pytest.approx(4 / 12)


def test_phases_tell_how_many_attempts_were_verified_and_who_they_were_handed_to() -> None:
    judged = {"phase.judged|accept": 4, "phase.judged|retry": 3, "phase.judged|escalate": 2, "phase.judged|fail": 1}
    handed = {"turn.escalated|1": 1, "turn.escalated|2": 2, "turn.decided|retry": 1, "turn.decided|reject": 1}
    stats = compute_stats({**judged, **handed}, since=0, until=60).to_dict()
    assert stats["phases"] == {
        "verified": 10, "passed": 4, "asked_again": 3, "escalated": 2, "failed": 1, "pass_rate": 0.4,
        "attempts_per_pass": 2.5,
    }  # fmt: skip
    assert stats["escalated"] == {"model": 1, "person": 2}
    assert stats["decided"] == {"approve": 0, "edit": 0, "retry": 1, "reject": 1}
    nothing = compute_stats({}, since=0, until=60).phases
    assert (nothing.rate, nothing.attempts) == (None, None), "no rate is made of nothing"


def test_rows_by_model_carry_cost_and_rows_by_flow_compare_outcomes() -> None:
    models, flows = figures("model"), figures("flow")
    assert (models["big"].turns, models["big"].cost_usd, models["small"].runs) == (8, 1.5, 3)
    assert flows["v2"].to_dict()["success_rate"] == 1.0
    assert flows["v3"].to_dict()["success_rate"] == 0.25
    assert flows["v3"].to_dict()["error_rate"] == 0.25
    assert list(figures("step")) == ["done", "none", "what", "unknown"]
    assert figures("outcome")["passed"].turns == 6


def test_a_rule_row_tells_what_followed_a_rejection() -> None:
    row = figures("validator")["step_marker"]
    assert row == RuleRow(name="step_marker", validated=10, rejected=2, retried=2, gave_up=1)
    assert figures("code")["MISSING_STEP_MARKER"].rate == 0.2


def test_whatever_is_decided_on_an_answer_has_its_place_in_a_rule_row() -> None:
    found = {f"validator.rejected|v|{decision}|big": 1 for decision in ("retry", "fallback", "escalate", "fail")}
    [row] = compute_stats(found, since=0, until=60, by="validator").rows
    assert row == RuleRow(name="v", rejected=4, retried=1, fallback=1, others={"escalated": 1}, failed=1)


def test_a_gate_has_a_rate_too_of_the_outputs_that_were_verified() -> None:
    found = {"phase.judged|retry": 1, "phase.judged|accept": 3, "validator.rejected|syntax|retry|m": 1}
    [row] = compute_stats(found, since=0, until=60, by="validator").rows
    assert (row.name, row.rate) == ("syntax", 0.25)  # type: ignore[union-attr]


def test_lost_deliveries_are_counted_whatever_they_were_doing() -> None:
    stats = compute_stats(FOUND, since=0, until=60)
    assert (stats.submitted, stats.started, stats.lost, stats.handed_over) == (12, 15, 3, 0)
    assert stats.outcomes["dead"] == 1
    assert stats.outcomes["expired"] == 0


def test_a_duration_has_a_mean_and_quantiles_within_its_buckets() -> None:
    [agent] = [duration for duration in compute_stats(FOUND, since=0, until=60).durations if duration.name == "agent"]
    assert (agent.count, agent.mean) == (10, 3.0)
    assert agent.quantile(0.5) == 1.0
    assert agent.quantile(0.9) == 5.0
    assert agent.quantile(0.99) == BOUNDS_MS[-1] / 1000, "beyond the last bound nothing is made up"
    assert Duration(name="none", count=0, seconds=0, buckets=((math.inf, 0),)).quantile(0.5) is None


def test_where_nothing_was_counted_a_rate_is_none_and_not_zero() -> None:
    stats = compute_stats({}, since=0, until=60, by="validator")
    assert stats.rows == ()
    assert stats.total.to_dict()["success_rate"] is None
    assert RuleRow(name="x").rate is None
    assert compute_retry_rate({}, since_seconds=60).rate is None


def test_a_rule_has_a_rate_of_its_own_for_each_model() -> None:
    counted = {
        "turn.finished|passed_after_retry|big|v2|what|1": 1,
        "turn.finished|passed|small|v2|what|0": 3,
        "validator.judged|step_marker|big": 2,
        "validator.judged|step_marker|small": 3,
        "validator.rejected|step_marker|retry|big": 1,
        "validator.rejected|step_marker|retry": 5,  # as an older release counted: of which model, nobody knows
    }
    whole = compute_retry_rate(counted, since_seconds=60, by="validator")
    big = compute_retry_rate(counted, since_seconds=60, by="validator", model="big")
    small = compute_retry_rate(counted, since_seconds=60, by="validator", model="small")
    assert (whole.turns, [(row.rejected, row.validated) for row in whole.rows]) == (4, [(6, 5)])
    assert (big.rate, [(row.rejected, row.validated) for row in big.rows]) == (1.0, [(1, 2)])
    assert (small.rate, small.rows) == (0.0, ())


@pytest.mark.parametrize("span", [60, 3600, 5 * 3600 + 70, 86_400, 30 * 86_400 + 12_345])
@pytest.mark.parametrize("now", [1_800_000_000.0, 1_800_003_599.0, 1_800_043_210.5])
def test_buckets_cover_every_minute_once_and_a_month_costs_little(span: float, now: float) -> None:
    found = choose_buckets(now - span, now, now, LIVES)
    covered = sorted((at, at + SECONDS[size]) for size, at in found)
    assert all(before[1] == after[0] for before, after in pairwise(covered)), "a gap or an overlap"
    assert covered[0][0] <= now - span < now < covered[-1][1]
    assert len(found) <= 59 + 23 + 31


def test_a_span_long_ago_is_read_from_whole_hours() -> None:
    now = 1_800_000_000.0
    until = now - 7 * 86_400
    found = choose_buckets(until - 86_400, until, now, LIVES)
    assert {size for size, _ in found} <= {"hour", "day"}
    assert sum(SECONDS[size] for size, _ in found) == 86_400


def test_a_counter_has_the_labels_of_the_table_and_nothing_else() -> None:
    assert counter_field("attempt.ended", "complete", "gpt|4\n") == "attempt.ended|complete|gpt_4_"
    assert parse_field("attempt.ended|complete|m") == ("attempt.ended", ("complete", "m"))
    assert clean_label("") == "none"
    assert len(clean_label("x" * 300)) == 64
    with pytest.raises(ValueError, match="verdict, model"):
        counter_field("attempt.ended", "complete")
    assert all(entry.meaning for entry in COUNTERS.values())


def test_a_session_keeps_its_flow_version_and_sessions_are_spread_by_weight() -> None:
    versions = {"v2": 9, "v3": 1}
    spread = Counter(choose_flow(f"s-{number}", versions) for number in range(2000))
    assert 100 < spread["v3"] < 300
    assert choose_flow("s-1", versions) == choose_flow("s-1", versions)
    assert choose_flow("s-1", {"off": 0, "v2": 1}) == "v2"


def test_what_a_validator_makes_up_is_counted_under_one_label() -> None:
    issues = tuple(ValidationIssue(f"MADE_UP_{n}", "m", "h", validator=f"v{n}") for n in range(50))
    attempt = Attempt(number=1, text="x", answer="x", complete=True, issues=issues)
    request = TurnRequest(model="m|x", messages=({"role": "user", "content": "?"},), session_id="s")
    turn = Turn(turn_id="turn-1", epoch="e", state=TurnState.VALIDATING, request=request)
    usage = Usage.from_report({"input_tokens": 5, "output_tokens": "many", "cost_usd": 1e300})
    transition = after_validation(turn, ChainTask(VALIDATE, 1), attempt, Policy(), Fail(1, "why"), usage)
    assert {name for name in transition.counters if name.startswith(("code", "validator.rejected"))} == {
        "code.rejected|other|fail",
        "validator.rejected|other|fail|m_x",
    }
    assert transition.counters["attempt.judged|fail|m_x"] == 1
    assert transition.counters["tokens.failed|m_x"] == 5
    assert "cost.failed|m_x" not in transition.counters, "what makes no sense was not used"
