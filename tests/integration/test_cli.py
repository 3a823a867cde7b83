"""The commands about turns against a real store; nobody runs the turns here."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.tasks import RUN, ChainTask
from api_client.turns.record.claim import LeaseClaim
from tests.installation import Installation, Said, environ_of, turns
from tests.on_loop import Ledger
from tests.support import wait_for

Run = Callable[..., Said]


@pytest.fixture
def run(installation: Installation) -> Run:
    return installation.command


def test_a_turn_is_submitted_shown_and_cancelled(run: Run) -> None:
    submitted = run("submit", "Grüße", "--session", "s1")
    assert (submitted.returncode, submitted.stderr) == (0, "")
    turn_id = submitted.stdout.strip()
    shown = run("turn", "show", turn_id)
    assert "Grüße" in shown.stdout
    assert "queued" in shown.stdout
    cancelled = run("turn", "cancel", turn_id)
    assert (cancelled.returncode, cancelled.stdout) == (0, "cancelled\n")
    again = run("turn", "cancel", turn_id)
    assert (again.returncode, again.stdout) == (1, "was already finished: cancelled\n")


def test_with_json_a_program_reads_every_answer(run: Run) -> None:
    submitted = json.loads(run("submit", "hello", "--session", "s1", "--json").stdout)
    turn_id = submitted["turn_id"]
    assert submitted == {"turn_id": turn_id, "session_id": "s1"}
    assert json.loads(run("turn", "show", turn_id, "--json").stdout)["prompt"] == "hello"
    assert json.loads(run("turn", "cancel", turn_id, "--json").stdout)["outcome"] == "cancelled"
    assert json.loads(run("turn", "attempts", turn_id, "--json").stdout) == []
    events = [json.loads(line) for line in run("turn", "watch", turn_id, "--json").stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["kind"], events[-1]["kind"]) == ("turn.queued", "turn.finished")
    resumed = run("turn", "watch", turn_id, "--after", "1", "--json").stdout.splitlines()
    assert [json.loads(line) for line in resumed] == events[1:]
    rate = json.loads(run("stats", "retry-rate", "--by", "session", "--json").stdout)
    assert (rate["turns"], rate["retried"]) == (1, 0)
    course = run("stats", "retry-rate", "--by", "model", "--every", "hour", "--since", "2h").stdout.splitlines()
    assert ["1", "0", "0.0%", "0.0%", "of", "1"] in [line.split()[2:] for line in course]
    assert run("stats", "retry-rate", "--by", "session", "--every", "hour").returncode == 2


def test_a_message_is_read_from_standard_input(run: Run) -> None:
    turn_id = run("submit", "-", stdin="x" * 300_000).stdout.strip()
    assert len(json.loads(run("turn", "show", turn_id, "--json").stdout)["prompt"]) == 300_000


def test_the_same_idempotency_key_gives_the_same_turn(run: Run) -> None:
    one, two = (run("submit", "hello", "--session", "s", "--idempotency-key", "k").stdout for _ in range(2))
    assert one == two != ""
    other = run("submit", "another", "--session", "s", "--idempotency-key", "k")
    assert (other.returncode, other.stdout) == (1, "")
    assert other.stderr.startswith("turns: the idempotency key 'k' was used before")


def test_a_busy_session_is_told_when_nobody_wants_to_queue(run: Run) -> None:
    run("submit", "one", "--session", "s")
    second = run("submit", "two", "--session", "s", "--busy", "reject")
    assert second.returncode == 1
    assert second.stderr.startswith("turns: session 's' is still working on turn 'turn-")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--model", "gpt-9", "turns: unknown model 'gpt-9'; known: scripted"),
        ("--validator", "grammar", "turns: unknown validator 'grammar' (offered: step_marker, "),
        ("--max-attempts", "99", "turns: max_attempts must be from 1 to 20"),
        ("--deadline", "0", "turns: deadline_seconds must be above 0"),
    ],
)
def test_a_request_that_can_never_work_is_refused(run: Run, option: str, value: str, says: str) -> None:
    done = run("submit", "hello", option, value)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["show", "watch", "attempts", "calls", "cancel"])
@pytest.mark.parametrize("turn_id", ["turn-" + "0" * 32, "nonsense", "turn-\x1b[2J"])
def test_a_turn_that_does_not_exist_is_exit_code_1_and_one_line(run: Run, command: str, turn_id: str) -> None:
    done = run("turn", command, turn_id)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"turns: no turn {turn_id!r} [turn_not_found]\n"


async def test_watching_shows_what_happens_while_it_happens(settings: Settings, run: Run) -> None:
    turn_id = run("submit", "hello").stdout.strip()
    with subprocess.Popen(
        turns("turn", "watch", turn_id), env=environ_of(settings), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "#1   queued" in process.stdout.readline()
        async with TurnsClient(settings) as client:
            await client.canceller.cancel(turn_id)
        assert "cancelled" in process.stdout.read()
    assert process.returncode == 0


def test_waiting_for_a_turn_that_does_not_pass_is_exit_code_1(settings: Settings, run: Run) -> None:
    with subprocess.Popen(
        turns("submit", "hello", "--wait"),
        env=environ_of(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        turn_id = process.stderr.readline().split()[1]
        run("turn", "cancel", turn_id)
        assert process.stderr.read().startswith("turns: the turn ended as cancelled\n")
    assert process.returncode == 1


def test_a_dead_broker_is_one_line_and_exit_code_2(run: Run, settings: Settings, tmp_path: object) -> None:
    gone = environ_of(settings) | {"HELIX_STORE_URL": f"unix://{tmp_path}/gone.sock"}
    started = time.monotonic()
    done = subprocess.run(turns("submit", "hello"), env=gone, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("turns: the store does not answer")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - started < 60


def test_a_dead_letter_is_listed_shown_replayed_and_gone(run: Run, settings: Settings) -> None:
    assert run("turn", "dead").stdout == "no dead letters\n"
    turn_id = run("submit", "Grüße", "--session", "s1").stdout.strip()
    assert run("turn", "drop", turn_id).returncode == 1
    ledger = Ledger(replace(settings, strikes=1, lease_seconds=0.5), "w")
    assert isinstance(ledger.claim_turn(turn_id, "s1", ChainTask(RUN, 1), alone=True), LeaseClaim)
    wait_for(lambda: ledger.reap_turn(turn_id, may_take=True).outcome == "dead")
    assert turn_id in run("turn", "dead").stdout
    assert "dead" in run("turn", "watch", turn_id).stdout
    new = json.loads(run("turn", "replay", turn_id, "--json").stdout)
    assert new["replay_of"] == turn_id
    assert json.loads(run("turn", "show", new["turn_id"], "--json").stdout)["replay_of"] == turn_id
    assert json.loads(run("turn", "dead", "--json").stdout) == []


def test_phases_that_wait_are_listed_as_they_are_and_wrong_ones_are_told(run: Run, settings: Settings) -> None:
    work = settings.root / "work"
    work.mkdir()
    (work / "phases.yaml").write_text("- {id: one, description: Tu es.}\n- {id: two, description: Tu es.}\n")
    [submitted] = json.loads(run("phase", "run", str(work), "--phase", "two", "--json").stdout)
    listed = json.loads(run("phase", "list", str(work), "--json").stdout)
    assert [(phase["id"], phase["state"], phase["turn_id"]) for phase in listed] == [
        ("one", "", ""),
        ("two", "queued", submitted["turn_id"]),
    ]
    assert "not run" in run("phase", "list", str(work)).stdout
    assert "phase    two of work" in run("turn", "show", submitted["turn_id"]).stdout
    unknown = run("phase", "run", str(work), "--phase", "three")
    assert unknown.returncode == 2
    assert "has no phase 'three'; it has: one, two" in unknown.stderr
    empty = run("inbox", "edit", submitted["turn_id"], "--text", "-")
    assert (empty.returncode, "empty" in empty.stderr) == (2, True)


def test_mending_an_answer_that_nobody_waits_for_says_what_the_turn_does(run: Run) -> None:
    turn_id = run("submit", "Hallo").stdout.strip()
    asked = run("inbox", "edit", turn_id)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert "waits for no decision: it is queued" in asked.stderr
    [noted] = json.loads(run("data", "audit", "--json").stdout)
    assert "waits for no decision" in noted["refused"]
