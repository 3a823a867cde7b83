"""Turns as OpenTelemetry traces: real workers, the real command, a real OTLP/HTTP receiver."""

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from api_client.client import TurnsClient
from api_client.contract.keys import Keys
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnRequest
from api_client.tracing.switch import explain_off
from tests.installation import Installation, environ_of, turns
from tests.receiver import Receiver, values
from tests.support import wait_until
from worker.cli.installation.relay_binding import RelayBinding
from worker.cli.installation.up import plan_installation
from worker.plugins.traces.trace_batches import ReceiverUnavailableError, Tree, send_next_batch

SECRET = "geheimnis-4711"
SCRIPT = f"""
- when: gleich
  attempts:
    - - usage: {{input_tokens: 100, output_tokens: 10, cost_usd: 0.25}}
      - say: "Ja, {SECRET}.\\n\\n<!-- STEP: done -->"
- when: repariere
  attempts:
    - - usage: {{input_tokens: 40, output_tokens: 4, cost_usd: 0.5}}
      - tool: {{name: Read, detail: {SECRET}}}
      - say: "Ohne Marker, {SECRET}."
    - - usage: {{input_tokens: 60, output_tokens: 6, cost_usd: 0.5}}
      - say: "Mit Marker.\\n\\n<!-- STEP: what -->"
- when: stolpere
  deliveries:
    - - usage: {{input_tokens: 5, output_tokens: 0}}
      - error: {{kind: transient, message: voll, retry_after: 0.1}}
    - - usage: {{input_tokens: 7, output_tokens: 1}}
      - say: "Doch noch.\\n\\n<!-- STEP: why -->"
- when: kann nicht
  attempts:
    - - error: {{kind: permanent, message: "{SECRET}"}}
"""
#: The span of another program in which "gleich" is asked.
CALLER_TRACE, CALLER_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ASKED = {
    "gleich": Outcome.PASSED,
    "repariere": Outcome.PASSED_AFTER_RETRY,
    "stolpere": Outcome.PASSED,
    "kann nicht": Outcome.ERROR,
}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def scripted(installation: Installation) -> Settings:
    return installation.play(SCRIPT, "big", transient_delay_seconds=0.1)


@pytest.fixture
def client(scripted: Settings, installation: Installation) -> TurnsClient:
    return installation.client


def environ(settings: Settings, receiver: Receiver | None, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in environ_of(settings).items() if not k.startswith("OTEL_")}
    return kept | ({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url} if receiver else {}) | more


def send(
    settings: Settings, receiver: Receiver | None, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    command = turns("run", "traces", "--once", *arguments)
    return subprocess.run(command, env=environ(settings, receiver, **more), capture_output=True, text=True, check=False)


def asked(text: str) -> TurnRequest:
    messages = ({"role": "user", "content": f"{text} {SECRET}"},)
    caller: dict[str, Any] = {"traceparent": f"00-{CALLER_TRACE}-{CALLER_SPAN}-01"} if text == "gleich" else {}
    return TurnRequest(model="big", messages=messages, session_id=f"s-{text}", validators=("step_marker",), **caller)


async def called_off(client: TurnsClient, number: int) -> list[str]:
    """Turns that ended without a worker, and before this millisecond: what ends in it is left for the next batch."""
    ids = [await client.submitter.submit(asked(f"warte {n}")) for n in range(number)]
    for turn_id in ids:
        await client.canceller.cancel(turn_id)
    last = max([(await client.reader.read_turn(turn_id)).finished_at for turn_id in ids])
    await wait_until(lambda: time.time() > last + 0.001)
    return ids


def named(spans: list[Span], name: str) -> list[Span]:
    return sorted((span for span in spans if span.name == name), key=lambda span: span.start_time_unix_nano)


async def test_a_turn_is_one_trace_in_which_every_run_counts_once_however_often_it_is_sent(
    scripted: Settings, client: TurnsClient, installation: Installation, receiver: Receiver
) -> None:
    installation.worker()
    await client.untraced.start_reading()
    ids = {text: await client.submitter.submit(asked(text)) for text in ASKED}
    assert {text: (await client.reader.await_result(ids[text], timeout=60)).outcome for text in ids} == ASKED
    told = json.loads(send(scripted, receiver, "--json", OTEL_RESOURCE_ATTRIBUTES="deployment=test").stdout)
    assert told == {"turns": 4, "spans": len(receiver.spans), "refused": []}
    assert (receiver.resource["service.name"], receiver.resource["deployment"]) == ("helix-turns", "test")

    check_repaired(receiver.trace(ids["repariere"]), ids["repariere"])
    of_the_caller = [span for span in receiver.spans if span.trace_id.hex() == CALLER_TRACE]
    [whole] = named(of_the_caller, "invoke_workflow turn")
    assert (whole.parent_span_id.hex(), values(whole.attributes)["helix.turn.id"]) == (CALLER_SPAN, ids["gleich"])
    assert len(of_the_caller) == 3, "the turn, its attempt, its validator"
    [broken] = named(receiver.trace(ids["kann nicht"]), "invoke_agent big")
    assert values(broken.attributes)["error.type"] == "error"
    [stumbled] = named(receiver.trace(ids["stolpere"]), "invoke_agent big")
    assert values(stumbled.attributes)["helix.attempt.deliveries"] == 2
    assert SECRET not in "".join(str(span) for span in receiver.spans), "prompts, answers and errors stay out"

    used, totals = usage(receiver.spans), await client.figures.read_totals()
    assert used["gen_ai.usage.input_tokens"] == totals["tokens.input|big"] == 100 + 40 + 60 + 5 + 7
    assert used["gen_ai.usage.output_tokens"] == totals["tokens.output|big"] == 10 + 4 + 6 + 1
    assert used["helix.usage.cost_usd"] == pytest.approx(totals["cost.all|big"] / 1e6)

    before = [span.SerializeToString(deterministic=True) for span in receiver.spans]
    assert send(scripted, receiver).stdout.startswith("0 turns, 0 spans")
    send(scripted, receiver, "--since", "1h")
    again = [span.SerializeToString(deterministic=True) for span in receiver.spans[len(before) :]]
    assert sorted(again) == sorted(before)


def check_repaired(spans: list[Span], turn_id: str) -> None:
    [whole] = [span for span in spans if not span.parent_span_id]
    assert (whole.name, whole.status.code) == ("invoke_workflow turn", Status.STATUS_CODE_UNSET)
    said = values(whole.attributes)
    assert (said["helix.turn.id"], said["gen_ai.conversation.id"]) == (turn_id, "s-repariere")
    assert (said["helix.turn.outcome"], said["helix.turn.attempts"]) == ("passed_after_retry", 2)
    first, second = named(spans, "invoke_agent big")
    assert {first.parent_span_id, second.parent_span_id} == {whole.span_id}
    times = [time for span in (first, second) for time in (span.start_time_unix_nano, span.end_time_unix_nano)]
    assert [whole.start_time_unix_nano, *times, whole.end_time_unix_nano] == sorted(
        [whole.start_time_unix_nano, *times, whole.end_time_unix_nano]
    )
    assert (first.status.code, values(first.attributes)["error.type"]) == (Status.STATUS_CODE_ERROR, "rejected")
    assert values(first.attributes)["helix.attempt.codes"] == ("MISSING_STEP_MARKER",)
    assert values(first.attributes)["gen_ai.provider.name"] == "scripted"
    assert second.status.code == Status.STATUS_CODE_UNSET
    one, two = named(spans, "evaluate step_marker")
    assert (one.parent_span_id, two.parent_span_id) == (first.span_id, second.span_id)
    assert [values(span.attributes)["gen_ai.evaluation.score.label"] for span in (one, two)] == ["fail", "pass"]


def usage(spans: list[Span]) -> Counter[str]:
    used: Counter[str] = Counter()
    for span in spans:
        said = values(span.attributes)
        used.update({name: amount for name, amount in said.items() if ".usage." in name})
    return used


async def test_a_receiver_that_is_away_loses_nothing_though_the_sender_dies_meanwhile(
    settings: Settings, client: TurnsClient, receiver: Receiver
) -> None:
    away = True
    receiver.answer = lambda request: 400 if away else 200
    await client.untraced.start_reading()
    ids = await called_off(client, 3)
    log = settings.root / "traces.log"
    process = sender(settings, receiver, log)
    try:
        await wait_until(lambda: b"traces.waiting" in log.read_bytes())
        process.kill()
        process.wait()
        assert receiver.spans == []
        away = False
        process = sender(settings, receiver, log)
        await wait_until(lambda: all(receiver.trace(turn_id) for turn_id in ids))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert SECRET not in log.read_text()


def sender(settings: Settings, receiver: Receiver, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(turns("run", "traces"), env=environ(settings, receiver), stdout=output, stderr=output)


async def test_a_turn_the_receiver_refuses_does_not_hold_the_others_up(client: TurnsClient, receiver: Receiver) -> None:
    await client.untraced.start_reading()
    refused, taken = await called_off(client, 2)
    trees: list[list[str]] = []

    def send_some(found: Sequence[Tree]) -> bool:
        trees.append([turn.turn_id for turn, _ in found])
        return refused not in trees[-1]

    sent = await send_next_batch(client, send_some)
    assert sent is not None
    assert (sent.turns, sent.refused) == (1, (refused,))
    assert sorted(trees[0]) == sorted([refused, taken])
    assert await send_next_batch(client, send_some) is None
    await called_off(client, 1)
    with pytest.raises(ReceiverUnavailableError):
        await send_next_batch(client, lambda found: False)


async def test_turns_that_ended_in_the_same_millisecond_are_all_sent_though_a_batch_ends_between_them(
    settings: Settings, client: TurnsClient
) -> None:
    backlog = client.untraced
    assert await backlog.count_waiting(0) is None
    await backlog.start_reading(3600)
    now = await client.store.read_clock_ms()
    ids = {f"turn-{number:032x}": now - 1000 + number // 3 for number in range(7)}
    await client.store.redis.zadd(Keys(settings.namespace).finished, ids)
    assert (await backlog.count_waiting(0.5), await backlog.count_waiting(60)) == (7, 0)
    seen: list[str] = []
    while batch := await backlog.next_batch(2):
        seen += batch.turn_ids
        await backlog.confirm_batch(batch)
    assert seen == sorted(ids)
    await client.store.redis.set(f"{Keys(settings.namespace).prefix}read:traces", now + 3_600_000)
    assert await backlog.next_batch(9), "the store's clock was set back"


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "no receiver: set OTEL_EXPORTER_OTLP_ENDPOINT="),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1", "OTEL_SDK_DISABLED": "true"}, "no receiver"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1", "OTEL_TRACES_EXPORTER": "none"}, "no receiver"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "only http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:1/v1/traces"}, ""),
    ],
)
def test_what_is_missing_for_traces_is_said(environ: dict[str, str], says: str) -> None:
    assert says in explain_off(environ)
    assert bool(explain_off(environ)) == bool(says)


def test_without_a_receiver_the_command_ends_with_what_to_set(settings: Settings) -> None:
    missing = send(settings, None)
    assert missing.returncode == 2
    assert missing.stderr.startswith("turns: no receiver: set OTEL_EXPORTER_OTLP_ENDPOINT=")
    assert "[tracing_off]" in missing.stderr


def test_a_base_installation_works_without_opentelemetrys_sdk(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter', 'opentelemetry.proto')):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, No())\n"
    )
    everything = (
        "import importlib, pkgutil, api_client, worker, api_client.web.app\n"
        "names = [m.name for p in (api_client, worker) for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.')]\n"
        "names = [n for n in names if n != 'worker.plugins.traces.otlp']\n"
        "[importlib.import_module(n) for n in names]\n"
        "from api_client.tracing.switch import explain_off\n"
        "print(len(names), explain_off({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://h:1'}))"
    )
    env = environ(settings, None, PYTHONPATH=str(tmp_path))
    done = subprocess.run([turns()[0], "-c", everything], env=env, capture_output=True, text=True, check=False)
    number, _, why = done.stdout.partition(" ")
    assert int(number) > 100, done.stderr
    assert why == 'OpenTelemetry is not installed: pip install ".[otel]" in the checkout\n'


def test_turns_up_starts_the_sender_only_where_a_receiver_is_configured(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert "traces" not in [program.name for program in plan_installation(settings, RelayBinding(port=0)).programs]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert "traces" in [program.name for program in plan_installation(settings, RelayBinding(port=0)).programs]


async def test_where_nothing_ends_for_long_the_sender_still_knows_how_far_it_was(
    settings: Settings, client: TurnsClient
) -> None:
    keys = Keys(settings.namespace)
    await client.untraced.start_reading(3600)
    assert await client.untraced.next_batch(9) is None
    noted = int(await client.store.redis.get(f"{keys.prefix}read:traces") or b"")
    assert await client.store.read_clock_ms() - noted < 60_000
    assert 0 < await client.store.redis.ttl(f"{keys.prefix}read:traces") <= settings.retention_seconds
    await client.store.redis.zadd(keys.finished, {"turn-" + "1" * 32: noted + 1})
    assert await wait_until(lambda: client.untraced.next_batch(9))
