"""The box below a message without an answer: a plain sentence first, then why, what to do, and the names last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.event_kinds import TurnFinished
from api_client.web.openwebui.failure import failure_text
from tests.unit.web.fake import finished
from worker.enforcement.validators.adr_structure import ADRStructureValidator

TWO_ADRS = "# ADR-001: Eins\n\n## Kontext\n\nText.\n\n# ADR-002: Zwei\n\n## Kontext\n\nText.\n"


def data(outcome: str, attempts: int = 1, **error: Any) -> TurnFinished:
    end = finished(1, outcome, error=error).body
    assert isinstance(end, TurnFinished)
    return replace(end, attempts=attempts)


def issue(message: str, code: str = "MISSING_ADR_SECTION", **more: Any) -> dict[str, Any]:
    return {"code": code, "message": message, "severity": "error", **more}


def test_duplicates_are_merged_and_say_which_adr() -> None:
    issues = [found.to_dict() for found in ADRStructureValidator().validate(TWO_ADRS, {})]
    text = failure_text(data("failed", 3, code="failed", issues=issues), "de", "t0-1")
    assert text.startswith("Auch nach 3 Versuchen hat keine Antwort die Prüfung bestanden. Zuletzt beanstandet: ")
    assert "(ADR-001: Eins, ADR-002: Zwei)" in text
    assert len(issues) > 2 * text.count(";")
    assert "\n" not in text, "Open WebUI shows one paragraph"
    assert text.endswith("t0-1)")


def test_what_is_found_twice_in_the_same_place_is_counted() -> None:
    twice = failure_text(data("failed", issues=[issue("Es fehlt etwas."), issue("Es fehlt etwas.")]), "de", "t0-1")
    assert "Zuletzt beanstandet: Es fehlt etwas (2×)." in twice
    assert twice.count("MISSING_ADR_SECTION") == 1
    in_file = failure_text(data("failed", issues=[issue("Es fehlt etwas", file="ADR-7.md")]), "de", "t0-1")
    assert "Es fehlt etwas (ADR-7.md)" in in_file
    many = failure_text(data("failed", issues=[issue(f"Fehler {n}") for n in range(9)]), "en", "t0-1")
    assert "and 3 more" in many
    warned = failure_text(data("failed", issues=[issue("x", severity="warning"), issue("y")]), "en", "t0-1")
    assert "Found in the last one: y." in warned


@pytest.mark.parametrize(
    ("outcome", "code", "advice"),
    [
        ("failed", "failed", "oder formuliere sie anders"),
        ("incomplete", "incomplete", "Stelle die Frage noch einmal"),
        ("error", "transient", "später erneut"),
        ("error", "permanent", "Administrator"),
        ("error", "config", "Administrator"),
        ("error", "limit", "kleinere Aufgabe"),
        ("error", "session_lost", "erneut"),
        ("expired", "expired", "weniger auf einmal"),
        ("dead", "dead", "Administrator"),
        ("failed", "undecided", "erneut"),
        ("error", "of a newer version", "Administrator"),
    ],
)
def test_the_advice_fits_the_kind_of_failure(outcome: str, code: str, advice: str) -> None:
    text = failure_text(data(outcome, code=code, reason="HTTP 529: <internal>"), "de", "t0-1")
    assert advice in text
    assert "HTTP 529" not in text
    assert "[ENFORCEMENT" not in text


def test_the_reason_of_a_person_and_of_a_break_are_in_it() -> None:
    message = "Erste Zeile:\n- Ein Mensch hat das Ergebnis abgelehnt: Bitte mit Kosten.\nLetzte Zeile."
    text = failure_text(data("failed", code="rejected", message=message), "de", "t0-1")
    assert "abgelehnt: Bitte mit Kosten." in text
    message = "Der Agent hat seine Antwort nicht zu Ende gebracht:\n- er brach vorzeitig ab.\nBitte versuche es erneut."
    text = failure_text(data("incomplete", code="incomplete", message=message), "de", "t0-1")
    assert text == (
        "Der Agent hat seine Antwort nicht zu Ende gebracht. Er brach vorzeitig ab. "
        "Stelle die Frage noch einmal („Neu generieren“). (t0-1)"
    )


def test_the_turn_is_a_link_where_its_page_has_an_address() -> None:
    text = failure_text(data("failed"), "en", "t0-1", "https://turns.example")
    assert text.endswith("(https://turns.example/turns/t0-1)")
