"""Metrics equal the log: turns through real workers, then counters, ``turns stats summary``, /v1/stats and /metrics."""

import json
from collections import Counter

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from api_client.client import TurnsClient
from api_client.contract.keys import BUCKETS, Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnRequest
from api_client.web.app.relay_server import create_app
from api_client.web.routes.prometheus_metrics import metric_name
from tests import records
from tests.chaos.checker.counters import folded
from tests.installation import Installation, command
from tests.installation import asked as request
from tests.support import wait_until
from tests.unit.web.conftest import caller

SCRIPT = """
- when: gleich
  attempts:
    - - usage: {input_tokens: 100, output_tokens: 10, cost_usd: 0.25}
      - say: "Ja.\\n\\n<!-- STEP: done -->"
- when: repariere
  attempts:
    - - usage: {input_tokens: 40, output_tokens: 4, cost_usd: 0.5}
      - say: "Ohne Marker."
    - - usage: {input_tokens: 60, output_tokens: 6, cost_usd: 0.5}
      - say: "Mit Marker.\\n\\n<!-- STEP: what -->"
- when: hilf
  attempts:
    - - say: "Immer ohne Marker."
- when: ADR
  attempts:
    - - say: "---\\nadr_id: '1'\\ntitle: T\\nstatus: Proposed\\n---\\n\\n## Kontext\\n\\n<!-- STEP: generate -->"
- when: stolpere
  deliveries:
    - - error: {kind: transient, message: voll, retry_after: 0.1}
    - - say: "Doch noch.\\n\\n<!-- STEP: why -->"
- when: bricht
  attempts:
    - - usage: {input_tokens: 7, output_tokens: 0, cost_usd: 0.125}
      - say: "Ich fange an und"
      - die
- when: kann nicht
  attempts:
    - - error: {kind: permanent, message: nein}
- when: stirbt
  deliveries:
    - - say: "Ich fange an"
      - wait: 60
    - - say: "Zu Ende.\\n\\n<!-- STEP: done -->"
"""
#: What is asked, and how it ends.
ASKED = {
    "gleich": Outcome.PASSED,
    "repariere": Outcome.PASSED_AFTER_RETRY,
    "hilf": Outcome.PASSED_BY_FALLBACK,
    "ADR": Outcome.FAILED,
    "stolpere": Outcome.PASSED,
    "bricht": Outcome.INCOMPLETE,
    "kann nicht": Outcome.ERROR,
    "stirbt": Outcome.PASSED,
}


@pytest.fixture
def scripted(installation: Installation) -> Settings:
    return installation.play(SCRIPT, "big", transient_delay_seconds=0.1, lease_seconds=3.0)


@pytest.fixture
def client(scripted: Settings, installation: Installation) -> TurnsClient:
    return installation.client


async def test_after_whole_turns_every_figure_everywhere_is_what_the_logs_say(
    scripted: Settings, client: TurnsClient, installation: Installation
) -> None:
    worker = installation.worker()
    ids = {text: await client.submitter.submit(asked(text)) for text in ASKED}
    await wait_until(lambda: said(client, ids["stirbt"]))
    for text in ASKED.keys() - {"stirbt"}:  # no other turn is hit
        await client.reader.await_result(ids[text], timeout=60)
    worker.kill()
    installation.worker("--processes", "2")
    outcomes = {text: (await client.reader.await_result(turn_id, timeout=60)).outcome for text, turn_id in ids.items()}
    assert outcomes == ASKED

    told = await fold_of_the_logs(client, list(ids.values()))
    with redis.Redis.from_url(scripted.redis_url) as store:
        await wait_until(lambda: not store.exists(Keys(scripted.namespace).pending))  # a reaper folds them
    assert stored(scripted, [Keys(scripted.namespace).totals]) == told
    assert told["turn.finished|passed_after_retry|big|v2|what|1"] == 1
    assert told["cost.failed|big"] == 500_000 + 3 * 125_000, "rejected and broken off"
    assert told["validator.gave_up|adr_structure"] == 1
    assert told["delivery.lost|running"] >= 1
    assert sum(value for name, value in told.items() if name.startswith("time.recovery.le|")) >= 1
    for size, seconds in BUCKETS.items():
        found = bucket_keys(scripted, size)
        assert stored(scripted, list(found)) == told, size
        life = scripted.bucket_lives[size]
        assert all(life - seconds <= ttl <= life for ttl in found.values()), f"a bucket by the {size} has another life"

    await the_command_says_so(scripted, told)
    await the_relay_says_so(scripted, client, told)


async def the_command_says_so(scripted: Settings, told: Counter[str]) -> None:
    def run(*arguments: str) -> str:
        done = command(scripted, "stats", "summary", "--since", "1h", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    by_model = json.loads(run("--by", "model", "--against", "7d", "--json"))
    [row] = by_model["rows"]
    assert (row["name"], row["turns"], row["asked_again"]) == ("big", 8, sum_of(told, "turn.finished", "1"))
    assert row["failed_cost_usd"] == told["cost.failed|big"] / 1e6
    assert by_model["against"]["total"]["turns"] == 0
    shown = run("--by", "validator")
    assert "8 turns finished: 62.5% passed" in shown
    assert "step_marker" in shown


async def the_relay_says_so(scripted: Settings, client: TurnsClient, told: Counter[str]) -> None:
    async with caller(create_app(scripted, client)) as http:
        stats = (await http.get("/v1/stats?since=1h&by=code")).json()
        assert {row["name"] for row in stats["rows"]} >= {"MISSING_STEP_MARKER", "MISSING_ADR_SECTION"}
        await wait_until(lambda: workers_of(client))
        text = (await http.get("/metrics")).text
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert sum(v for (name, *_), v in samples.items() if name == metric_name("turn.finished")) == 8
    assert samples["helix_turn_finished_total", "1", "big", "passed_after_retry", "v2", "what"] == 1
    assert samples["helix_cost_failed_usd_total", "big"] == told["cost.failed|big"] / 1e6
    assert samples["helix_agent_seconds_count", "big"] == sum_of(told, "attempt.ended", "big")
    assert samples["helix_agent_seconds_bucket", "+Inf", "big"] == samples["helix_agent_seconds_count", "big"]
    assert samples["helix_turns", "running"] == 0
    assert samples["helix_queue_messages", "helix.run"] == 0
    assert samples["helix_workers",] >= 2
    assert samples["helix_stalled_workers",] == samples["helix_dead_letters",] == 0
    assert samples["helix_free_slots", "helix.run"] > 0


def asked(text: str) -> TurnRequest:
    return request(text, f"s {text}", model="big")


async def said(client: TurnsClient, turn_id: str) -> bool:
    return (await client.reader.read_turn(turn_id)).seq >= 3


async def workers_of(client: TurnsClient) -> bool:
    return len((await client.workers.read_state()).recent_reports) >= 2


async def fold_of_the_logs(client: TurnsClient, ids: list[str]) -> Counter[str]:
    told: Counter[str] = Counter()
    with redis.Redis.from_url(client.settings.redis_url) as store:
        for turn_id in ids:
            record = records.record(store, Keys(client.settings.namespace), turn_id)
            events = [event.to_dict() async for event in client.reader.follow_turn(turn_id) if event is not None]
            told.update(folded(record, events))
    return told


def stored(settings: Settings, names: list[str]) -> Counter[str]:
    total: Counter[str] = Counter()
    with redis.Redis.from_url(settings.redis_url) as store:
        for name in names:
            total.update({field.decode(): int(value) for field, value in store.hgetall(name).items()})
    return +total


def bucket_keys(settings: Settings, size: str) -> dict[str, int]:
    """The stored buckets of a size, with their lives in seconds."""
    with redis.Redis.from_url(settings.redis_url) as store:
        names = [name.decode() for name in store.scan_iter(f"{settings.namespace}:*metrics:{size}:*", count=1000)]
        return {name: store.ttl(name) for name in names}


def sum_of(told: Counter[str], name: str, last_label: str) -> int:
    return sum(v for field, v in told.items() if field.startswith(f"{name}|") and field.endswith(f"|{last_label}"))
