"""Vocabulary of a text: decide if the text is a section of a document or talk about the document.

Talk is about the conversation ("the section you asked for") or the service ("request timed out"). Words are counted by
field; see docs/enforcement.md, "A section, or talk".
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from worker.enforcement.documents.content import has_content, is_json
from worker.enforcement.documents.function_words import FUNCTION_WORDS, detect_language
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.documents.titles import REQUIRED_SECTIONS, find_required_section, plain_title

_WORD = re.compile(r"[^\W_]+")
_IO = re.compile(r"\bI/O\b")
#: The first letters are the same in most forms of a word.
_STEM = 5
_MOST, _PROSE = 20_000, 40
#: In prose, one in this many words is a function word of its language.
_FOREIGN = 5
_RICH = 5
#: Shortest line of a feedback that nobody repeats by chance, in characters.
_ECHO = 12
_FIELDS = {
    name: frozenset(words.split())
    for name, words in tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text("utf-8")).items()
}
#: German and English words about who acts and how a decision is made.
_HELPERS = _FIELDS["helpers"]
_COMMON = _HELPERS.union(*FUNCTION_WORDS.values())
#: Function words that no other language has.
_OWN = frozenset(
    [*FUNCTION_WORDS["de"], *FUNCTION_WORDS["en"], *(word for word in _HELPERS if len(word) > 2)]
).difference(["her", "man", "has"], *(words for name, words in FUNCTION_WORDS.items() if name not in ("de", "en")))
_WE = _FIELDS["deciding"]
_PERSON = _FIELDS["person"]
#: Beginnings of words about the conversation and the service.
_TALK = _FIELDS["talk"]
_LENGTHS = sorted({len(stem) for stem in _TALK})
_NAMES = _FIELDS["names"]
_UNSPACED = re.compile(
    "申し訳|すみませ|ありがと|もちろん|できませ|できま|リクエスト|タイムアウト|抱歉|谢谢|无法|请求|超时|当然|죄송|감사|요청"
)
_MAX_REMARK = 500
_SENTENCE_END = re.compile(r"[.!?]\s")
_LEAD = re.compile(r"^(?![-+*>#|`] |```|#)[^\w(]+")
_STRUCTURE = ("- ", "* ", "+ ", "|", "#", ">", "```", "1.")
#: A remark about the answer in words of its subject: "This ADR describes a cache".
_ABOUT_IT = re.compile(
    r"(?:der|die|das|the|this) (?:section|abschnitt|antwort|answer|dokument|document|adr)\b.{0,200}"
    r"\b(?:beschreibt|describes|legt fest|summari[sz]es|fasst|fehlte?)\b",
    re.IGNORECASE,
)
_ITEM = re.compile(r"^[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+(?=\S)", re.MULTILINE)
_CHECKBOX = re.compile(r"^([ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+)\[[ xX]\][ \t]", re.MULTILINE)
_TAG = re.compile(r"<[^<>\n]{1,200}>")
_PLACE = re.compile(r"\[[^\[\]\n]{1,120}\](?![(\[])|<[^<>\n!]{1,120}>|\$?\{\{?[^{}\n]{0,120}\}?\}|%[A-Z_]{2,40}%")
_TOOL = re.compile(
    r"</?(?:\w+:)?(?:\w*_calls?|tool_\w+|invoke|function_\w+|parameter|think(?:ing)?|system-\w+|server_name)\b[^<>\n]{0,200}>"
    r"|<\|[^<>\n]{1,60}\|>|^\[TOOL_CALLS\]|^\w{1,20}\([^()\n]{0,200}\)\n\s+⎿"
    r"|\A[45]\d\d\s[A-Z][\w-]+(?:\s[A-Z][\w-]+)*\s*\Z|^Action(?: Input)?:|^Tool \w+:|^Bash\(",
    re.MULTILINE,
)
_CODE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?(?:^\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
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
_NAMED_CODE = re.compile(r"\b[A-Z]{3,}_[A-Z_]{3,}\b")


@dataclass(frozen=True, slots=True)
class VocabularyProfile:
    """Counts the distinct words of a text by kind, such as words about the subject or about the conversation.

    Attributes:
        subject: words that are neither common nor talk.
        shared: subject words that the document has too.
        talk: words about the conversation or the service.
        fresh_talk: talk that the document does not have.
        person: words for I and you.
        we: the text begins like a decision.
        foreign: the text is in another language than its document.
    """

    words: int
    subject: int
    shared: int
    talk: int
    fresh_talk: int
    person: int
    we: bool
    listed: bool
    foreign: bool


def profile_vocabulary(text: str, document: str = "", title: str = "") -> VocabularyProfile:
    """Count the words of a text by kind, and how many of them also occur in a document."""
    known, language = _document_vocabulary(document[:_MOST])
    text = _TAG.sub(" ", _CHECKBOX.sub(r"\1", text[:_MOST]))
    words = _split_words(text)
    naming = _NAMES | {_stem(word) for word in _split_words(plain_title(title))}
    saying = {word for word in words if word not in _COMMON and word not in _PERSON and not word.isdigit()}
    talk = {_stem(word) for word in saying if _is_talk(word)}
    subject = {_stem(word) for word in saying if len(word) > 1 and not _is_talk(word)} - naming
    return VocabularyProfile(
        words=len(words),
        subject=len(subject),
        shared=len(subject & known),
        listed=len(_ITEM.findall(text)) > 1,
        talk=len(talk) + len(_UNSPACED.findall(text)),
        fresh_talk=len(talk - known) + len(_UNSPACED.findall(text)),
        person=sum(word in _PERSON for word in words),
        we=bool(words) and (words[0] in _WE or "wir" in words[:8]),
        foreign=_is_foreign(text, words, language, document),
    )


def is_talk(text: str, document: str = "") -> bool:
    """Return True if a text is only about the conversation or the service, not about the document's subject."""
    said = profile_vocabulary(text, document)
    return said.talk + said.person > 0 and said.subject + said.shared <= said.talk + said.person


def is_remark(paragraph: str, document: str = "") -> bool:
    """Return True if a paragraph talks about the answer instead of being part of the answer."""
    text = _LEAD.sub("", paragraph.strip(), count=1).strip("*_ ")
    if not text or len(text) > _MAX_REMARK or text.startswith(_STRUCTURE):
        return False
    said = profile_vocabulary(text, document)
    spoken = said.talk + 2 * said.person > said.subject + said.shared
    return spoken or _ABOUT_IT.match(" ".join(text.split())) is not None


def is_introduction(paragraph: str) -> bool:
    """Return True if a paragraph is a single sentence that ends with a colon."""
    text = paragraph.strip().rstrip("*_ ")
    return text.endswith(":") and len(text) <= _MAX_REMARK and not _SENTENCE_END.search(text)


def is_refusal(text: str, prompt: str = "") -> bool:
    """Return True if an answer only refuses a request, for example "I can't help with that request".

    ``prompt`` is the request. The check is precise rather than complete: the text must be short and without
    structure, and its first sentence must refuse in the first person.
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


def announces_section(paragraph: str, document: str, title: str) -> bool:
    """Return True if a paragraph only introduces the section with this title, such as "Here is the section:"."""
    names = _NAMES | {_stem(word) for word in _split_words(plain_title(title))}
    said = any(_stem(word) in names for word in _split_words(paragraph))
    return is_introduction(paragraph) and (said or not profile_vocabulary(paragraph, document, title).shared)


def is_section(body: str, document: str, title: str, *, headed: bool, feedback: str = "") -> bool:
    """Return True if a text without its heading can be the section with this title in a document.

    ``headed``: the agent sent a heading for the text. A text that repeats a line of ``feedback`` is not a section.
    """
    prose = _CODE.sub("", body)
    if not has_content(body) or is_json(body) or _TOOL.search(prose) or (not prose.strip() and _TOOL.search(body)):
        return False
    if any(
        len(line.strip("> *")) > _ECHO and line.strip("> *") in feedback for line in body.split("\n")
    ) or _NAMED_CODE.search(prose.partition("\n")[0]):
        return False
    if headed and not has_content(prose):
        return find_required_section(title) is None  # an optional section may be a block of code
    said = profile_vocabulary(prose, document, title)
    boxless = _CHECKBOX.sub(r"\1", prose)
    if (without := _PLACE.sub(" ", boxless)) != boxless and not profile_vocabulary(without, document, title).subject:
        return False
    if headed:
        lone = said.foreign and not said.listed and "\n\n" not in body.strip()  # talk is one paragraph
        subject = 0 if lone else said.subject
        shared = max(said.shared - said.foreign, 0)
        return subject + shared + said.we > said.fresh_talk * (1 if shared or said.listed else 2) + 2 * said.person
    if not has_content(prose) or body.rstrip().endswith("?"):
        return False
    if said.listed and find_required_section(title) == REQUIRED_SECTIONS[-1]:
        return not said.person and said.subject > said.talk
    if said.words >= _PROSE:
        return said.person <= said.words // _PROSE and said.shared >= 3 and said.subject >= 2 * said.talk
    if said.talk:
        alone = said.talk == said.shared == 1 and said.subject >= _RICH
        much = said.shared >= max(2, said.talk) and said.subject >= said.talk + 2
        return not said.person and (alone or much)
    return not said.person and said.subject > 0 and (said.shared > said.foreign or said.we or said.listed)


@lru_cache(maxsize=8)
def _document_vocabulary(document: str) -> tuple[frozenset[str], str]:
    words = (word for word in _split_words(document) if word not in _COMMON and len(word) > 1)
    return frozenset(map(_stem, words)), detect_language(document) or ""


def _is_foreign(text: str, words: list[str], language: str, document: str) -> bool:
    letters = [char for char in text if char.isalpha()]
    if sum(char > "\u024f" for char in letters) > len(letters) / 3:
        return not any(char > "\u024f" for char in document)
    lower = [word for word in _WORD.findall(text) if word.islower()]
    own = _OWN.union(FUNCTION_WORDS.get(language, ())) - {"to"}
    hits = sum(word in own for word in words)
    telling = len([word for word in words if word in own or word not in _HELPERS])
    others = (sum(word in known for word in words) for name, known in FUNCTION_WORDS.items() if name != language)
    known_other = max((n for n in others), default=0)
    return (len(lower) > 1 and hits * _FOREIGN < telling) or known_other > max(hits, 1)


def _split_words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(_IO.sub("", text))]


def _stem(word: str) -> str:
    return word[:_STEM]


def _is_talk(word: str) -> bool:
    return word in _TALK or any(word[:length] in _TALK for length in _LENGTHS if 3 < length < len(word))
