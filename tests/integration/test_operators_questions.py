"""Every question of docs/operations.md, asked over one real history by the command and on the page the table names."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import redis

from api_client.contract.completion import Completion, Verdict
from api_client.contract.counters import counter_field
from api_client.contract.keys import BUCKETS, Keys
from api_client.contract.notification import Notification
from api_client.contract.settings import Settings
from api_client.pauses.pause import Pause
from tests.html import Document
from tests.installation import command, web
from tests.integration.engine import FIRST, GOOD, NO_MARKER, Bench, says
from tests.on_loop import outbox_of
from tests.support import wait_until
from worker.runners.base import AgentEvent, Emit, Order, RunResult, Stop

DOCUMENT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
TABLE = DOCUMENT[DOCUMENT.index("## Questions") : DOCUMENT.index("## When something is wrong")]
PLAIN, DEAR = "scripted", "oracle"


@dataclass(frozen=True)
class Question:
    """A row of the table: what is asked, the commands and the pages that answer it."""

    text: str
    commands: tuple[str, ...]
    pages: tuple[str, ...]


def questions() -> Iterator[Question]:
    for line in TABLE.splitlines():
        # What a restore brings back is asked in test_backup.py: it needs an installation that is empty.
        if line.startswith("|") and "?" in line and "turns data restore" not in line:
            text, commands, pages = line.split("|")[1:-1]
            yield Question(
                text.strip(), tuple(re.findall("`turns ([^`]+)`", commands)), tuple(re.findall("`(/[^`]*)`", pages))
            )


@dataclass(frozen=True)
class History:
    """What happened: one turn of each kind."""

    failed: str
    running: str
    recovered: str
    dead: str
    suspended: str


def costs(text: str, dollars: float) -> object:
    def play(order: Order, emit: Emit, stop: Stop) -> RunResult:
        emit(AgentEvent(kind="output", text=text))
        usage = {"input_tokens": 900, "output_tokens": 100, "cost_usd": dollars}
        return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason="exit 0"), text=text, usage=usage)

    return play


@pytest.fixture
def settings(settings: Settings) -> Settings:
    models = {PLAIN: "scripted", DEAR: "scripted"}
    return replace(settings, models=models, strikes=3, lease_seconds=0.5, budgets={f"model:{DEAR}": 0.6})


@pytest.fixture
async def history(bench: Bench) -> History:
    none = {"policy": {"step_marker": ("retry", "fail")}}
    failed = await bench.outcome(costs(NO_MARKER, 0.5), costs(NO_MARKER, 0.25), model=DEAR, max_attempts=2, **none)  # type: ignore[arg-type]
    assert failed.outcome == "failed"
    suspended = (await bench.suspended(session_id="asks")).turn_id
    recovered = await bench.submit(says(GOOD), session_id="killed")
    await lost(bench, recovered, "killed")
    bench.carry_out(recovered, session_id="killed")
    dead = await bench.submit(session_id="poison")
    for alone in (False, False, True):
        await lost(bench, dead, "poison", alone=alone)
    running = await bench.submit(session_id="busy")
    bench.ledger.claim_turn(running, "busy", FIRST)
    await wait_until(lambda: bench.ledger.reap_turn(running, may_take=False).what == "later")  # its lease is over
    await bench.client.pauses.set_pause(Pause(what="model", name=DEAR, reason="provider outage", by="anna"))
    an_unheard_notification(bench.settings)
    a_week_ago(bench.settings)
    a_dead_worker(bench.settings)
    return History(failed.turn_id, running, recovered, dead, suspended)


def a_week_ago(settings: Settings) -> None:
    """Counters of another day, as turns would have left them."""
    counted: dict[Any, Any] = {counter_field("validator.judged", "step_marker", PLAIN): 10}
    counted[counter_field("validator.rejected", "step_marker", "retry", PLAIN)] = 2
    for size in BUCKETS:
        bucket = Keys(settings.namespace).bucket_key(size, time.time() - 7 * 86_400 - 7200)
        redis.Redis.from_url(settings.redis_url).hset(bucket, mapping=counted)


def an_unheard_notification(settings: Settings) -> None:
    """A notification that nobody took for a day."""
    outbox = outbox_of(settings)
    outbox.put(Notification(kind="turn.dead", subject="t", at=time.time()))
    [entry] = outbox.due(1)
    assert outbox.failed(replace(entry, put_at=entry.put_at - 86_400), [], "http://127.0.0.1: answers 500")


def a_dead_worker(settings: Settings) -> None:
    """A worker that was last heard of ten minutes ago; the one that holds a turn, as the ledger is named, lives on."""
    for name, ago in (("dead-1@h", 600), ("w", -3600)):
        facts = {"at": time.time() - ago, "host": name, "queues": ["other"], "slots": 1, "free": 0}
        redis.Redis.from_url(settings.redis_url).hset(Keys(settings.namespace).workers, name, json.dumps(facts))


async def lost(bench: Bench, turn_id: str, session_id: str, *, alone: bool = False) -> None:
    """A worker takes the turn and is never heard of again."""
    bench.ledger.claim_turn(turn_id, session_id, FIRST, alone=alone)
    taken = {"announce", "finished"}
    await wait_until(lambda: bench.ledger.reap_turn(turn_id, may_take=True).what in taken)
    bench.announced.clear()


def expected(history: History) -> dict[str, tuple[str, dict[str, str]]]:
    """Question -> what the commands say about it, and what each page does (patterns)."""
    return {
        "Which turns failed last night?": (
            rf"{history.failed} +failed",
            {"/turns?status=unsuccessful&since=8h": rf"^(?!.*{history.running}).*{history.failed}"},
        ),
        "Which turns run now, and since when?": (
            rf"lost +attempt 1/3 .*{history.running}",
            {"/overview": rf"lost attempt 1/3 for [\d.]+ s .*{history.running}"},
        ),
        "Why did turn X fail?": ("MISSING_STEP_MARKER", {"/turns/ID": "Issues MISSING_STEP_MARKER"}),
        "What was asked and answered in each attempt?": (
            r"asked:\n +\| Wie geht das\?\n +answered:\n +\| Alles klar\.",
            {"/turns/ID": "Feedback sent to the agent"},
        ),
        "What does its error mean, and what can I do?": ("MISSING_STEP_MARKER", {}),
        "Retry rate of step_marker today against last week?": (
            r"step_marker +3 +4 +75\.0%(?s:.*)the same time, earlier(?s:.*)step_marker +2 +10 +20\.0%",
            {"/overview": r"7 days before step_marker 3 of 4 75\.0%3 of 4 20\.0%"},
        ),
        "Since when does a rule make agents repeat themselves?": (
            r"from +turns +again +rate +step_marker\n(?s:.*)20\.0% of 10\n(?s:.*) 75\.0% of 4\n",
            {"/overview?span=30d": r"Rejected, over 30d.* step_marker .*2 of 10.*3 of 4.*5 of 14"},
        ),
        "Which rule rejects answers of which model?": (
            rf"step_marker / {DEAR} .*100\.0%",
            {"/overview": rf"Which rule rejects which model Rule ?{DEAR} ?{PLAIN} step_marker 100% of 2 50\.0% of 2"},
        ),
        "Which model costs most in failed attempts?": (
            rf"{DEAR} .* 0\.7500 +0\.7500",
            {"/overview": rf"of this, failed {DEAR}1 2.000.* \$0\.7500\$0\.7500 {PLAIN}"},
        ),
        "Is anything stuck?": (
            "no worker for agents is running",
            {"/overview": "Something is stuck no worker for agents is running", "/readyz": "no_worker"},
        ),
        "Which worker is dead, and what does each one do?": (
            rf"dead-1@h +gone(?s:.*)turn\.run {history.running} for",
            {"/workers": rf"dead-1@h.* gone .*silent for .*turn\.run for .*{history.running}"},
        ),
        "Did anything get lost?": (
            r"turns kept: \d+ turns acknowledged: \d+ ended, \d+ unfinished, 0 lost",
            {"/overview": r"Lost ?0 of \d+ ever acknowledged"},
        ),
        "What was killed and recovered?": (
            r"4 of \d+ agent runs and validations lost to crashes(?s:.*)recovery +\d",
            {
                "/overview": r"4 of \d+ deliveries were lost .* passed 1 worker lost, 2 deliveries",
                "/turns?lost=1": rf"^(?!.*{history.failed}).*{history.dead} .*{history.recovered}",
            },
        ),
        "What died, and how do I run it again?": (
            rf"{history.dead}(?s:.*)replayed",
            {"/overview": f"Dead letters: .* Replay .*{history.dead}", "/turns?status=dead": history.dead},
        ),
        "Which pauses hold, which breaker is open, which service is at its limit?": (
            rf"model {DEAR} .*provider outage",
            {"/paused": rf"model {DEAR}.*anna ?provider outage"},
        ),
        "What was spent today, by whom, and which budget is spent?": (
            rf"model:{DEAR} +0\.7500 +0\.60 +125% +spent",
            {"/budgets": rf"model:{DEAR} ?0\.7500 ?0\.60 ?125% ?spent"},
        ),
        "What must a person decide?": (
            history.suspended,
            {
                "/overview": rf"A person has to decide .* Decide .*{history.suspended}#decide",
                "/turns?status=suspended": rf"^(?!.*{history.running}).*{history.suspended}",
            },
        ),
        "Who cancelled, replayed or decided that?": (
            rf"replay .*{history.dead}",
            {"/audit": rf"Actions When ?Who ?Action.*anna ?pause model {DEAR}"},
        ),
        "Which notifications have not arrived yet?": (
            "nothing is waiting to be sent(?s:.*)turn.dead .*answers 500",
            {"/notifications": "1 given up after a day .*turn.dead.*answers 500"},
        ),
        "Which settings are active, and why?": ("HELIX_MODELS", {}),
        "What do I send with a bug report?": (rf"{history.failed}.*", {"/turns/ID": history.failed}),
        "How do I get rid of old data?": ("would", {}),
    }


async def test_every_question_is_answered_by_its_command_and_its_page(
    bench: Bench, history: History, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = expected(history)
    asked = list(questions())
    assert [question.text for question in asked] == list(answers)
    told = await shown(settings, {page for question in asked for page in question.pages}, history)
    names = {"ID": history.failed, "CODE": "MISSING_STEP_MARKER"}

    monkeypatch.chdir(tmp_path)  # a bundle is written there
    for question in sorted(asked, key=lambda question: "audit" in question.commands):  # when there is something to tell
        commands = [[names.get(word, word) for word in written.split()] for written in question.commands]
        said = "".join(told_by(words, settings) for words in commands)
        by_command, by_page = answers[question.text]
        assert re.search(by_command, said), f"{question.text}\n{said}"
        assert set(question.pages) == set(by_page)
        for page, pattern in by_page.items():
            assert re.search(pattern, told[page]), f"{question.text} {page}\n{told[page]}"


def told_by(words: list[str], settings: Settings) -> str:
    done = command(settings, *words)
    assert done.returncode in ({0, 1} if words in (["doctor"], ["worker", "list"]) else {0}), done.stderr
    return done.stdout + done.stderr


async def shown(settings: Settings, pages: set[str], history: History) -> dict[str, str]:
    found = {}
    async with web(settings) as http:
        for page in pages:
            answer = await http.get(page.replace("ID", history.failed))
            found[page] = answer.text
            if "html" in answer.headers["content-type"]:
                document = Document(answer.text)
                links = " ".join(e.attributes["href"] for e in document.all("a"))
                found[page] = f"{document.text} {links}"
    return found
