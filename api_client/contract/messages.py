"""What a user reads when a turn ends without an answer, in German and English."""

from __future__ import annotations

#: Endings that nobody judged: outcome -> language -> message.
GIVEN_UP = {
    "cancelled": {
        "de": "Die Anfrage wurde abgebrochen.",
        "en": "The request was cancelled.",
    },
    "expired": {
        "de": "Die Zeit für diese Anfrage ist abgelaufen, bevor eine gültige Antwort vorlag. Bitte versuche es erneut.",
        "en": "The time for this request ran out before there was a valid answer. Please try again.",
    },
    "dead": {
        "de": "Die Anfrage hat den Dienst wiederholt zum Absturz gebracht und wurde beiseitegelegt. "
        "Bitte kontaktiere den Administrator.",
        "en": "The request crashed the service repeatedly and was set aside. Please contact the administrator.",
    },
}

#: Endings after the agent ran: outcome -> language -> message. ``failed`` is followed by the issues, one line each.
ENDED = {
    "failed": {
        "de": (
            "Die LLM-Response konnte nicht validiert werden:",
            "Bitte versuche es erneut oder kontaktiere den Administrator.",
        ),
        "en": ("The LLM response could not be validated:", "Please try again or contact the administrator."),
    },
    "incomplete": {
        "de": ("Der Agent hat seine Antwort nicht zu Ende gebracht:", "Bitte versuche es erneut."),
        "en": ("The agent did not finish its answer:", "Please try again."),
    },
    "error": {
        "de": ("Der Agent konnte nicht arbeiten:", "Bitte kontaktiere den Administrator."),
        "en": ("The agent could not work:", "Please contact the administrator."),
    },
}


def ending(outcome: str, locale: str, lines: list[str]) -> str:
    """The message for a turn that ended as ``outcome`` (failed, incomplete or error) for the reasons in ``lines``."""
    first, last = ENDED[outcome].get(locale, ENDED[outcome]["en"])
    return "\n".join([first, *(f"- {line}" for line in lines), last])
