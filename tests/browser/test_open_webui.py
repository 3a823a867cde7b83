"""What people see in the real Open WebUI, and what it stores."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import Ask
from tests.browser.webui import answer_of, answers_of, lines_of, missing
from worker.cli.installation.openwebui import draw_icon

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(1800)]

GOOD = {"name": "good", "text": "Bitte eine gute Antwort"}
TAKEN_BACK = {"name": "taken-back", "text": "Bitte zwei Entwürfe", "once": "ENTWURF", "do": "look"}
KEPT = {"name": "kept", "text": "Bitte ohne Marker"}
FAILED = {"name": "failed", "text": "Bitte kein Erfolg"}
LONG = {"text": "Bitte lange Antwort", "once": "Teil eins der langen Antwort."}
STOPPED = {**LONG, "name": "stopped", "do": "stop", "then": "regenerate"}
RELOADED = {**LONG, "name": "reloaded", "do": "reload"}
SECOND_TAB = {**LONG, "name": "second-tab", "do": "second-tab"}
EDITED = {**GOOD, "name": "edited", "then": "edit", "edited": "Bitte ohne Marker"}
TEMPORARY = {**TAKEN_BACK, "name": "temporary", "temporary": True}
ADR = {"name": "adr", "text": "Bitte das ADR"}
REPAIRED = {"name": "repaired", "text": "Bitte nie ein Marker"}
WHOLE = "Teil eins der langen Antwort. Teil zwei der langen Antwort."


def test_a_visitors_day(ask: Ask, agent_runs: Callable[[], list[str]]) -> None:
    seen = ask(GOOD, TAKEN_BACK, KEPT, FAILED, STOPPED)
    del seen["chats"]
    good, taken_back, kept, failed, stopped = seen.values()

    assert answer_of(good)["content"] == "Das ist die gute Antwort, Wort für Wort."
    assert good["stored"]["title"] == "Bitte eine gute Antwort"

    drafts = [number for number, text in enumerate(taken_back["texts"]) if "ENTWURF" in text]
    assert drafts, "the draft was shown, while the agent waited for somebody to see it"
    assert any("ENTWURF" not in text for text in taken_back["texts"][drafts[-1] + 1 :]), "and taken back"
    assert "nehmen ihn. ENDGÜLTIG." in answer_of(taken_back)["content"]
    assert "ENTWURF" not in taken_back["after_reload"]

    shown = [text for text in kept["texts"] if "bleibt stehen, wie sie ist." in text]
    assert kept["texts"][-len(shown) :] == shown, "once it was there it never went away"
    assert answer_of(kept)["content"] == "Diese Antwort bleibt stehen, wie sie ist."

    assert answer_of(failed)["content"] == ""
    assert "nicht zu Ende gebracht" in failed["after_reload"]
    assert "nicht zu Ende gebracht" in answer_of(failed)["error"]["content"]["message"]

    first, second = answers_of(stopped)
    assert first["content"] == "Teil eins der langen Antwort."
    assert second["content"] == WHOLE
    assert len(agent_runs()) == 1 + 2 + 2 + 3 + 1, "Regenerate brought the answer of the run that went on"
    for one in seen.values():
        assert not any("STEP" in text for text in [*one["texts"], one["after_reload"]])
        assert all(message["done"] for message in answers_of(one))


def test_an_answer_that_arrived_can_be_continued_and_asked_for_again(
    ask: Ask, agent_runs: Callable[[], list[str]]
) -> None:
    again = {**GOOD, "name": "asked-again", "then": "regenerate"}
    seen = ask({**GOOD, "name": "continued", "then": "continue"}, again, EDITED)
    continued, again, edited = (seen[name] for name in ("continued", "asked-again", "edited"))
    assert "Das ist die gute Antwort, Wort für Wort." in answer_of(continued)["content"]
    assert "Und so geht sie weiter." in answer_of(continued)["content"]
    assert "Und so geht sie weiter." in continued["after_reload"]
    assert [answer["content"] for answer in answers_of(again)] == ["Das ist die gute Antwort, Wort für Wort."] * 2
    first, second = answers_of(edited)
    assert first["content"] == "Das ist die gute Antwort, Wort für Wort."
    assert second["content"] == "Diese Antwort bleibt stehen, wie sie ist."
    assert "Wort für Wort" not in edited["after_reload"]
    assert len(agent_runs()) == 2 + 2 + 3, "an edited question is another one"


def test_whoever_comes_in_the_middle_sees_the_whole_answer(ask: Ask, agent_runs: Callable[[], list[str]]) -> None:
    seen = ask(RELOADED, SECOND_TAB, TEMPORARY)
    reloaded, second_tab, temporary = (seen[name] for name in ("reloaded", "second-tab", "temporary"))
    for one in (reloaded, second_tab):
        assert answer_of(one)["content"] == WHOLE
        assert WHOLE in one["texts"][-1]
        assert WHOLE in one["after_reload"]
    first, *_, last = second_tab["second_tab"]
    assert "Teil zwei" not in first, "it came while the answer was on its way"
    assert WHOLE in last
    assert any("ENTWURF" in text for text in temporary["texts"])
    assert "ENTWURF" not in temporary["texts"][-1]
    assert "Wir nehmen ihn. ENDGÜLTIG." in temporary["texts"][-1]
    assert seen["chats"] == 2, "a temporary chat is not stored"
    assert len(agent_runs()) == 1 + 1 + 2, "one run each, however many look"


def test_the_chat_says_what_was_checked_and_what_to_do(ask: Ask, tmp_path: Path) -> None:
    picture = tmp_path / "ring.png"
    picture.write_bytes(draw_icon("a"))
    image = {"name": "image", "text": "Was ist das?", "image": str(picture), "refused": True}
    seen = ask(ADR, REPAIRED, {**FAILED, "name": "box"}, {**LONG, "name": "halted", "do": "stop"}, image)
    adr, repaired, failed, stopped = (seen[name] for name in ("adr", "repaired", "box", "halted"))

    content = answer_of(adr)["content"]
    assert content.startswith('````yaml\n---\nadr_id: "043"\ntitle: Cache\nstatus: Proposed\n---\n````\n\n# ADR-043')
    assert lines_of(adr)[-1] == ("Geprüft", True)
    assert ("Der Agent schreibt", True) in lines_of(adr), "the line ends with the first text"

    assert answer_of(repaired)["content"] == "Diese Antwort hat nie einen Marker."
    last, done = lines_of(repaired)[-1]
    assert last.startswith("Geprüft, automatisch ergänzt: ")
    assert done

    box = answer_of(failed)["error"]["content"]["message"]
    assert box.startswith("Der Agent hat seine Antwort nicht zu Ende gebracht.")
    assert "„Neu generieren“" in failed["after_reload"]
    assert lines_of(stopped)[-1] == ("Der Agent schreibt", True), "nothing shimmers after Stop"
    assert "image" in seen["image"]["toast"].lower() or "bild" in seen["image"]["toast"].lower()
