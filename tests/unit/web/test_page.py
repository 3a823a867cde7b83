"""Text that is shown as it comes and can be taken back: what a reader sees after every frame."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api_client.contract.events import Event
from api_client.contract.step_marker import read_spans, strip_all_markers
from api_client.web.bodies.models import StreamMode
from api_client.web.streaming.reply import Reply, make_opening
from api_client.web.streaming.reply_forms import PageReply, make_page_reply
from tests.unit.web.fake import event, finished
from tests.unit.web.openwebui import Reader

REPLY = Reply(turn_id="turn-1", model="scripted", created=1, locale="de", from_open_webui=True)
MARKER = {"code": "MISSING_STEP_MARKER", "severity": "error", "part": "step_marker", "file": ""}
SECTION = {"code": "MISSING_ADR_SECTION", "severity": "error", "part": "## Kontext", "file": ""}
WRONG_FILE = {"code": "FILE_NOT_FOUND", "severity": "error", "part": "", "file": ""}
WARNING = {"code": "FILE_NOT_FOUND", "severity": "warning", "part": "", "file": ""}
OTHERS = ["attempt.reset", "turn.fallback", "turn.mended", "turn.stopping", "attempt.tool", "turn.queued", "new.kind"]
IN_A_FILE = {**SECTION, "file": "output/ADR-1.md"}


def numbered(*kinds: tuple[str, dict[str, Any]]) -> list[Event]:
    return [event(seq, kind, **data) for seq, (kind, data) in enumerate(kinds, 1)]


def started(attempt: int = 1) -> tuple[str, dict[str, Any]]:
    return "attempt.started", {"attempt": attempt, "delivery": attempt, "max_attempts": 3, "worker": "w"}


def output(text: str, attempt: int = 1) -> tuple[str, dict[str, Any]]:
    return "attempt.output", {"attempt": attempt, "text": text}


def completed(verdict: str = "complete") -> tuple[str, dict[str, Any]]:
    return "attempt.completed", {"attempt": 1, "verdict": verdict, "reason": ""}


def rejected(*issues: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "attempt.rejected", {"attempt": 1, "issues": list(issues)}


def lost(during: str) -> tuple[str, dict[str, Any]]:
    return "attempt.lost", {"attempt": 1, "delivery": 1, "during": during}


def again(reason: str = "rejected") -> tuple[str, dict[str, Any]]:
    return "turn.retrying", {"attempt": 2, "max_attempts": 3, "reason": reason, "codes": [], "delay_seconds": 0}


def goes_on() -> tuple[str, dict[str, Any]]:
    kind, data = again("incomplete")
    return kind, data | {"goes_on": True}


def end(response: str = "", outcome: str = "passed") -> tuple[str, dict[str, Any]]:
    return "turn.finished", finished(1, outcome, response=response).data


def show(mode: StreamMode, *kinds: tuple[str, dict[str, Any]]) -> Reader:
    page = make_page_reply(REPLY, mode)
    reader = Reader().read([make_opening(REPLY)])
    for item in numbered(*kinds):
        reader.read(page.render(item))
    return reader


def live(*kinds: tuple[str, dict[str, Any]]) -> Reader:
    return show(StreamMode.LIVE, *kinds)


def attempt(number: int, *texts: str) -> list[tuple[str, dict[str, Any]]]:
    """An attempt that says this, piece by piece, and is whole."""
    return [started(number), *(output(text, number) for text in texts), completed()]


def broken(*texts: str) -> list[tuple[str, dict[str, Any]]]:
    """A first attempt that breaks off and that the second goes on from."""
    return [started(), *map(output, texts), completed("incomplete"), goes_on(), started(2)]


def test_a_good_answer_grows_and_stays() -> None:
    text = "Guten Tag.\n\n<!-- STEP: what -->"
    reader = live(*attempt(1, "Guten ", "Tag.\n\n<!-- ST", "EP: what -->"), end(text))
    assert reader.seen == ["", "Guten", "Guten Tag."]
    assert reader.completed == ["Guten Tag."]


def test_a_rejected_draft_disappears_and_the_next_one_comes() -> None:
    refused = [*attempt(1, "Falsch."), rejected(WRONG_FILE), again()]
    reader = live(*refused, *attempt(2, "Richtig."), end("Richtig."))
    assert reader.seen == ["", "Falsch.", "", "Richtig."]
    assert reader.completed == ["Richtig."]


@pytest.mark.parametrize(
    "void",
    [
        lost("running"),
        ("attempt.reset", {"attempt": 1, "reason": "again"}),
        completed("incomplete"),
        completed("error"),
    ],
)
def test_a_void_draft_disappears(void: tuple[str, dict[str, Any]]) -> None:
    reader = live(started(), output("Halb"), void, *attempt(1, "Ganz."), end("Ganz."))
    assert reader.seen == ["", "Halb", "", "Ganz."]


def test_what_the_store_forgot_disappears_even_if_only_the_marker_was_missing() -> None:
    forgotten = [*attempt(1, "Gut."), rejected(MARKER), ("log.reset", {"reason": "lost"})]
    assert live(*forgotten, started(), output("Besser.")).seen == ["", "Gut.", "", "Besser."]


def test_a_judge_that_dies_takes_no_text_away() -> None:
    assert live(*attempt(1, "Gut."), lost("validating"), end("Gut.")).seen == ["", "Gut."]


@pytest.mark.parametrize("sent", ["<!-- STEP: why -->", "Gut.\n\n<!-- STEP: why -->", "Hier:\n<!-- STEP: why -->"])
def test_nothing_flickers_when_only_the_marker_was_missing(sent: str) -> None:
    refused = [*attempt(1, "Gut."), rejected(WARNING, MARKER), again()]
    assert live(*refused, *attempt(2, sent), end("Gut.\n\n<!-- STEP: why -->")).seen == ["", "Gut."]


def test_an_appended_part_is_all_that_changes() -> None:
    refused = [*attempt(1, "# ADR"), rejected(SECTION, MARKER), again()]
    whole = end("# ADR\n\n## Kontext\nNeu\n<!-- STEP: why -->")
    reader = live(*refused, *attempt(2, "## Kontext\nNeu"), whole)
    assert reader.seen == ["", "# ADR", "# ADR\n\n## Kontext\nNeu"]


def test_a_part_in_the_middle_leaves_the_text_before_it_as_it_is() -> None:
    refused = [*attempt(1, "# ADR\n\n## Ende"), rejected(SECTION), again()]
    reader = live(*refused, *attempt(2, "## Kontext"), end("# ADR\n\n## Kontext\n\n## Ende"))
    assert reader.seen == ["", "# ADR\n\n## Ende", "# ADR\n\n## ", "# ADR\n\n## Kontext\n\n## Ende"]


def test_a_part_missing_in_a_file_is_no_part_of_the_answer() -> None:
    assert "" in live(*attempt(1, "Siehe Datei."), rejected(IN_A_FILE), again()).seen[1:]


def test_nothing_flickers_when_a_fallback_mends_the_answer() -> None:
    fallback = ("turn.fallback", {"attempt": 1, "codes": ["FILE_NOT_FOUND"]})
    mended = end("Gut.\n\nHinweis.", "passed_by_fallback")
    assert live(*attempt(1, "Gut."), rejected(WRONG_FILE), fallback, mended).seen == ["", "Gut.", "Gut.\n\nHinweis."]


@pytest.mark.parametrize("between", [[], [lost("running"), started(2)], [("attempt.reset", {"attempt": 2})]])
def test_a_draft_that_the_next_attempt_goes_on_from_stays(between: list[tuple[str, dict[str, Any]]]) -> None:
    begun = [*broken("Der Cache liegt vor"), output("Der Cache", 2), *between]
    rest = [output("Der Cache liegt vor"[9 if not between else 0 :], 2), output(" dem Index.", 2), completed()]
    reader = live(*begun, *rest, end("Der Cache liegt vor dem Index.\n\n<!-- STEP: done -->"))
    assert reader.seen == ["", "Der Cache liegt vor", "Der Cache liegt vor dem Index."]


def test_a_marker_broken_by_the_break_is_not_shown() -> None:
    half = "Gut.\n\n<!-- STEP: do"
    reader = live(*broken(half), output(half, 2), output("ne -->", 2), completed(), end(f"{half}ne -->"))
    assert reader.seen == ["", "Gut."]


def test_an_agent_that_begins_again_instead_changes_only_what_differs() -> None:
    begun = [*broken("Der Cache liegt vor"), output("Der Cache liegt vor", 2)]
    anew = [("attempt.reset", {"attempt": 2, "reason": ""}), output("Der Cache steht vorn.", 2), completed()]
    reader = live(*begun, *anew, end("Der Cache steht vorn."))
    assert reader.seen == ["", "Der Cache liegt vor", "Der Cache ", "Der Cache steht vorn."]


def test_a_draft_that_broke_off_goes_when_the_turn_ends_so_or_all_is_asked_for_again() -> None:
    begun = [*broken("Der Cache"), output("Der Cache li", 2), completed("incomplete")]
    assert live(*begun, end("", "incomplete")).seen[-1] == ""
    assert live(*begun, again("incomplete"), started(3)).seen[-1] == ""


def test_a_failed_turn_leaves_its_error_alone_on_the_page() -> None:
    reader = live(*attempt(1, "Falsch."), rejected(MARKER), end("", "failed"))
    assert reader.seen == ["", "Falsch.", ""]
    assert reader.error.startswith("Die Antwort hat die Prüfung nicht bestanden.")
    assert reader.completed == []


def test_drafts_as_reasoning_stay_there_and_the_answer_follows() -> None:
    refused = [*attempt(1, "Falsch."), rejected(WRONG_FILE), again()]
    good = [*attempt(2, "Rich", "tig."), end("Richtig.\n<!-- STEP: why -->")]
    reader = show(StreamMode.DRAFT, *refused, *good)
    assert reader.seen == ["", "Richtig."]
    assert reader.reasoning == "Falsch.\n\n(Dieser Entwurf gilt nicht mehr; es folgt ein neuer.)\n\nRichtig."


def test_validated_text_comes_once() -> None:
    assert show(StreamMode.VALIDATED, *attempt(1, "Falsch."), end("Richtig.")).seen == ["", "Richtig."]


texts = st.sampled_from(
    ["Gut", "Gut und", " besser", "\n\n", "<!-- STEP: what -->", "<!-", "- STEP: x", "# ADR", "`", "```"]
) | st.text(max_size=4)
issue_lists = st.lists(st.sampled_from([MARKER, SECTION, WRONG_FILE, WARNING, IN_A_FILE]), max_size=3)
middles = st.one_of(
    texts.map(output),
    texts.map(output),
    st.builds(started),
    st.sampled_from(["complete", "incomplete", "error"]).map(completed),
    issue_lists.map(lambda issues: rejected(*issues)),
    st.sampled_from(["rejected", "incomplete", "transient"]).map(again),
    st.builds(goes_on),
    st.sampled_from(["running", "validating", ""]).map(lost),
    st.sampled_from(OTHERS).map(lambda kind: (kind, {})),
)
histories = st.lists(middles, max_size=20)
ends = st.tuples(texts, texts, texts).map("".join).map(end) | st.sampled_from(["failed", "cancelled", "dead"]).map(
    lambda outcome: end("", outcome)
)


@settings(max_examples=400, deadline=None)
@given(history=histories, last=ends, mode=st.sampled_from(StreamMode))
def test_whatever_happened_the_reader_ends_with_the_accepted_text_or_with_nothing(
    history: list[tuple[str, dict[str, Any]]], last: tuple[str, dict[str, Any]], mode: StreamMode
) -> None:
    reader = show(mode, *history, last)
    response = str(last[1]["response"])
    expected = strip_all_markers(response, read_spans(None, response)) if last[1]["success"] else ""
    assert reader.text == expected
    assert bool(reader.error) == (not last[1]["success"])
    if reader.completed:
        assert reader.completed == [expected]


@settings(max_examples=200, deadline=None)
@given(history=histories, last=ends, mode=st.sampled_from(StreamMode), data=st.data())
def test_a_late_reader_sees_no_draft_that_was_taken_back_before_it_came(
    history: list[tuple[str, dict[str, Any]]], last: tuple[str, dict[str, Any]], mode: StreamMode, data: st.DataObject
) -> None:
    events = numbered(*history, last)
    since = data.draw(st.integers(0, len(history)))
    first, late = make_page_reply(REPLY, mode), make_page_reply(REPLY, mode)
    ahead, behind = Reader(), Reader()
    for item in events[:since]:
        ahead.read(first.render(item))
        late.skip_event(item)
    behind.read(late.catch_up())
    assert behind.text == ahead.text
    assert len(behind.seen) <= 2 or mode is StreamMode.LIVE
    _same_from_here(ahead, first, behind, late, events[since:])


@pytest.mark.parametrize("mode", StreamMode)
def test_who_comes_after_the_end_sees_the_accepted_text_alone(mode: StreamMode) -> None:
    *before, last = numbered(started(), output("Falsch."), completed(), rejected(MARKER), again(), end("Richtig."))
    page = make_page_reply(REPLY, mode)
    for item in before:
        page.skip_event(item)
    reader = Reader().read(page.render(last))
    assert reader.seen == ["", "Richtig."]
    assert reader.status == ["Geprüft"]
    assert "Falsch" not in reader.reasoning


def test_a_line_that_stands_there_already_is_not_told_again() -> None:
    tool = ("attempt.tool", {"attempt": 1, "name": "Read", "detail": "x"})
    assert live(started(), tool, tool, tool).status == ["Der Agent arbeitet", "Der Agent arbeitet: liest Dateien"]


def test_why_the_agent_is_asked_again_stays_while_it_begins() -> None:
    reader = live(started(), completed(), rejected(MARKER), again(), started(2), completed())
    assert reader.status == [
        "Der Agent arbeitet",
        "Die Antwort wird geprüft",
        "Neuer Versuch 1/2: die Antwort erfüllt die Vorgaben noch nicht",
        "Die Antwort wird geprüft",
    ]
    assert live(again("transient"), started()).status[-1] == "Der Agent arbeitet"


def _same_from_here(ahead: Reader, first: PageReply, behind: Reader, late: PageReply, events: list[Event]) -> None:
    for item in events:
        ahead.read(first.render(item))
        behind.read(late.render(item))
        assert behind.text == ahead.text
