"""The alert rules in Prometheus' own tool: silent on a healthy busy hour, raised by their own trouble in time.

Needs promtool: on PATH, or named by PROMTOOL (``make alerts``).
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from api_client.web.routes.prometheus_metrics import render_metrics
from tests.unit.test_dashboards import ALERTS, RULES, SAID, VITALS
from tests.unit.web.fake import FakeTurns

PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
RULE_FILE = Path(__file__).parents[2] / "compose" / "prometheus" / "alerts.yml"
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")

_GOOD = 'helix_turn_finished_total{outcome="passed",model="m",flow="v2",step="done",asked_again="0"}'
_AGAIN = 'helix_turn_finished_total{outcome="passed_after_retry",model="m",flow="v2",step="done",asked_again="1"}'
_BAD = 'helix_turn_finished_total{outcome="error",model="m",flow="v2",step="none",asked_again="0"}'
_RUNS = 'helix_turns{state="running"}'
#: A busy installation that is well, every 15 s for an hour: agents run, turns end, one waits for a person all the time.
HEALTHY = {
    _GOOD: "0+10x240",
    _AGAIN: "0+1x240",
    _BAD: "0+0x240",
    _RUNS: "6x240",
    'helix_turns{state="suspended"}': "1x240",
    'helix_turns{state="queued"}': "4x240",
    "helix_oldest_waiting_seconds": "3x240",
    "helix_oldest_suspended_seconds": "0+3x240",
    'helix_waits{reason="unfit"}': "0x240",
    'helix_waits{reason="session"}': "3x240",
    "helix_stuck_turns": "0x240",
    "helix_delivery_started_total": "0+11x240",
    'helix_delivery_lost_total{during="running"}': "0x240",
    "helix_workers": "4x240",
    "helix_stalled_workers": "0x240",
    "helix_sick_workers": "0x240",
    "helix_lease_round_seconds": "0.01x240",
    "helix_dead_letters": "0x240",
    "helix_notifications_waiting": "2x240",
    "helix_notifications_given_up": "0x240",
    'helix_pauses{what="breaker"}': "0x240",
    'helix_pauses{what="credit"}': "0x240",
    'helix_pauses{what="model"}': "1x240",
    "helix_held_turns": "12x240",
    'helix_budget_spent_ratio{budget="owner:*"}': "0.5x240",
    "helix_store_memory_bytes": "40x240",
    "helix_store_memory_limit_bytes": "100x240",
    "helix_disk_bytes": "1000000000000x240",
    "helix_disk_free_bytes": "60000000000x240",
    'helix_troubles{check="builds"}': "0x240",
    "helix_gc_last_run_timestamp_seconds": "0x240",
    'helix_http_responses_total{status="200"}': "0+30x240",
    'helix_http_responses_total{status="500"}': "0+0x240",
    'helix_build_info{version="1",python="3"}': "1x240",
}
#: Alert -> what is different from minute 30 on (120 samples), and the minutes until it must have been raised: two.
TROUBLES: dict[str, tuple[dict[str, str], int]] = {
    "HelixRetryRateHigh": ({_GOOD: "0+10x120 1200x120", _AGAIN: "0+1x120 121+10x120"}, 2),
    "HelixTurnsFailing": ({_GOOD: "0+10x120 1200x120", _BAD: "0x120 10+10x120"}, 2),
    "HelixTurnsWait": ({"helix_oldest_waiting_seconds": "3x120 61+15x120"}, 2),
    "HelixNoWorkerCan": ({'helix_waits{reason="unfit"}': "0x120 5x120"}, 2),
    "HelixNoWorker": ({"helix_workers": "4x120 0x120"}, 2),
    "HelixWorkerStalled": ({"helix_stalled_workers": "0x120 1x120"}, 2),
    "HelixHostSick": ({"helix_sick_workers": "0x120 1x120"}, 2),
    "HelixLeasesSlow": ({"helix_lease_round_seconds": "0.01x120 2x120"}, 2),
    "HelixDeadLetters": ({"helix_dead_letters": "0x120 1x120"}, 2),
    "HelixNotificationsGivenUp": ({"helix_notifications_given_up": "0x120 1x120"}, 2),
    "HelixWorkersDie": ({'helix_delivery_lost_total{during="running"}': "0x120 8x120"}, 2),
    "HelixBreakerOpen": ({'helix_pauses{what="breaker"}': "0x120 1x120"}, 2),
    "HelixNoCredit": ({'helix_pauses{what="credit"}': "0x120 1x120"}, 2),
    "HelixBudgetNear": ({'helix_budget_spent_ratio{budget="owner:*"}': "0.5x120 0.9x120"}, 2),
    "HelixBudgetSpent": ({'helix_budget_spent_ratio{budget="owner:*"}': "0.5x120 1.02x120"}, 2),
    "HelixStoreFilling": ({"helix_store_memory_bytes": "40x120 90x120"}, 2),
    "HelixDiskFilling": ({"helix_disk_free_bytes": "60000000000x120 49000000000x120"}, 2),
    "HelixSetUpWrong": ({'helix_troubles{check="builds"}': "0x120 1x120"}, 2),
    "HelixGcNotRun": ({"helix_gc_last_run_timestamp_seconds": "0x120 -1000000x120"}, 2),
    "HelixRelayErrors": ({'helix_http_responses_total{status="500"}': "0x120 20x120"}, 2),
    "HelixNotScraped": ({'helix_build_info{version="1",python="3"}': "1x120 stale"}, 2),
}


def promtool(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, **more)


def raised(series: dict[str, str], alert: str, minute: int, folder: Path, *, silent: bool) -> str:
    """Play the series; empty when the alert is raised, or silent, as it should be at this minute."""
    [rule] = [rule for rule in RULES if rule["alert"] == alert]
    expected = {"exp_labels": rule["labels"] | labels_of(series, rule), "exp_annotations": rule["annotations"]}
    told = [] if silent else [expected]
    tests = {
        "rule_files": [str(RULE_FILE)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": told}],
            }
        ],
    }
    path = folder / "tests.yml"
    path.write_text(yaml.safe_dump(tests))
    done = promtool("test", "rules", str(path))
    return "" if done.returncode == 0 else done.stdout + done.stderr


def labels_of(series: dict[str, str], rule: dict[str, Any]) -> dict[str, str]:
    """The labels that an alert over one metric keeps."""
    if "sum(" in rule["expr"] or "absent(" in rule["expr"]:
        return {}
    [metric, *_] = re.findall(r"helix_\w+", rule["expr"])
    first = next((name for name in series if name.partition("{")[0] == metric), "")
    inside = first.partition("{")[2].rstrip("}")
    return {name: value.strip('"') for name, _, value in (pair.partition("=") for pair in inside.split(",") if pair)}


def test_every_rule_is_valid_for_prometheus() -> None:
    done = promtool("check", "rules", str(RULE_FILE))
    assert done.returncode == 0, done.stdout + done.stderr


async def test_what_the_relay_says_is_valid_for_prometheus() -> None:
    turns = FakeTurns()
    text = render_metrics(await turns.figures.read_totals(), await turns.workers.read_state(), VITALS).decode()
    done = promtool("check", "metrics", input=text)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", [rule["alert"] for rule in RULES])
def test_a_healthy_busy_hour_with_suspended_and_paused_turns_raises_nothing(alert: str, tmp_path: Path) -> None:
    for minute in (5, 31, 59):
        assert raised(HEALTHY, alert, minute, tmp_path, silent=True) == ""


@pytest.mark.parametrize("alert", TROUBLES)
def test_a_trouble_raises_its_own_alert_in_time(alert: str, tmp_path: Path) -> None:
    changed, minutes = TROUBLES[alert]
    assert changed.keys() <= HEALTHY.keys()
    assert raised(HEALTHY | changed, alert, 30 + minutes, tmp_path, silent=False) == ""


def test_every_series_of_the_tests_is_one_that_the_relay_has() -> None:
    assert ALERTS["groups"]
    later = {"helix_oldest_suspended_seconds", "helix_stuck_turns"}  # of the truth about what is stuck
    assert {name.partition("{")[0] for name in HEALTHY} - SAID.keys() <= later
