"""Dashboard, alerts and scrape configuration name what /metrics really says, and nothing else."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from api_client.budgets.budget import BudgetSpending
from api_client.budgets.budget_monitor import BudgetMonitor
from api_client.contract.counters import BOUNDS_MS, COUNTERS
from api_client.contract.tasks import CHECK_QUEUE, RUN_QUEUE
from api_client.contract.tool_calls import ToolRule
from api_client.contract.turn import Outcome, TurnState
from api_client.notifications.notification_monitor import NotificationMonitor
from api_client.notifications.outbox import NotificationCounts
from api_client.pauses.pause import BREAKER, LIMIT, WHATS
from api_client.pauses.pause_monitor import PauseMonitor
from api_client.web.routes.prometheus_metrics import InstallationVitals, metric_name, render_metrics
from api_client.workers.fleet import Alert
from api_client.workers.installation_state import InstallationState
from api_client.workers.monitor import Gauge, Monitor
from api_client.workers.reason import REASONS
from tests.integration.test_access_table import routes
from tests.unit.cli.test_commands import resolve
from tests.unit.web.fake import answering

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
DASHBOARD = json.loads((COMPOSE / "grafana/dashboards/helix-turns.json").read_text())
SCRAPE = yaml.safe_load((COMPOSE / "prometheus/prometheus.yml").read_text())
ALERTS = yaml.safe_load((COMPOSE / "prometheus/alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = DASHBOARD["panels"]

#: Label values that Prometheus itself makes, or a query.
_SELECTOR = re.compile(r"(helix_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')
VALUES = {
    "outcome": {outcome.value for outcome in Outcome},
    "asked_again": {"0", "1"},
    "state": {state.value for state in TurnState},
    "what": {*WHATS, BREAKER, LIMIT, "credit"},
    "reason": {reason.value for reason in REASONS},
    "check": {"settings budgets", "builds", "sessions shared", "disk"},
    "status": {"200", "429", "500", "503"},
}


SPENT = BudgetSpending(scope="owner:a", budget="owner:*", limit_usd=2, spent_usd=1, resets_at=1.0)


async def _gauges(monitor: Monitor) -> Sequence[Gauge]:
    return await monitor.read_gauges()


VITALS = InstallationVitals(
    queues=dict.fromkeys((RUN_QUEUE, CHECK_QUEUE), 0),
    gauges=[
        gauge
        for monitor in (
            PauseMonitor(cast("Any", SimpleNamespace(list_active=answering([]), count_held=answering(0)))),
            BudgetMonitor(cast("Any", SimpleNamespace(read_today=answering([SPENT])))),
            NotificationMonitor(cast("Any", SimpleNamespace(counts=answering(NotificationCounts())))),
        )
        for gauge in asyncio.run(_gauges(monitor))
    ],
    store_bytes=1,
    store_limit_bytes=0,
    responses={200: 7, 500: 1},
)


TROUBLED = InstallationState(at=0.0, alerts=(Alert("builds", "two", "replace them", "warning"),))


def families() -> list[Metric]:
    """Every metric that /metrics can have."""
    counters = {"turn.submitted": 1, "delivery.started": 1, "delivery.handed_over": 1}
    for name, entry in COUNTERS.items():
        labels = "".join(f"|{label}" for label in entry.labels)
        if name.startswith("time."):
            counters |= {f"{name}.ms{labels}": 7, f"{name}.le{labels}|{BOUNDS_MS[0]}": 1, f"{name}.le{labels}|inf": 1}
        else:
            counters[name + labels] = 1
    return list(text_string_to_metric_families(render_metrics(counters, TROUBLED, VITALS).decode()))


FAMILIES = families()


def said() -> dict[str, set[str]]:
    """Every sample /metrics can have: name -> labels."""
    found: dict[str, set[str]] = {}
    for family in FAMILIES:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


SAID = said()
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
QUERIES = {
    **{f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]},
    **{rule["alert"]: rule["expr"] for rule in RULES},
}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_names_metrics_and_labels_that_exist(name: str) -> None:
    query = QUERIES[name]
    metrics = _SELECTOR.findall(query)
    assert metrics
    for metric, matchers in metrics:
        assert metric in SAID, f"{metric} is not in /metrics"
        for label, how, value in _MATCHER.findall(matchers):
            assert label in SAID[metric]
            if value.startswith("$"):
                assert value.removeprefix("$") in VARIABLES
                continue
            matching = [v for v in VALUES[label] if (re.fullmatch(value, v) if how == "=~" else v == value)]
            assert matching, f"{label} is never {value}"
    for labels in re.findall(r"by \(([^)]*)\)", query):
        wanted = {label.strip() for label in labels.split(",")}
        assert any(wanted <= SAID[metric] for metric, _ in metrics), f"nothing has the labels {labels}"
    assert query.count("(") == query.count(")")


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_a_panel_has_its_place_its_source_and_legends_of_labels_it_keeps(panel: dict[str, Any]) -> None:
    place = panel["gridPos"]
    assert place["x"] + place["w"] <= 24
    others = [other["gridPos"] for other in PANELS if other is not panel]
    assert not any(overlap(place, other) for other in others), "two panels in one place"
    for target in panel["targets"]:
        assert target["datasource"]["uid"] == "${datasource}"
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            aggregated = re.findall(r"by \(([^)]*)\)", target["expr"])
            kept = ",".join(aggregated) if aggregated else ",".join(SAID[_SELECTOR.findall(target["expr"])[0][0]])
            assert label in kept


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


def source_uid() -> str:
    [source] = yaml.safe_load((COMPOSE / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    uid: str = source["uid"]
    return uid


def test_the_data_source_is_chosen_and_is_that_of_the_provisioning_by_default() -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["current"]["value"] == source_uid()


def test_queries_over_models_heed_the_model_that_is_chosen() -> None:
    asked = SAID[_SELECTOR.findall(VARIABLES["model"]["query"]["query"])[0][0]]
    assert "model" in asked
    for panel in PANELS:
        for target in panel["targets"]:
            for metric, matchers in _SELECTOR.findall(target["expr"]):
                assert "model" not in SAID[metric] or 'model=~"$model"' in matchers, (panel["title"], metric)


def test_links_lead_to_pages_that_exist() -> None:
    pages = {path for method, path in routes() if method == "GET"}
    links = [link["url"].removeprefix("${relay}").partition("?")[0] for link in DASHBOARD["links"]]
    assert len(links) >= 5
    assert set(links) <= pages


def test_the_main_metrics_are_on_the_dashboard() -> None:
    shown = " ".join(QUERIES.values())
    for name in COUNTERS:
        if name not in {"turn.submitted", "validator.gave_up", "code.gave_up", "attempt.ended", "attempt.judged"}:
            assert metric_name(name).removesuffix("_total") in shown, f"{name} is nowhere to be seen"


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_says_what_happened_and_what_to_do_with_commands_that_exist(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert set(rule["annotations"]) == {"summary", "todo"}
    for words in re.findall(r"turns ([a-z]+(?: [a-z-]+)?)", rule["annotations"]["todo"]):
        assert resolve(words.split())[0] is not None, words


def test_prometheus_reads_its_key_from_a_file_and_finds_the_alerts() -> None:
    [job] = SCRAPE["scrape_configs"]
    assert "credentials_file" in job["authorization"]
    assert "credentials" not in job["authorization"]
    assert job.get("metrics_path", "/metrics") == "/metrics"
    assert all((COMPOSE / "prometheus" / name).is_file() for name in SCRAPE["rule_files"])


def test_the_document_has_every_counter_with_its_metric_and_labels() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    for name, entry in COUNTERS.items():
        labels = f" ({', '.join(entry.labels)})" if entry.labels else ""
        assert f"- `{metric_name(name)}`{labels}: {entry.meaning}\n" in text


@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_a_help_text_stands_alone_and_ends_as_a_sentence(family: Metric) -> None:
    """Grafana and Prometheus show one text at a time: it must not refer to the line before it."""
    said = family.documentation
    assert said.endswith((".", "doctor.", "dead.")), said
    assert not re.search(
        r"\b([Tt]his (?!relay)|[Tt]hese|[Tt]hose|[Tt]hey|[Tt]he same|[Oo]f them|above|below)\b", said
    ), said


def test_units_are_the_base_units_of_prometheus() -> None:
    for family in FAMILIES:
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent|micros)(_|$)", family.name), family.name
        if "dollar" in family.documentation:
            assert "_usd" in family.name
            assert "illionth" not in family.documentation


def test_losses_and_errors_are_shown_before_the_first_one_so_that_prometheus_sees_it() -> None:
    zero = {(s.name, *s.labels.values()) for family in FAMILIES for s in family.samples if s.value == 0}
    assert {("helix_delivery_lost_total", "running"), ("helix_http_responses_total", "503")} <= zero


def test_the_alert_about_a_person_comes_before_the_question_is_answered_no() -> None:
    [rule] = [each for group in ALERTS["groups"] for each in group["rules"] if each["alert"] == "HelixPersonNeeded"]
    assert float(rule["expr"].rpartition(">")[2]) + 60 < ToolRule().wait_seconds
