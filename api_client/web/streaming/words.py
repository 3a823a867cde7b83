"""Every sentence of the relay that a user may read while a turn goes on, in German and English: one table.

Errors have another table (``contract/words/error_codes.py``), which all sides share.
"""

from __future__ import annotations

_WORDS: dict[str, dict[str, str]] = {
    # status lines, in the order a turn goes through them
    "queued": {"de": "In der Warteschlange", "en": "Queued"},
    "queued_behind_one": {
        "de": "Vor dieser Frage ist noch 1 deiner Fragen",
        "en": "1 of your questions is before this one",
    },
    "queued_behind": {
        "de": "Vor dieser Frage sind noch {position} deiner Fragen",
        "en": "{position} of your questions are before this one",
    },
    "queued_for_agent": {"de": "Wartet auf einen freien Agenten", "en": "Waiting for a free agent"},
    "queued_for_agent_one": {
        "de": "Wartet auf einen freien Agenten; etwa 1 Frage ist vorher dran",
        "en": "Waiting for a free agent; about 1 question is before this one",
    },
    "queued_for_agent_many": {
        "de": "Wartet auf einen freien Agenten; etwa {position} Fragen sind vorher dran",
        "en": "Waiting for a free agent; about {position} questions are before this one",
    },
    "started": {"de": "Der Agent arbeitet", "en": "The agent is working"},
    "since": {"de": "{what} (seit {minutes} min)", "en": "{what} (for {minutes} min)"},
    "writing": {"de": "Der Agent schreibt", "en": "The agent is writing"},
    "tool": {"de": "Der Agent arbeitet: {what}", "en": "The agent is working: {what}"},
    "tool_read": {"de": "liest Dateien", "en": "reading files"},
    "tool_search": {"de": "durchsucht das Projekt", "en": "searching the project"},
    "tool_write": {"de": "schreibt Dateien", "en": "writing files"},
    "tool_run": {"de": "führt einen Befehl aus", "en": "running a command"},
    "tool_web": {"de": "sucht im Netz", "en": "looking on the web"},
    "tool_agent": {"de": "fragt einen Experten", "en": "asking an expert"},
    "tool_other": {"de": "nutzt ein Werkzeug", "en": "using a tool"},
    "reset": {"de": "Der Agent setzt neu an", "en": "The agent starts over"},
    "lost": {
        "de": "Ein Ausfall hat den Agenten unterbrochen; es geht gleich weiter",
        "en": "A crash interrupted the agent; it continues in a moment",
    },
    "checking": {"de": "Die Antwort wird geprüft", "en": "Checking the answer"},
    "retrying": {"de": "Neuer Versuch {number}/{allowed}: {reason}", "en": "Asking again {number}/{allowed}: {reason}"},
    "waiting": {
        "de": "Der Agent ist gerade nicht erreichbar; neuer Versuch in {seconds} s",
        "en": "The agent is not available right now; trying again in {seconds} s",
    },
    "fallback": {"de": "Die Antwort wird automatisch ergänzt", "en": "Repairing the answer automatically"},
    "gate_passed": {"de": "Prüfung {gate} bestanden", "en": "Check {gate} passed"},
    "gate_failed": {"de": "Prüfung {gate} nicht bestanden", "en": "Check {gate} failed"},
    "verifying": {"de": "Ein zweiter Agent prüft das Ergebnis", "en": "A second agent checks the result"},
    "verified": {"de": "Der zweite Agent ist einverstanden", "en": "The second agent agrees"},
    "not_verified": {"de": "Der zweite Agent hat Mängel gefunden", "en": "The second agent found faults"},
    "escalated": {
        "de": "Die Prüfung ist gescheitert; ein anderer Agent versucht es",
        "en": "The checks failed; another agent tries",
    },
    "parked": {
        "de": "Ein Mensch muss entscheiden: {where}",
        "en": "A person has to decide: {where}",
    },
    "decided": {"de": "Entschieden; es geht weiter", "en": "Decided; it goes on"},
    "paused": {"de": "Pausiert{until}{reason}", "en": "Paused{until}{reason}"},
    "paused_by_errors": {
        "de": "Der Agent ist gestört{until}; deine Frage wartet",
        "en": "The agent is out of order{until}; your question waits",
    },
    "until": {"de": " bis {time}", "en": " until {time}"},
    "resumed": {"de": "Es geht weiter", "en": "It goes on"},
    "stopping": {"de": "Wird angehalten", "en": "Stopping"},
    "done": {"de": "Fertig", "en": "Done"},
    "checked": {"de": "Geprüft", "en": "Checked"},
    "checked_again": {"de": "Geprüft, {number} Versuch", "en": "Checked, {number} attempt"},
    "checked_repaired": {
        "de": "Geprüft, automatisch ergänzt: {changes}",
        "en": "Checked, completed automatically: {changes}",
    },
    "accepted_by_person": {"de": "Von einem Menschen angenommen", "en": "Accepted by a person"},
    "ordinal_2": {"de": "2.", "en": "second"},
    "ordinal_3": {"de": "3.", "en": "third"},
    "ordinal_4": {"de": "4.", "en": "fourth"},
    "ordinal_5": {"de": "5.", "en": "fifth"},
    "ordinal": {"de": "{number}.", "en": "{number}th"},
    "lost_stream": {
        "de": "Die Verbindung ist abgerissen; „Neu generieren“ bringt die Antwort",
        "en": "The connection was lost; Regenerate brings the answer",
    },
    "not_done": {"de": "Ohne gültige Antwort beendet", "en": "Ended without a valid answer"},
    # a turn without an answer
    "failed": {"de": "Die Antwort hat die Prüfung nicht bestanden.", "en": "The answer did not pass the checks."},
    "failed_all": {
        "de": "Auch nach {attempts} Versuchen hat keine Antwort die Prüfung bestanden.",
        "en": "After {attempts} attempts no answer has passed the checks.",
    },
    "found": {"de": "Zuletzt beanstandet: {faults}.", "en": "Found in the last one: {faults}."},
    "and_more": {"de": "und {count} weitere", "en": "and {count} more"},
    "ask_differently": {
        "de": "Stelle die Frage noch einmal („Neu generieren“), oder formuliere sie anders.",
        "en": "Ask again (Regenerate), or rephrase the question.",
    },
    "ask_again": {
        "de": "Stelle die Frage noch einmal („Neu generieren“).",
        "en": "Ask again (Regenerate).",
    },
    "ask_less": {
        "de": "Stelle die Frage noch einmal („Neu generieren“), oder frage nach weniger auf einmal.",
        "en": "Ask again (Regenerate), or ask for less at once.",
    },
    "stream_lost_advice": {
        "de": "Sie läuft weiter: „Neu generieren“ bringt ihre Antwort.",
        "en": "It goes on: Regenerate brings its answer.",
    },
    "turn_parked_advice": {
        "de": "„Neu generieren“ bringt die Antwort, sobald entschieden ist.",
        "en": "Regenerate brings the answer when it is decided.",
    },
    # behind an error that passes by itself
    "again_in": {"de": "Versuche es in {seconds} s erneut.", "en": "Try again in {seconds} s."},
    # to the agent, in the user's name
    "go_on": {
        "de": "Setze deine letzte Antwort genau dort fort, wo sie endet. Wiederhole nichts.",
        "en": "Continue your last answer exactly where it ends. Repeat nothing.",
    },
    # to the agent, in the place of what is not text
    "image_here": {"de": "[Bild des Nutzers: {path}]", "en": "[image from the user: {path}]"},
    "image_left_out": {
        "de": "[Hier stand ein Bild. Es liegt dir nicht vor.]",
        "en": "[An image stood here. You do not have it.]",
    },
    "part_left_out": {
        "de": "[Hier stand etwas, das kein Text ist. Es liegt dir nicht vor.]",
        "en": "[Something other than text stood here. You do not have it.]",
    },
    # in a draft shown as reasoning
    "void": {
        "de": "(Dieser Entwurf gilt nicht; es folgt ein neuer.)",
        "en": "(This draft is void; another one follows.)",
    },
    # why the agent is asked again
    "why_other": {"de": "die Antwort erfüllt die Vorgaben noch nicht", "en": "the answer does not meet the rules yet"},
    "why_cut_off": {"de": "die Antwort brach ab", "en": "the answer broke off"},
    "why_step": {"de": "der Arbeitsschritt ist nicht angegeben", "en": "the working step is not stated"},
    "why_adr": {"de": "im ADR fehlt noch etwas", "en": "something is still missing in the ADR"},
    "why_no_header": {"de": "der Kopf des ADR fehlt", "en": "the header of the ADR is missing"},
    "why_header": {"de": "der Kopf des ADR ist nicht lesbar", "en": "the header of the ADR cannot be read"},
    "why_file": {"de": "eine genannte Datei stimmt nicht", "en": "a file it names is not right"},
    "why_long": {"de": "die Antwort ist zu lang", "en": "the answer is too long"},
}


def say(name: str, locale: str, **values: object) -> str:
    """The sentence ``name`` in the language ``locale`` (``de`` or ``en``; any other is English)."""
    texts = _WORDS[name]
    return texts.get(locale, texts["en"]).format(**values)
