"""What an agent says about its answer: it is not content of it.

Words only where they are sure: what is not recognised is taken as content of a section that was sent, and never as a
section that has no heading (``worker.enforcement.replies.reply_sections``).
"""

from __future__ import annotations

import re

#: A longer paragraph is not a remark.
_MAX_REMARK = 500

_SENTENCE_END = re.compile(r"[.!?]\s")
_LEAD = re.compile(r"^(?![-+*>#|`] |```|#)[^\w(]+")
_ABOUT = (
    r"section|abschnitt|antwort|marker|yaml|header|teile?|parts?|answer|response|reply|dokument|document|adr|vorgaben?"
    r"|anforderung(?:en)?|requirements?|wunsch|wünsche|fehler|errors?"
)
_NAMES = r"entscheidung|kontext|akzeptanzkriterien|kriterien|decision|context|criteria"
_SAME_DE = (
    r"(?:bleib\w{0,3}|blieb\w{0,2}|ist|sind|wurden?|habe ich|lasse ich)\b.{0,40}?"
    r"\b(?:unverändert|unberührt|gleich|bestehen|erhalten|so|wie (?:bisher|gehabt|zuvor|vorher|er war|es war)"
    r"|nicht (?:ge|ver)ändert)\b|bleib\w{0,3}[.!]{0,3}$|unverändert"
)
_SAME_EN = (
    r"(?:is|are|was|were|stays?|remains?|i (?:have )?(?:kept|left))\b.{0,40}?"
    r"\b(?:unchanged|untouched|(?:the |exactly the )?same|as (?:it|they|before|is|was)|kept|fine)\b"
    r"|(?:stays?|remains?)[.!]{0,3}$"
)
_DONE_DE = r"ergänzt?|hinzugefügt|hinzu|korrigier\w{0,3}|angepasst|nachgereicht|nicht|vergessen|alles"
_DONE_EN = r"added|fixed|corrected|updated|adjusted|included|missing|unable|forgot\w{0,3}|helps|everything|can(not|'t)"
_REMARKS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # the rest stays
        rf"\brest(?: (?:der|des|vom|von|meiner|deiner|dieser|dieses)(?: \w{{1,20}})? (?:{_ABOUT})\w{{0,2}})?,? "
        rf"(?:{_SAME_DE})",
        rf"\b(?:andere|übrige|restliche|weitere)\w{{0,2}} (?:{_ABOUT})\w{{0,2}}\b.{{0,20}}\b(?:{_SAME_DE})",
        rf"\balles (?:andere|übrige|weitere)\b.{{0,20}}\b(?:{_SAME_DE})",
        rf"\b(?:the )?rest(?: of (?:the|my|your|this)(?: \w{{1,20}})? (?:{_ABOUT}))?,? (?:{_SAME_EN})",
        rf"\b(?:everything|all) else (?:{_SAME_EN})|\bother (?:{_ABOUT})\b.{{0,20}}\b(?:{_SAME_EN})",
        rf"\bremain(?:der|ing (?:{_ABOUT}))\b.{{0,20}}\b(?:{_SAME_EN})",
        r"\b(?:no|nothing) (?:other|else)\b.{0,60}\bchang|\bsonst (?:hat sich |wurde |ist |habe ich )?nichts\b",
        # sorry, sure, done
        r"^(?:entschuldig\w{0,5}|sorry|verzeih\w{0,5}|pardon|(?:es )?tut mir leid)\b",
        r"^(?:(?:my )?apologies|i apologi[sz]e|oops|ups)\b",
        r"^(?:gerne?|natürlich|klar|verstanden|alles klar|in ordnung|danke|erledigt|fertig|okay|ok|ja)\b[\s,.:!-]",
        r"^(?:sure|certainly|of course|understood|got it|thanks|thank you|done|yes|absolutely)\b[\s,.:!\u2013-]",
        r"^(?:gerne?|natürlich|klar|verstanden|erledigt|fertig|okay|ok|done|sure)\W{0,3}$",
        # what I did, cannot do, hope
        r"\bich (?:habe?|hatte|hoffe|werde|kann|konnte|könnte|schicke|sende|liefere|ergänze|füge)\b.{0,200}"
        rf"\b(?:{_ABOUT}|{_DONE_DE})\b",
        r"\bi(?:'ve|'ll|'m| have| had| will| hope| can(?:not|'t)?| could| am| added| fixed| forgot)\b.{0,200}"
        rf"\b(?:{_ABOUT}|{_DONE_EN})\b",
        r"\b(?:kann|konnte|darf|möchte|will) (?:ich|das|dies|dir|dabei|leider)\b.{0,80}\bnicht\b",
        r"\bleider\b.{0,80}\b(?:ich|möglich|geht)\b|\bgeht\b.{0,20}\bnicht\b|\bunfortunately\b.{0,80}\b(?:i|possible)\b",
        r"\b(?:wie gewünscht|wie gefordert|wie verlangt|as requested|as asked)\b",
        # here it is
        r"^(?:hier|anbei|nachfolgend|im folgenden|unten|here|below|attached|the following)\b.{0,120}"
        rf"(?::$|\b(?:{_ABOUT}|{_NAMES}|inhalt|fassung|version|korrektur|ergänzung|content|correction)\b)",
        r"^(?:damit|somit|jetzt|nun|so|this|that|it|now|with this|the adr|das adr)\b.{0,120}"
        rf"\b(?:{_ABOUT})\b.{{0,60}}"
        r"\b(?:vollständig|komplett|erfüllt|gültig|korrekt|complete|valid|fulfil\w{0,5}|meets?|satisf\w{0,4}|correct)",
        rf"^(?:der|die|das|the|this) (?:{_ABOUT})\b.{{0,200}}"
        r"\b(?:ergänzt|hinzugefügt|korrigiert|fehlte?|steht|jetzt|nun|now|added|fixed|(?:wa|i)s missing"
        r"|corrected|beschreibt|describes|legt fest|summari[sz]es|fasst)\b",
        r"^(?:zusammenfassung|zusammengefasst|kurz gesagt|summary|in short|in summary|to summari[sz]e)\b",
        # what next
        r"^(?:ich )?hoffe\b|^viel (?:erfolg|spaß)\b|^(?:this|that) (?:completes|fixes|adds|should)\b",
        r"^das (?:war|ist) alles\b",
        r"\b(?:sag|gib|lass|melde?)\b.{0,30}\b(?:bescheid|wissen|dich)\b|\bbei (?:weiteren )?(?:fragen|rückfragen)\b",
        r"\blet me know\b|\bhope this helps\b|\bfeel free\b|\bshall i\b|\b(?:would you like|do you want) (?:me|to)\b",
        r"^(?:soll ich|möchtest du|brauchst du|passt das|wenn du (?:noch|möchtest|willst))\b",
        r"^if you(?:'d| would)? (?:like|need|want)\b",
    )
)


def is_remark(paragraph: str) -> bool:
    """True when a paragraph speaks about the answer instead of belonging to it."""
    text = _LEAD.sub("", paragraph.strip(), count=1).strip("*_ ")
    if not text or len(text) > _MAX_REMARK or text.startswith(("- ", "* ", "+ ", "|", "#", ">", "```", "1.")):
        return False
    flat = " ".join(text.split())
    return any(pattern.search(flat) for pattern in _REMARKS)


def introduces(paragraph: str) -> bool:
    """True when a paragraph is one sentence that ends with a colon: what it introduces comes next."""
    text = paragraph.strip().rstrip("*_ ")
    return text.endswith(":") and len(text) <= _MAX_REMARK and not _SENTENCE_END.search(text)
