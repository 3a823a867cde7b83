"""What a user reads when a turn ends without an answer, in German and English; the words are in ``error_codes``."""

from __future__ import annotations

from api_client.contract.error_codes import sentence, words_of

#: Endings that nobody judged: outcome -> language -> message.
GIVEN_UP = {
    outcome: {locale: sentence(outcome, locale) for locale in ("de", "en")}
    for outcome in ("cancelled", "expired", "dead")
}

#: Endings after the agent ran. ``failed`` is followed by the issues, one line each.
ENDED = ("failed", "incomplete", "error")


def ending(outcome: str, locale: str, lines: list[str]) -> str:
    """The message for a turn that ended as ``outcome`` (failed, incomplete or error) for the reasons in ``lines``."""
    first, last = words_of(outcome, locale)
    return "\n".join([f"{first.removesuffix('.')}:", *(f"- {line}" for line in lines), last])
