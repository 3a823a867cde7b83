"""Every code that our errors carry: what happened and what to do, in German and English. One table for all sides.

The command line writes the code behind its message, the API sends it as ``error.code``, a chat shows the words, and
docs/errors.md is made from it (``turns explain --markdown``). What can be wrong with an answer has a separate table
(``worker/enforcement/codes.py``); the same command explains both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One kind of error.

    Attributes:
        de, en: what happened, and what the reader can do; the second may be empty. Templates.
        operator: what operators can look at or set, in English; empty when it is the caller's fault alone.
    """

    de: tuple[str, str]
    en: tuple[str, str]
    operator: str = ""


_SHOW = "`turns show ID`, then `turns attempts ID`"

ERROR_CODES: Mapping[str, ErrorCode] = {
    # How a turn ends without an answer: the outcome is the code.
    "failed": ErrorCode(
        (
            "Die LLM-Response konnte nicht validiert werden.",
            "Bitte versuche es erneut oder kontaktiere den Administrator.",
        ),
        ("The LLM response could not be validated.", "Please try again or contact the administrator."),
        f"{_SHOW}: which rule rejected which attempt. `turns retry-rate --by validator` says whether it is one rule.",
    ),
    "incomplete": ErrorCode(
        ("Der Agent hat seine Antwort nicht zu Ende gebracht.", "Bitte versuche es erneut."),
        ("The agent did not finish its answer.", "Please try again."),
        f"{_SHOW}: the completion's evidence says what was missing (docs/claude-cli.md).",
    ),
    "error": ErrorCode(
        ("Der Agent konnte nicht arbeiten.", "Bitte kontaktiere den Administrator."),
        ("The agent could not work.", "Please contact the administrator."),
        f"{_SHOW}, then `turns doctor` on the worker's machine.",
    ),
    "cancelled": ErrorCode(
        ("Die Anfrage wurde abgebrochen.", ""),
        ("The request was cancelled.", ""),
        "`turns audit` says who cancelled it, where it was an operator.",
    ),
    "expired": ErrorCode(
        (
            "Die Zeit für diese Anfrage ist abgelaufen, bevor eine gültige Antwort vorlag.",
            "Bitte versuche es erneut.",
        ),
        ("The time for this request ran out before there was a valid answer.", "Please try again."),
        "`error.reason` says which budget: HELIX_DEADLINE_SECONDS, HELIX_TOKEN_BUDGET or HELIX_COST_BUDGET_USD.",
    ),
    "dead": ErrorCode(
        (
            "Die Anfrage hat den Dienst wiederholt zum Absturz gebracht und wurde beiseitegelegt.",
            "Bitte kontaktiere den Administrator.",
        ),
        ("The request crashed the service repeatedly and was set aside.", "Please contact the administrator."),
        "`turns dead show ID`; when the cause is gone, `turns dead replay ID`.",
    ),
    # Why a turn failed that was handed to a person, or did not run.
    "rejected": ErrorCode(
        ("Ein Mensch hat das Ergebnis abgelehnt.", "Die Meldung nennt den Grund."),
        ("A person rejected the result.", "The message says why."),
        "`turns show ID`: who decided, and the note.",
    ),
    "undecided": ErrorCode(
        ("Niemand hat rechtzeitig über das Ergebnis entschieden.", "Bitte versuche es erneut."),
        ("Nobody decided on the result in time.", "Please try again."),
        "`turns inbox list` lists the open decisions; HELIX_ESCALATION_TIMEOUT_SECONDS says how long.",
    ),
    # Why an agent could not work: the code in the error of a turn that ended as `error`.
    "transient": ErrorCode(
        ("Der Dienst des Agenten war vorübergehend nicht erreichbar.", "Bitte versuche es später erneut."),
        ("The agent's service was temporarily not available.", "Please try again later."),
        "It was asked four more times, after 429 and 529 with waits of 15 to 120 seconds. Look "
        "at the service's own status and limits, or at the disk where the reason names it.",
    ),
    "permanent": ErrorCode(
        ("Der Dienst des Agenten hat die Anfrage abgelehnt.", "Bitte kontaktiere den Administrator."),
        ("The agent's service refused the request.", "Please contact the administrator."),
        f"{_SHOW}: the reason is the service's own; mostly a wrong key, model or request, or one that is "
        "too large (413).",
    ),
    "config": ErrorCode(
        ("Der Agent ist nicht richtig eingerichtet.", "Bitte kontaktiere den Administrator."),
        ("The agent is not set up correctly.", "Please contact the administrator."),
        "`turns doctor` on the worker's machine.",
    ),
    "host": ErrorCode(
        ("Dem Rechner des Agenten fehlt Platz oder Speicher.", "Bitte versuche es später erneut."),
        ("The agent's machine is short of disk, memory or processes.", "Please try again later."),
        "`turns doctor` on the worker's machine: disk, memory, processes, open files.",
    ),
    "session_lost": ErrorCode(
        ("Das Gespräch des Agenten ist verloren gegangen.", "Bitte versuche es erneut."),
        ("The agent's conversation was lost.", "Please try again."),
        "All workers need the same HELIX_ROOT (docs/operations.md).",
    ),
    "not_kept": ErrorCode(
        ("Der Dienst konnte den Agenten nicht am Laufen halten.", "Bitte versuche es später erneut."),
        ("The service could not keep the agent running.", "Please try again later."),
        "`turns doctor`: are leases renewed in time? In the workers' logs: `lease.fenced`, `lease.round_slow`, "
        "`guard.died`.",
    ),
    "limit": ErrorCode(
        ("Der Agent ist an eine seiner eigenen Grenzen gestoßen.", "Bitte stelle eine kleinere Aufgabe."),
        ("The agent reached one of its limits.", "Please ask for less at once."),
        f"{_SHOW}: the reason names the limit: turns, budget, the model's output limit or context window.",
    ),
    # Requests that cannot be carried out.
    "invalid_value": ErrorCode(
        ("Ein Wert der Anfrage ist nicht erlaubt.", "Die Meldung nennt Feld und Erlaubtes."),
        ("A value of the request is not allowed.", "The message names the field and what is allowed."),
    ),
    "invalid_type": ErrorCode(
        ("Ein Feld der Anfrage hat den falschen Typ.", "Die Meldung nennt Feld und Typ."),
        ("A field of the request has the wrong type.", "The message names the field and the type."),
    ),
    "invalid_json": ErrorCode(
        ("Die Anfrage ist kein erlaubtes JSON.", "Sende UTF-8-JSON ohne doppelte Schlüssel, NaN oder NUL."),
        ("The request is not acceptable JSON.", "Send UTF-8 JSON without doubled keys, NaN or NUL."),
    ),
    "invalid_parameter": ErrorCode(
        ("Ein Parameter der Adresse ist ungültig.", "Siehe /openapi.json."),
        ("A parameter of the address is not valid.", "See /openapi.json."),
    ),
    "missing_required_parameter": ErrorCode(
        ("Ein notwendiges Feld fehlt.", "Die Meldung nennt es."),
        ("A required field is missing.", "The message names it."),
    ),
    "empty_message": ErrorCode(
        ("Die letzte Nachricht ist leer.", "Schreibe, was der Agent tun soll."),
        ("The last message is empty.", "Say what the agent is to do."),
    ),
    "last_message_not_user": ErrorCode(
        ("Die letzte Nachricht ist nicht die des Nutzers.", "Ein Zug beantwortet eine Nachricht des Nutzers."),
        ("The last message is not the user's.", "A turn answers a message of the user."),
    ),
    "unsupported_content": ErrorCode(
        ("Die Nachricht enthält etwas anderes als Text.", "Sende Text oder eine Textdatei."),
        ("The message holds something other than text.", "Send text or a text file."),
    ),
    "image_not_read": ErrorCode(
        ("Dieses Modell liest keine Bilder.", "Sende die Nachricht ohne Bild, und beschreibe, was es zeigt."),
        ("This model does not read images.", "Send the message without the image, and describe what it shows."),
        "HELIX_VISION_MODELS names the models that read images.",
    ),
    "image_unreadable": ErrorCode(
        (
            "Ein Bild kann nicht gelesen werden.",
            "Erlaubt sind bis zu 8 Bilder je Nachricht als PNG, JPEG, GIF oder WebP mit höchstens 5 MiB.",
        ),
        (
            "An image cannot be read.",
            "Up to 8 images per message are allowed, as PNG, JPEG, GIF or WebP of at most 5 MiB.",
        ),
        "API clients send images as data: addresses; nothing is fetched. HELIX_MAX_BODY_BYTES bounds the whole chat.",
    ),
    "unsupported_parameter": ErrorCode(
        ("Dieses Feld kann hier nicht erfüllt werden.", "Lass es weg; die Meldung sagt, was stattdessen geht."),
        ("This field cannot be honoured here.", "Leave it out; the message says what to do instead."),
    ),
    "content_too_long": ErrorCode(
        ("Die Nachricht oder das ganze Gespräch ist zu lang.", "Kürze es, oder beginne ein neues Gespräch."),
        ("The message or the whole conversation is too long.", "Shorten it, or start a new conversation."),
    ),
    "too_many_messages": ErrorCode(
        ("Das Gespräch hat zu viele Nachrichten.", "Beginne ein neues."),
        ("The conversation has too many messages.", "Start a new one."),
    ),
    "unknown_validator": ErrorCode(
        ("Dieser Validator wird nicht angeboten.", "Die Meldung nennt die angebotenen."),
        ("This validator is not offered.", "The message names those that are."),
        "Install the package that offers it where the relay and every worker run (docs/validators.md).",
    ),
    "model_not_found": ErrorCode(
        ("Dieses Modell wird nicht angeboten.", "GET /v1/models nennt die angebotenen."),
        ("This model is not offered.", "GET /v1/models lists those that are."),
        "HELIX_MODELS of the relay and of every worker must name it.",
    ),
    "invalid_idempotency_key": ErrorCode(
        ("Der Idempotency-Key ist ungültig.", "Nimm 1 bis 255 druckbare ASCII-Zeichen."),
        ("The Idempotency-Key is not valid.", "Use 1 to 255 printable ASCII characters."),
    ),
    "idempotency_key_reused": ErrorCode(
        ("Dieser Idempotency-Key gehört zu einer anderen Anfrage.", "Nimm für eine neue Anfrage einen neuen."),
        ("This Idempotency-Key belongs to another request.", "Use a new one for a new request."),
    ),
    "invalid_event_id": ErrorCode(
        ("Die Last-Event-ID ist keine dieses Stroms.", "Lass sie weg, um von vorne zu lesen."),
        ("This stream has no such Last-Event-ID.", "Leave it out to read from the start."),
    ),
    "turn_not_found": ErrorCode(
        ("Diesen Zug gibt es nicht.", "Prüfe die Nummer; Beendetes wird nur eine Zeit lang aufgehoben."),
        ("There is no such turn.", "Check the id; what has finished is kept for a while only."),
        "HELIX_RETENTION_SECONDS says how long; HELIX_NAMESPACE and the store must be those of the submit.",
    ),
    "turn_not_finished": ErrorCode(
        ("Der Zug ist in einem anderen Zustand, als dafür nötig ist.", "`turns show ID` zeigt ihn."),
        ("The turn is not in the state this needs.", "`turns show ID` shows it."),
    ),
    "turn_not_parked": ErrorCode(
        ("Der Zug wartet auf keine Entscheidung.", "Die Meldung sagt, was aus ihm wurde."),
        ("The turn waits for no decision.", "The message says what became of it."),
        "`turns inbox list` shows the turns that wait.",
    ),
    "turn_parked": ErrorCode(
        ("Ein Mensch muss das Ergebnis prüfen.", "Frage später noch einmal; die Nummer ist {turn_id}."),
        ("A person has to look at the result.", "Ask again later; its number is {turn_id}."),
        "`turns inbox show ID`, then approve, edit, retry or reject.",
    ),
    "session_busy": ErrorCode(
        (
            "In diesem Chat wird noch eine frühere Nachricht bearbeitet.",
            "Bitte warte, bis sie fertig ist.",
        ),
        ("This chat is still working on an earlier message.", "Please wait until it is done."),
    ),
    "not_found": ErrorCode(
        ("Unter dieser Adresse gibt es nichts.", "docs/http-api.md nennt die Adressen."),
        ("There is nothing at this address.", "docs/http-api.md lists the addresses."),
    ),
    "method_not_allowed": ErrorCode(
        ("Diese Methode gibt es an dieser Adresse nicht.", "Der Header Allow nennt die erlaubten."),
        ("This method is not allowed at this address.", "The Allow header names those that are."),
    ),
    "http_error": ErrorCode(
        ("Die Anfrage wurde vom Webserver abgelehnt.", "Die Meldung nennt den Grund."),
        ("The web server refused the request.", "The message says why."),
    ),
    "request_timeout": ErrorCode(
        ("Die Anfrage kam nicht in der erlaubten Zeit an.", "Sende sie noch einmal."),
        ("The request did not arrive in the time allowed.", "Send it again."),
    ),
    "request_too_large": ErrorCode(
        ("Die Anfrage ist zu groß.", "Kürze sie."),
        ("The request is too large.", "Shorten it."),
        "HELIX_MAX_BODY_BYTES sets the limit.",
    ),
    "unsupported_media_type": ErrorCode(
        ("Die Anfrage ist nicht als JSON gekennzeichnet.", "Sende Content-Type: application/json."),
        ("The request is not marked as JSON.", "Send Content-Type: application/json."),
    ),
    "unsupported_content_encoding": ErrorCode(
        ("Die Anfrage ist komprimiert.", "Sende sie unkomprimiert."),
        ("The request is compressed.", "Send it uncompressed."),
    ),
    "rate_limited": ErrorCode(
        ("Zu viele Anfragen in kurzer Zeit.", "Warte, solange Retry-After sagt, und versuche es erneut."),
        ("Too many requests in a short time.", "Wait as long as Retry-After says, and try again."),
        "HELIX_TURNS_PER_MINUTE, or `turns keys create --per-minute` for one key.",
    ),
    "budget_exceeded": ErrorCode(
        ("Das Budget für heute ist aufgebraucht.", "Warte, solange Retry-After sagt, oder frage den Administrator."),
        ("Today's budget is spent.", "Wait as long as Retry-After says, or ask the administrator."),
        "HELIX_BUDGETS. `turns budgets` shows what was spent; `turns stats --by owner` by whom.",
    ),
    "intake_paused": ErrorCode(
        ("Zurzeit werden keine neuen Fragen angenommen.", "Versuche es später erneut."),
        ("No new questions are taken at the moment.", "Try again later."),
        "`turns paused` shows why and until when; `turns resume intake` ends it.",
    ),
    "queue_full": ErrorCode(
        ("Es warten zu viele Anfragen.", "Versuche es später erneut."),
        ("Too many requests are waiting.", "Try again later."),
        "HELIX_MAX_UNFINISHED. `turns top` shows the waiting turns, `turns doctor` whether anybody works. Add workers.",
    ),
    "too_many_unfinished": ErrorCode(
        ("Zu viele deiner Anfragen sind noch nicht beendet.", "Warte, bis eine fertig ist, oder brich eine ab."),
        ("Too many of your turns have not ended.", "Wait until one ends, or cancel one."),
        "HELIX_OWNER_UNFINISHED.",
    ),
    "storage_full": ErrorCode(
        ("Deine Anfragen belegen zu viel Speicher.", "Sende kürzere, oder warte, solange Retry-After sagt."),
        ("Your requests take up too much storage.", "Send shorter ones, or wait as long as Retry-After says."),
        "HELIX_OWNER_BYTES, within HELIX_RETENTION_SECONDS.",
    ),
    "too_many_requests": ErrorCode(
        ("Zu viele Anfragen zur selben Zeit.", "Versuche es in einer Sekunde erneut."),
        ("Too many requests at the same time.", "Try again in a second."),
        "HELIX_OWNER_REQUESTS for one owner; large bodies share 64 MiB of memory (docs/http-api.md).",
    ),
    "too_many_connections": ErrorCode(
        ("Der Dienst hat zu viele Verbindungen.", "Versuche es in einigen Sekunden erneut."),
        ("The service has too many connections.", "Try again in a few seconds."),
        "HELIX_MAX_CONNECTIONS; add a relay, or limit connections in the proxy before it.",
    ),
    "too_many_guesses": ErrorCode(
        ("Zu viele falsche Schlüssel.", "Warte, solange Retry-After sagt."),
        ("Too many wrong keys.", "Wait as long as Retry-After says."),
    ),
    "user_required": ErrorCode(
        ("Die Anfrage nennt ihren Benutzer nicht.", "Dieser Schlüssel spricht für mehrere und muss ihn nennen."),
        ("The request does not name its user.", "This key speaks for several and must name one."),
        "Open WebUI: ENABLE_FORWARD_USER_INFO_HEADERS=true; with HELIX_USER_JWT_SECRET also "
        "FORWARD_USER_INFO_HEADER_JWT_SECRET.",
    ),
    "key_not_found": ErrorCode(
        ("Diesen Schlüssel gibt es nicht.", "`turns keys list` zeigt alle."),
        ("There is no such key.", "`turns keys list` shows all."),
    ),
    "invalid_api_key": ErrorCode(
        ("Der API-Schlüssel fehlt oder ist unbekannt.", "Sende 'Authorization: Bearer KEY'."),
        ("The API key is missing or unknown.", "Send 'Authorization: Bearer KEY'."),
        "`turns keys list` shows the keys the relay accepts, beside those in HELIX_API_KEYS.",
    ),
    "loopback_only": ErrorCode(
        ("Ohne API-Schlüssel wird nur dieser Rechner bedient.", "Bitte den Administrator um einen Schlüssel."),
        ("Without an API key only this machine is served.", "Ask the administrator for a key."),
        "Set HELIX_API_KEYS on the relay.",
    ),
    "directory_not_granted": ErrorCode(
        ("Dieser Schlüssel darf in diesem Ordner keine Phasen ausführen.", "Bitte wende dich an den Administrator."),
        ("This key may not run phases in this folder.", "Ask the administrator to grant the folder."),
        "HELIX_PHASE_DIRECTORIES=FOLDER=OWNER grants it, then start the relay again; an operator's key needs no grant.",
    ),
    "operators_only": ErrorCode(
        ("Das ist nur mit einem Schlüssel für Betreiber zu sehen.", "Die eigenen Turns stehen unter /turns."),
        ("Only a key with operator rights may see this.", "Your own turns are at /turns."),
        "Sign in with an operator's key; for `/metrics` and `/v1/stats` a key made with `--right metrics` is enough.",
    ),
    "form_expired": ErrorCode(
        ("Das Formular ist abgelaufen.", "Bitte die Seite neu laden und es noch einmal versuchen."),
        ("This form has expired.", "Reload the page and try again."),
    ),
    "cross_site": ErrorCode(
        ("Das Formular kam von einer fremden Seite.", "Bitte die Seite hier öffnen und es dort versuchen."),
        ("This form was sent by another site.", "Open the page here and try again."),
    ),
    # The service itself.
    "store_unavailable": ErrorCode(
        ("Der Dienst ist gerade nicht erreichbar.", "Bitte versuche es in einigen Sekunden erneut."),
        ("The service is not available right now.", "Please try again in a few seconds."),
        "`turns doctor`: does the broker answer, does it take writes, is its disk full? Stored turns are not lost.",
    ),
    "stream_lost": ErrorCode(
        (
            "Die Verbindung zur laufenden Anfrage ist abgerissen.",
            "Sie läuft weiter; ihre Nummer ist {turn_id}.",
        ),
        ("The connection to the running request was lost.", "It goes on; its number is {turn_id}."),
        "`turns watch ID` follows it; the relay was stopped, or the store was away.",
    ),
    "internal_error": ErrorCode(
        ("Ein interner Fehler ist aufgetreten.", "Bitte versuche es erneut oder kontaktiere den Administrator."),
        ("An internal error occurred.", "Please try again or contact the administrator."),
        "The log has type and place under the answer's X-Request-Id; please report it with `turns bundle ID`.",
    ),
    # The command line and the processes.
    "invalid_settings": ErrorCode(
        ("Einstellungen sind falsch oder fehlen.", "Die Meldung nennt jede, mit dem, was erlaubt ist."),
        ("Settings are wrong or missing.", "The message names each, with what is allowed."),
        "`turns config` shows the values in use; docs/settings.md lists all.",
    ),
    "broker_not_started": ErrorCode(
        ("Der eingebettete Broker startet nicht.", "Die Meldung nennt Grund und Auswege."),
        ("The embedded broker does not start.", "The message says why, and the ways out."),
        "HELIX_ROOT/.helix/broker/valkey.log; or set REDIS_URL to your server.",
    ),
    "process_not_ready": ErrorCode(
        ("Ein Prozess der Installation wurde nicht bereit.", "Die letzten Zeilen seines Protokolls stehen dabei."),
        ("A process of the installation did not get ready.", "The last lines of its log are shown."),
        "HELIX_ROOT/.helix/logs; `turns up --verbose` shows all logs.",
    ),
    "cannot_start": ErrorCode(
        ("Etwas steht dem Start im Weg.", "Die Meldung sagt, was zu tun ist."),
        ("Something stands in the way of starting.", "The message says what to do."),
    ),
    "delivery_taken": ErrorCode(
        ("Diese Auslieferung wurde schon einmal begonnen.", "Nichts: sie wird als neue wiederholt."),
        ("This delivery was started before.", "Nothing: it is repeated as a new one."),
        "Seen only in logs; two workers share a HELIX_ROOT, as they should.",
    ),
    "invalid_script": ErrorCode(
        ("Das Skript des Skript-Agenten ist fehlerhaft.", "Die Meldung nennt die Stelle."),
        ("The scripted agent's script is wrong.", "The message names the place."),
        "docs/scripted-agent.md.",
    ),
    "invalid_phases": ErrorCode(
        ("Die phases.yaml ist fehlerhaft.", "Die Meldung nennt jede Stelle, mit dem, was erlaubt ist."),
        ("The phases.yaml is wrong.", "The message names each place, with what is allowed."),
        "docs/WORKFLOW-SYSTEM.md.",
    ),
    "phase_not_reached": ErrorCode(
        ("Die Phase wurde nicht ausgeführt.", "Eine Phase davor ist gescheitert; die Meldung nennt sie."),
        ("The phase was not run.", "A phase before it failed; the message names it."),
        "When the earlier one is repaired, `turns phase run DIR --phase ID`.",
    ),
    "phase_not_verified": ErrorCode(
        ("Die Ausgabe der Phase wurde nicht bestätigt.", "Die Meldung nennt die Mängel des letzten Versuchs."),
        ("The phase's output was not verified.", "The message names what was wrong with the last attempt."),
        "docs/WORKFLOW-SYSTEM.md, Troubleshooting.",
    ),
    "backup_failed": ErrorCode(
        ("Die Sicherung konnte nicht erstellt werden.", "Die Meldung nennt den Grund."),
        ("The backup could not be taken.", "The message says why."),
        "docs/operations.md, Back up and restore.",
    ),
    "restore_refused": ErrorCode(
        ("Diese Sicherung kann hier nicht eingespielt werden.", "Die Meldung nennt den Grund."),
        ("This backup cannot be restored here.", "The message says why."),
        "docs/operations.md, Back up and restore.",
    ),
    "tracing_off": ErrorCode(
        ("Traces sind hier nicht eingerichtet.", "Die Meldung nennt, was fehlt."),
        ("Traces are not set up here.", "The message says what is missing."),
        "docs/operations.md, Traces.",
    ),
    "traces_not_taken": ErrorCode(
        ("Der Empfänger der Traces nimmt nichts an.", "Nichts geht verloren; sie werden später gesendet."),
        ("The receiver of traces takes nothing.", "Nothing is lost; they are sent later."),
        "OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS, and the receiver's own log.",
    ),
    "operation_failed": ErrorCode(
        ("Der Befehl konnte nicht ausgeführt werden.", "Die Meldung nennt den Grund."),
        ("The command could not be carried out.", "The message says why."),
    ),
}


def words_of(code: str, locale: str) -> tuple[str, str]:
    """What happened and what to do, in ``de`` or ``en``; any other locale is English.

    Raises:
        KeyError: no such code.
    """
    entry = ERROR_CODES[code]
    return entry.de if locale == "de" else entry.en


def sentence(code: str, locale: str, **values: object) -> str:
    """What a user reads of an error: what happened, then what to do.

    Raises:
        KeyError: no such code, or a value of its template is missing.
    """
    return " ".join(filter(None, words_of(code, locale))).format(**values)
