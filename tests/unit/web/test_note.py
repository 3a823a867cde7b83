"""The two lines below an answer in a chat: what it was checked for, and what it cost; and how they go again."""

from dataclasses import replace

import pytest

from api_client.contract.turn import Outcome, Turn, TurnRequest, TurnState
from api_client.web.openwebui.answer_additions import format_note, strip_additions

TURN = Turn(
    turn_id="turn-" + "0" * 32,
    epoch="e",
    state=TurnState.FINISHED,
    outcome=Outcome.PASSED,
    tokens_used=12_345,
    cost_used=1_234_000,
    request=TurnRequest(
        model="m", messages=(), session_id="s", validators=("step_marker", "adr_structure", "our *rule*")
    ),
)
AGAIN = replace(TURN, attempt=3, retries=2, outcome=Outcome.PASSED_AFTER_RETRY, cost_used=3_000)


def lines(turn: Turn, locale: str) -> list[str]:
    return [line.strip(" ") for line in format_note(turn, locale).splitlines()[-2:]]


@pytest.mark.parametrize(
    ("turn", "locale", "checked", "cost"),
    [
        (TURN, "en", r"Checked: step, structure of ADRs, our \*rule\*", "Cost: 1 run, 12,345 tokens, $1.23"),
        (
            AGAIN,
            "de",
            r"Geprüft: Arbeitsschritt, Aufbau der ADRs, our \*rule\*; 3 Antworten gebraucht",
            "Aufwand: 3 Durchläufe, 12.345 Token, weniger als 0,01 US-Dollar",
        ),
        (
            replace(AGAIN, retries=0),
            "en",
            r"Checked: step, structure of ADRs, our \*rule\*",
            "Cost: 3 runs, 12,345 tokens, less than $0.01",
        ),
        (
            replace(TURN, outcome=Outcome.PASSED_BY_FALLBACK, cost_used=0),
            "en",
            r"Checked: step, structure of ADRs, our \*rule\*; completed automatically",
            "Cost: 1 run, 12,345 tokens",
        ),
        (
            replace(TURN, request=replace(TURN.request, validators=()), tokens_used=0, cost_used=0),
            "de",
            "Nicht geprüft: keine Regel ist aktiv",
            "Aufwand: 1 Durchlauf",
        ),
        (
            replace(TURN, outcome=Outcome.PASSED_BY_HUMAN, tokens_used=0, cost_used=0),
            "en",
            "Accepted by a person",
            "Cost: 1 run",
        ),
    ],
)
def test_a_note_says_in_two_lines_what_was_checked_and_what_it_cost(
    turn: Turn, locale: str, checked: str, cost: str
) -> None:
    assert lines(turn, locale) == [f"*{checked}*", f"*{cost}*"]


@pytest.mark.parametrize("locale", ["de", "en"])
@pytest.mark.parametrize("answer", ["An answer.", "", "a\n", "*emphasis*  \n*twice*"])
def test_no_note_comes_back_to_an_agent(answer: str, locale: str) -> None:
    added = format_note(AGAIN, locale)
    assert strip_additions(answer + added) == answer
    assert strip_additions(f"{answer}{added}And more.{format_note(TURN, locale)}") == f"{answer}And more."
