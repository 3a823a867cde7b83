"""Recognises refusals: answers that only decline a request, such as "I can't help with that request"."""

from __future__ import annotations

import re

from worker.enforcement.documents.step import strip_marker

#: Most characters and most paragraphs of a refusal.
MOST_REFUSED, _PARAGRAPHS = 600, 4

_SORRY = (
    r"(?:(?:(?:i(?:['’]m| am)(?: very| really)? sorry|sorry|(?:i )?apologi[sz]e|my apologies|unfortunately|i understand"
    r"|(?:es )?tut mir (?:sehr )?leid|entschuldigung|entschuldige|leider(?! kann| darf)|ich verstehe"
    r"|(?:je suis )?désolée?|lo siento|mi dispiace|het spijt me|desculpe|lamento)\b[^.!?\n]{0,60}?"
    r"(?:[,.!;:–—-]\s{0,3}|\s))?(?:(?:but|however|aber|jedoch|mais|pero|ma|maar|mas)[\s,]{1,3})?)?"
)
_DOES = (
    r"(?:help(?! but)|assist|comply|fulfil|engage in|participate|take part|do (?:this|that|so)\b"
    r"|(?:discuss|answer) (?:this|that|such)|support (?:this|that|such|you)|continue with (?:this|that)"
    r"|(?:provide|give|share|create|generate|write|produce) (?:you with )?(?:this|that|such|help|assistance"
    r"|instructions|guidance|information (?:on|about|that)|content))"
)
_NICHT = (
    r"nicht (?:weiter)?(?:helfen|behilflich|unterstützen|beantworten|nachkommen|erfüllen|dienen|mitmachen|ausführen)"
)
_KANN = r"(?:kann|darf|möchte|werde)"
_REFUSES = re.compile(
    _SORRY + r"(?:"
    r"i(?: simply| really)? (?:can(?:['’]t|not| not)|won['’]t|will not|am (?:unable|not able|not going) to)\s+"
    rf"{_DOES}|i['’]m (?:unable|not able|not going) to {_DOES}"
    r"|i(?: must| have to|['’]ll have to) (?:decline|refuse)\b"
    r"|i['’]m not comfortable (?:with|helping|doing|writing|providing)"
    r"|(?:da(?:bei|mit|zu|rüber)|hier(?:bei|zu|mit)|das|dies|(?:bei )?(?:dieser|so einer|ihrer|deiner) \w{3,20})"
    rf" {_KANN} ich (?:\w{{1,20}} ){{0,3}}?{_NICHT}"
    rf"|(?:ich {_KANN}|leider (?:kann|darf) ich) (?:[\w-]{{1,20}} ){{0,6}}?{_NICHT}"
    r"|ich muss (?:[\w-]{1,20} ){0,4}?ablehnen"
    r"|je ne (?:peux|puis) pas (?:vous |t['’])?(?:aider|répondre|donner suite)"
    r"|no puedo (?:ayudar|cumplir|responder a es)"
    r"|non posso (?:aiutar|soddisfare|rispondere a quest)"
    r"|(?:ik kan|daar kan ik) (?:\w{1,12} ){0,4}?niet (?:mee )?(?:helpen|bij helpen|aan voldoen)"
    r"|não posso (?:ajud|atender|responder a es)"
    r")",
    re.IGNORECASE,
)
_STRUCTURED = re.compile(r"^[ \t]*(?:#{1,6}[ \t]|[-*+][ \t]|\d{1,3}[.)][ \t]|\||>|```|~~~|---)", re.MULTILINE)
#: A question that may ask for a text like a refusal.
_WORDING = re.compile(
    r"\b(?:translat\w*|übersetz\w*|repeat\w*|wiederhol\w*|quot\w*|zitier\w*|declin\w*|refus\w*|ablehn\w*|abgelehnt"
    r"|absag\w*|weiger\w*|paraphras\w*|rephras\w*|(?:um)?formulier\w*|word for word|wortwörtlich|e-?mails?"
    r"|says?|sag[et]?)\b",
    re.IGNORECASE,
)


def is_refusal(text: str, prompt: str = "") -> bool:
    """Return True if an answer only refuses what the prompt asks for, such as "I can't help with that request".

    The answer must be short and without structure, and refuse in the first person in its first sentence. Return False
    if the prompt is about translating, quoting or rephrasing, because it may ask for such a text.
    """
    said = strip_marker(text[: 2 * MOST_REFUSED + 1]).strip() if len(text) <= 2 * MOST_REFUSED else ""
    if (
        not said
        or len(said) > MOST_REFUSED
        or len(re.findall(r"\n\s*\n", said)) >= _PARAGRAPHS
        or _STRUCTURED.search(said)
    ):
        return False
    return bool(_REFUSES.match(said.lstrip("\"'„“*_ "))) and not _WORDING.search(prompt[:20_000])
