"""The status line never lies: it ends with text, with the turn and with the stream; its last words are the proof."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.errors import StoreUnavailable
from api_client.contract.events import Event
from api_client.turns.sessions import QueuePlace
from api_client.web.openwebui.status import StatusLine
from api_client.web.streaming.reply import Reply
from api_client.web.streaming.reply_forms import LivePage
from api_client.workers.reason import Reason, Wait
from tests.unit.web.conftest import caller
from tests.unit.web.fake import TURN_ID, FakeTurns, app_with, event, finished
from tests.unit.web.openwebui import Reader

PAGE = {"x-owui-chat-id": "c", "x-owui-message-id": "m", "x-owui-task": "", "x-owui-user-message-id": "u"}
REPLY = Reply(turn_id="turn-1", model="scripted", created=1, locale="de", from_open_webui=True)
STARTED = event(2, "attempt.started", attempt=1, delivery=1, max_attempts=3)
OUTPUT = event(3, "attempt.output", attempt=1, text="Ein Entwurf")
LOST = event(4, "attempt.lost", attempt=1, delivery=1, during="running")


def lines(*events: Event, reply: Reply = REPLY) -> list[tuple[str, bool]]:
    page = LivePage(reply)
    sent: list[Any] = [payload for item in events for payload in page.render(item)]
    return [(p["event"]["data"]["description"], p["event"]["data"]["done"]) for p in sent if "event" in p]


def test_the_first_text_ends_the_line_and_a_tool_begins_another() -> None:
    tool = event(4, "attempt.tool", attempt=1, name="Read")
    assert lines(STARTED, OUTPUT, event(4, "attempt.output", attempt=1, text=" und mehr"), tool, OUTPUT) == [
        ("Der Agent arbeitet", False),
        ("Der Agent schreibt", True),
        ("Der Agent arbeitet: liest Dateien", False),
        ("Der Agent schreibt", True),
    ]


def test_why_a_draft_was_lost_stays_readable_while_the_next_one_comes() -> None:
    again = event(5, "attempt.started", attempt=1, delivery=2, max_attempts=3)
    why = "Ein Ausfall hat den Agenten unterbrochen; es geht gleich weiter"
    assert lines(STARTED, OUTPUT, LOST, again, OUTPUT)[2:] == [(why, False), (why, True)]


@pytest.mark.parametrize(
    ("outcome", "attempts", "german", "english"),
    [
        ("passed", 1, "Geprüft", "Checked"),
        ("passed_after_retry", 2, "Geprüft, 2. Versuch", "Checked, second attempt"),
        ("passed_after_retry", 7, "Geprüft, 7. Versuch", "Checked, 7th attempt"),
        ("passed_by_fallback", 3, "Geprüft, automatisch ergänzt: x.py", "Checked, completed automatically: x.py"),
        ("passed_by_human", 3, "Von einem Menschen angenommen", "Accepted by a person"),
        ("failed", 3, "Ohne gültige Antwort beendet", "Ended without a valid answer"),
    ],
)
def test_the_last_line_carries_the_proof(outcome: str, attempts: int, german: str, english: str) -> None:
    repaired = event(4, "turn.mended", attempt=1, changes=["x.py"])
    for locale, expected in (("de", german), ("en", english)):
        progress = StatusLine(locale)
        progress.update(repaired)
        last = finished(5, outcome)
        last.data["attempts"] = attempts
        assert progress.update(last) == {"type": "status", "data": {"description": expected, "done": True}}


def test_an_answer_that_no_validator_saw_is_not_called_checked() -> None:
    status = StatusLine("en", checked=False).update(finished(5, "passed"))
    assert status is not None
    assert status["data"]["description"] == "Done"


def test_a_repair_that_did_not_help_is_not_shown() -> None:
    repaired = event(4, "turn.mended", attempt=1, changes=["STEP-Marker ergänzt: unknown"])
    assert lines(STARTED, repaired, finished(5, "failed")) == [
        ("Der Agent arbeitet", False),
        ("Ohne gültige Antwort beendet", True),
    ]


def test_a_long_silence_says_how_long_once_a_minute() -> None:
    progress = StatusLine("de")
    progress.update(STARTED)
    told = [progress.show_waiting(STARTED.at + seconds) for seconds in range(0, 200, 10)]
    shown = [status["data"]["description"] for status in told if status]
    assert shown == [f"Der Agent arbeitet (seit {minutes} min)" for minutes in (1, 2, 3)]
    progress.update(event(3, "attempt.tool", attempt=1, name="Read"))
    status = progress.show_waiting(STARTED.at + 240)
    assert status is not None
    assert status["data"]["description"] == "Der Agent arbeitet: liest Dateien (seit 4 min)"


@pytest.mark.parametrize(
    ("place", "locale", "line"),
    [
        (QueuePlace(1, 0), "de", "Vor dieser Frage ist noch 1 deiner Fragen"),
        (QueuePlace(3, 0), "de", "Vor dieser Frage sind noch 3 deiner Fragen"),
        (QueuePlace(1, 0), "en", "1 of your questions is ahead of this one"),
        (QueuePlace(3, 0), "en", "3 of your questions are ahead of this one"),
        (QueuePlace(0, 1), "de", "Wartet auf einen freien Agenten"),
        (QueuePlace(0, 2), "de", "Wartet auf einen freien Agenten; etwa 1 Frage ist vor dieser an der Reihe"),
        (QueuePlace(0, 2), "en", "Waiting for a free agent; about 1 question is ahead of this one"),
        (QueuePlace(0, 9), "de", "Wartet auf einen freien Agenten; etwa 8 Fragen sind vor dieser an der Reihe"),
        (QueuePlace(0, 9), "en", "Waiting for a free agent; about 8 questions are ahead of this one"),
    ],
)
async def test_who_waits_sees_who_is_before_it(place: QueuePlace, locale: str, line: str) -> None:
    queued = replace(event(1, "turn.queued", position=0), at=time.time())
    turns = FakeTurns([queued, None, None, finished(2, "passed", response="Antwort")])
    turns.sessions.places = place
    seen, _ = await ask(turns, locale=locale)
    assert seen.status[1:-1] == [line], "and only once, while nothing changes"


def test_the_line_follows_who_is_before_and_a_long_wait_says_how_long() -> None:
    progress, queued = StatusLine("en"), event(1, "turn.queued", position=0)
    progress.update(queued)
    told = [(5, 3), (15, 3), (65, 3), (70, 2), (130, 0)]  # seconds, and how many wait, itself included
    assert [
        status["data"]["description"] if (status := progress.show_waiting(queued.at + seconds, others=others)) else ""
        for seconds, others in told
    ] == [
        "Waiting for a free agent; about 2 questions are ahead of this one",
        "",
        "Waiting for a free agent; about 2 questions are ahead of this one (for 1 min)",
        "Waiting for a free agent; about 1 question is ahead of this one (for 1 min)",
        "Waiting for a free agent (for 2 min)",
    ]
    progress.update(event(2, "attempt.started", attempt=1, delivery=1, max_attempts=3))
    assert progress.show_waiting(queued.at + 30, others=9) is None, "an agent works, since a moment"


def test_a_turn_that_was_held_back_counts_anew_who_is_before_it() -> None:
    progress, resumed = StatusLine("en"), event(3, "turn.resumed")
    progress.update(event(1, "turn.queued", position=0))
    progress.show_waiting(1_005.0, others=2)
    progress.update(event(2, "turn.paused", what="model", reason="", until=0))
    assert progress.show_waiting(1_200.0, others=9) is None, "it waits for its model, not for an agent"
    progress.update(resumed)
    status = progress.show_waiting(resumed.at + 5, others=9)
    assert status is not None
    assert status["data"]["description"] == "Waiting for a free agent; about 8 questions are ahead of this one"


async def test_a_lost_stream_ends_its_line_and_says_how_to_get_the_answer() -> None:
    seen, text = await ask(FakeTurns([event(1, "turn.queued", position=0), STARTED, StoreUnavailable("gone")]))
    assert seen.status[-1] == "Die Verbindung ist abgerissen; „Neu generieren“ bringt die Antwort"
    assert '"done":false' not in text.rpartition('"event"')[2]
    assert seen.error == (
        "Die Verbindung zur laufenden Anfrage ist abgerissen. "
        f"Sie läuft weiter: „Neu generieren“ bringt ihre Antwort. ({TURN_ID})"
    )


async def ask(turns: FakeTurns, **more: Any) -> tuple[Reader, str]:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}], "stream": True, **more}
    async with caller(app_with(turns), **PAGE) as http:
        text = (await http.post("/v1/chat/completions", json=body)).text
    sent = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: {")]
    return Reader().read(sent), text


async def test_a_question_whose_stream_was_lost_is_given_up_when_something_else_is_asked(turns: FakeTurns) -> None:
    """Its answer would never reach the chat, and the new question would wait for it."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
    async with caller(app_with(turns), **PAGE) as http:
        await http.post("/v1/chat/completions", json=body)
        await http.post("/v1/chat/completions", json={**body, "locale": "en"})
        assert turns.cancelled == 0, "another model, or the same message again: both are wanted"
        await http.post("/v1/chat/completions", json=body, headers={**PAGE, "x-owui-user-message-id": "v"})
    assert turns.cancelled == 1


async def test_a_question_that_somebody_reads_elsewhere_is_left_alone(turns: FakeTurns) -> None:
    async def readers(turn_id: str) -> int:
        return 1

    turns.reader.count_followers = readers  # type: ignore[method-assign]
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
    async with caller(app_with(turns), **PAGE) as http:
        await http.post("/v1/chat/completions", json=body)
        await http.post("/v1/chat/completions", json=body, headers={**PAGE, "x-owui-user-message-id": "v"})
    assert turns.cancelled == 0


def test_who_waits_reads_that_no_worker_can_take_the_turn_in_place_of_who_is_before() -> None:
    for locale, line in (("de", "In der Warteschlange: es läuft kein Worker"), ("en", "Queued: no worker is running")):
        progress = StatusLine(locale)
        progress.update(event(1, "turn.queued", position=0))
        why = Wait(reason=Reason.NO_WORKER).words(locale, public=True)
        status = progress.show_waiting(1_005.0, others=3, why=why)
        assert status
        assert status["data"]["description"] == line
