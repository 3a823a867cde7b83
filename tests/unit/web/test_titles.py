"""The title of a chat by its first message: 60 first messages as people write them, German and English."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_client.web.openwebui.background import TITLE_CHARS, title_of

FIRST_MESSAGES = [
    # The prompts of the imported model, and what people make of them.
    ("Schreibe ein ADR: Caching", "Schreibe ein ADR: Caching"),
    ("Schreibe ein ADR: Wahl der Datenbank für die Stückliste", "Schreibe ein ADR: Wahl der Datenbank für die…"),
    ("Prüfe diesen Entwurf: https://example.org/adr.md", "Prüfe diesen Entwurf"),
    ("Write an ADR: message queue", "Write an ADR: message queue"),
    ("Review this design: we keep sessions in Redis. Is that safe?", "Review this design: we keep sessions in Redis"),
    # Colons, semicolons and introductions.
    ("Frage: Wie lösche ich einen Branch?", "Frage: Wie lösche ich einen Branch"),
    ("Question: how do I undo a commit?", "Question: how do I undo a commit"),
    ("Kurze Frage:\nWie starte ich den Worker?", "Kurze Frage: Wie starte ich den Worker"),
    ("Aufgabe: Tests; Umfang: nur die API", "Aufgabe: Tests; Umfang: nur die API"),
    ("TODO: Log aufräumen", "TODO: Log aufräumen"),
    # Greetings.
    ("Hallo! Wie richte ich Celery ein?", "Wie richte ich Celery ein"),
    ("Hallo zusammen, warum ist der Build rot?", "warum ist der Build rot"),
    ("Hi, can you explain leases?", "can you explain leases"),
    ("Guten Morgen! Ich brauche ein Deployment.", "Ich brauche ein Deployment"),
    ("Good morning, what changed in Redis 8?", "what changed in Redis 8"),
    ("Hey Claude, wie geht ein Rebase?", "wie geht ein Rebase"),
    ("Hallo", "Hallo"),
    ("Hi!", "Hi"),
    ("Hallo Welt in Rust, wie geht das?", "Hallo Welt in Rust, wie geht das"),
    ("Moin,\n\ndie Queue läuft voll", "die Queue läuft voll"),
    ("Dear team, the relay is slow", "the relay is slow"),
    # Abbreviations and titles.
    ("Dr. Müller will wissen, ob wir ISO 27001 erfüllen.", "Dr. Müller will wissen, ob wir ISO 27001 erfüllen"),
    ("Kann man z.B. mit Redis Locks bauen? Und wie?", "Kann man z.B. mit Redis Locks bauen"),
    ("Was heißt d. h. im Protokoll Nr. 5 genau?", "Was heißt d. h. im Protokoll Nr. 5 genau"),
    ("Use e.g. Postgres or MySQL. Which one?", "Use e.g. Postgres or MySQL"),
    ("Compare Kafka vs. RabbitMQ for us", "Compare Kafka vs. RabbitMQ for us"),
    ("Wir haben ca. 500 Geräte usw. im Feld. Hilf mir.", "Wir haben ca. 500 Geräte usw. im Feld"),
    ("Prof. Dr. Klein fragt nach dem Encoder", "Prof. Dr. Klein fragt nach dem Encoder"),
    ("Mr. Smith wants a report. Write it.", "Mr. Smith wants a report"),
    # Numbers, versions, names with dots.
    ("1. Was ist Redis? 2. Wozu?", "Was ist Redis? 2. Wozu"),
    ("v1.2: was ist neu?", "v1.2: was ist neu"),
    ("v1.2 ist da", "v1.2 ist da"),
    ("Am 3. Mai ging der Server aus. Warum?", "Am 3. Mai ging der Server aus"),
    ("Node.js oder Python 3.13 für den Worker?", "Node.js oder Python 3.13 für den Worker"),
    ("Why does 0.1 + 0.2 fail?", "Why does 0.1 + 0.2 fail"),
    ("ISO 8601 erklären", "ISO 8601 erklären"),
    ("2024 vs 2025: costs", "2024 vs 2025: costs"),
    # Short first sentences go on.
    ("Ja. Und jetzt die Tests bitte.", "Ja. Und jetzt die Tests bitte"),
    ("Danke! Wie teste ich das?", "Danke! Wie teste ich das"),
    ("Hilfe!!! Alles ist weg", "Hilfe!!! Alles ist weg"),
    ("Stop. Start over with Flask.", "Stop. Start over with Flask"),
    ("Warum gehen uns bei einem Neustart Nachrichten verloren? Ja?", "Warum gehen uns bei einem Neustart Nachrichten…"),
    # Markup, lists, code, addresses.
    ("# Überschrift der Aufgabe\nMehr dazu", "Überschrift der Aufgabe"),
    ("**Warum** ist das `None`?", "Warum ist das None"),
    ("- Datenbank wählen\n- Schema entwerfen", "Datenbank wählen"),
    ("> Zitat aus der Mail\nWas meint er?", "Zitat aus der Mail"),
    ("```python\nprint(1)\n```\nWas tut das?", "Was tut das"),
    ("```python\ndef total(rows):\n    return sum(rows)\n```", "def total(rows)"),
    ("Sieh https://example.org/a an. Gut?", "Sieh an. Gut"),
    ("https://www.example.org/docs/leases", "example.org/docs/leases"),
    ("[Handbuch](https://example.org) zusammenfassen", "Handbuch zusammenfassen"),
    ("<b>Fett</b> gedruckter Titel", "Fett gedruckter Titel"),
    ("C# oder C++?", "C# oder C++"),
    ("Was bedeutet a_b in `x_y`?", "Was bedeutet a_b in x_y"),
    # Quotes, lengths, other letters.
    ("„Fehler 500“ beim Login", "„Fehler 500“ beim Login"),
    ('"Connection refused" on port 6379, why?', '"Connection refused" on port 6379, why'),
    ("x" * 80, "x" * 49 + "…"),
    ("¿Cómo funciona esto? Gracias.", "¿Cómo funciona esto"),
    ("请解释租约", "请解释租约"),
    ("🚀 Launch plan for Q3", "🚀 Launch plan for Q3"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "title"), FIRST_MESSAGES)
def test_a_title_is_what_a_person_would_call_the_chat(message: str, title: str) -> None:
    assert title_of(message) == title


def test_the_table_has_sixty_messages_in_two_languages() -> None:
    assert len(FIRST_MESSAGES) == len({message for message, _ in FIRST_MESSAGES}) == 60


def test_nothing_readable_gives_no_title() -> None:
    assert title_of("<b>\u202e \x07") == ""
    assert title_of("") == ""


@given(st.text(max_size=300))
def test_any_text_gives_one_short_printable_line(text: str) -> None:
    title = title_of(text)
    assert len(title) <= TITLE_CHARS
    assert title.isprintable()
