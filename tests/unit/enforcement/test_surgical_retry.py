"""Surgical retry (docs/enforcement.md): a repair is spliced in, a fragment never replaces an answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.enforcement.samples import ADR, BODY, HEADER
from worker.enforcement import ADRStructureValidator, Attempt, StepMarkerValidator, assemble, examine, judge

ALL = (StepMarkerValidator(), ADRStructureValidator())
LONG = "Das ist eine ausführliche Antwort auf die Frage. " * 20


def after(first: str, second: str) -> str:
    """The answer that counts when the agent says this first and that then."""
    return judge([judge([], first, ALL)], second, ALL).answer


def test_the_first_text_is_the_answer() -> None:
    assert assemble([], "Hallo") == "Hallo"


@pytest.mark.parametrize(
    "reply",
    [
        "<!-- STEP: what -->",
        "\n<!-- STEP: WHAT -->\n",
        "```html\n<!-- STEP: what -->\n```",
        "Hier ist der Marker: <!-- STEP: what -->",
        "Entschuldigung, hier kommt er.\n\n<!-- STEP: what -->",
    ],
)
def test_a_bare_marker_is_put_under_the_answer_before(reply: str) -> None:
    assert after(LONG, reply) == f"{LONG}\n\n<!-- STEP: what -->"


def test_a_bare_marker_replaces_the_wrong_one() -> None:
    assert after(f"{LONG}\n<!-- STEP: foo -->\n", "<!-- STEP: why -->") == f"{LONG}\n<!-- STEP: why -->\n"


@pytest.mark.parametrize("reply", ["Erledigt.", "OK", "", "Der Marker ist <!-- STEP: quatsch -->"])
def test_a_fragment_changes_nothing(reply: str) -> None:
    assert after(LONG, reply) == LONG


def test_a_whole_new_answer_does_not_replace_one_of_which_a_part_was_asked() -> None:
    new = "Eine andere, ebenfalls vollständige Antwort. " * 15 + "\n\n<!-- STEP: done -->"
    assert after(LONG, new) == f"{LONG}\n\n<!-- STEP: done -->"
    assert after("Kurz?", "Auch kurz. <!-- STEP: what -->") == "Kurz?\n\n<!-- STEP: what -->"


def test_a_missing_section_goes_where_it_belongs_and_the_rest_stays() -> None:
    section = "## Entscheidung\n\nWir nehmen einen Cache."
    without = ADR.replace(section + "\n\n", "") + "\n<!-- STEP: generate -->\n"
    assert after(without, section) == ADR + "\n<!-- STEP: generate -->\n"


@pytest.mark.parametrize(
    "reply", ["{}", "Hier der Abschnitt:\n\n{}", "```markdown\n{}\n```", "{}\n\n<!-- STEP: generate -->"]
)
def test_a_missing_last_section_goes_before_the_marker(reply: str) -> None:
    head, tail = ADR.split("## Akzeptanzkriterien")
    section = "## Akzeptanzkriterien" + tail.rstrip()
    assert after(f"{head}<!-- STEP: done -->", reply.format(section)) == f"{head}{section}\n\n<!-- STEP: done -->"


def test_an_empty_section_is_filled() -> None:
    empty = ADR.replace("Die Suche ist langsam.\n\n", "") + "\n<!-- STEP: done -->"
    answer = after(empty, "## Kontext\n\nDie Suche ist langsam.")
    assert examine(answer, ALL) == []
    assert answer.replace("\nDie Suche ist langsam.\n", "", 1) == empty


def test_a_missing_header_goes_before_the_adr() -> None:
    assert after(f"Vorab.\n{BODY}\n<!-- STEP: done -->", HEADER) == f"Vorab.\n\n{HEADER}{BODY}\n<!-- STEP: done -->"


def test_a_broken_header_is_replaced_and_the_body_stays() -> None:
    broken = ADR.replace('title: "Ein Cache"\n', "") + "\n<!-- STEP: done -->"
    assert after(broken, HEADER) == ADR + "\n<!-- STEP: done -->"


def test_several_parts_are_spliced_together() -> None:
    section = "## Kontext\n\nDie Suche ist langsam."
    answer = after(ADR.replace(section + "\n\n", ""), f"{section}\n\n<!-- STEP: generate -->")
    assert examine(answer, ALL) == []


def test_parts_nobody_asked_for_are_not_taken() -> None:
    without = f"{ADR}\n"
    assert after(without, "<!-- STEP: done -->\n") == f"{ADR}\n<!-- STEP: done -->"
    assert "Neu" not in after(without, "## Konsequenzen\n\nNeu")


def test_a_fragment_after_an_incomplete_attempt_is_spliced_into_the_best_complete_one() -> None:
    history = [judge([], LONG, ALL)]
    history.append(judge(history, "Das F", ALL, complete=False))
    assert judge(history, "<!-- STEP: done -->", ALL).answer == f"{LONG}\n\n<!-- STEP: done -->"


def test_an_accepted_answer_before_is_no_base_for_splicing() -> None:
    accepted = Attempt(number=1, text=LONG, answer=LONG)
    assert assemble([accepted], "Neu") == "Neu"


def test_windows_line_endings_are_kept_when_a_part_is_spliced() -> None:
    base = ADR.replace("## Kontext\n\nDie Suche ist langsam.\n\n", "").replace("\n", "\r\n")
    answer = after(base, "## Kontext\n\nDie Suche ist langsam.\n\n<!-- STEP: done -->")
    assert answer.count("\n") == answer.count("\r\n")
    assert examine(answer, ALL) == []


@settings(deadline=None)
@given(st.text(alphabet="ab #-`>\n<!", max_size=60), st.text(alphabet="ab #-`>\n<!STEP: done", max_size=40))
def test_whatever_is_said_a_long_answer_is_never_lost(noise: str, reply: str) -> None:
    base = f"{LONG}\n\n{noise}"
    assert after(base, reply).startswith(LONG)
