"""The language of a question is seen from its commonest words."""

from __future__ import annotations

import pytest

from api_client.contract.settings import Settings
from api_client.contract.words.spoken import _ENGLISH, _GERMAN, spoken
from worker.cli.installation.scenes import SCENES

FENCE = "```\nthe connection was refused by the server, and it is not there\n```"


@pytest.mark.parametrize(
    ("question", "language"),
    [
        *((scene.message[language], language) for scene in SCENES for language in ("de", "en")),
        ("Hallo", "de"),
        ("Warum?", "de"),
        ("Ich will kündigen", "de"),
        ("Was ist das?", "de"),
        ("Explain it.", "en"),
        ("Which workers die?", "en"),
        (f"Erkläre mir diesen Fehler:\n{FENCE}", "de"),
        ('Translate "der Hund und die Katze" into Latin, please', "en"),
        ("> das ist nicht wahr und war es nie\n\nCheck this", "en"),
        ("ADR-007", ""),
        ("", ""),
        ("¿Cómo funciona esto?", ""),
        ("Pourquoi le serveur ne répond pas ?", ""),
    ],
)
def test_a_question_shows_its_language(question: str, language: str) -> None:
    assert spoken([question]) == language


def test_the_newest_message_that_shows_a_language_decides() -> None:
    assert spoken(["ok", "Und warum?", "Write an ADR."]) == "de"
    assert spoken(["ok", "Why is that?", "Schreib ein ADR."]) == "en"


def test_no_word_is_of_both_languages() -> None:
    assert not _GERMAN & _ENGLISH


def test_without_a_sign_it_is_english() -> None:
    assert Settings().locale == "en"
