"""Section titles: strip their mark-up, and find the required section that a title names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from api_client.contract.word_tables import load_word_table

_TITLES = load_word_table(__file__)
SECTION_TITLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: tuple(also) for name, also in _TITLES["required"].items()}
)
#: The sections of every ADR, in order (ADR-038 section 3).
REQUIRED_SECTIONS = tuple(SECTION_TITLES)
_GERMAN, _ENGLISH, _MADR = "de", "en", "madr"
_SHOWS = {template: frozenset(titles) for template, titles in _TITLES["shows"].items()}
_RANKS = {title: int(rank) for rank, titles in _TITLES["ranks"].items() for title in titles}

_MAX_TITLE = 300
_COMMENT = re.compile(r"<!--.{0,200}?-->|<[^<>]{0,200}>|\{[#:.][^{}]{0,100}\}")
_LINK = re.compile(r"!?\[([^\[\]]{0,200})\](?:\([^()]{0,200}\)|\[[^\[\]]{0,100}\])?")
_MARKS = re.compile(r"[*`~\\\u200b-\u200d\u2060\ufeff]|(?<!\w)_{1,3}|_{1,3}(?!\w)")
_LEAD = re.compile(r"(?::\w{1,30}:\s*|[^\w(]+)+")
_NUMBER = re.compile(
    r"(?:\(?\d{1,3}(?:\.\d{1,3}){0,3}(?:[.):\ufe0f\u20e3]{1,3}\s*|(?=\s))|[IVX]{1,5}[.):]|[A-Za-z][.)](?=\s))"
    r"(?:\s*[-\u2013\u2014:]\s+|\s*)(?=\D)"
)
_WORDS = re.compile(r"[^\W\d_][^\W_]*(?: [^\W_]+)*")
_TAIL = re.compile(r"[^\w)]+$")
_LABEL = re.compile(r"(?:section|abschnitt)\b[\s:'\"#]{1,5}(?=\w)", re.IGNORECASE)
_REMARK = re.compile(r"\s{0,5}\([^()]{0,200}\)$|\s{0,5}(?::|\s[-\u2013\u2014])\s.{0,300}$")
#: A title with more than the section's name: "Kontext und Optionen", "Context & Scope".
_AND = re.compile(r"\s(?:und|and|&|/|\+)\s.{1,200}$")
_BLANKS = re.compile(r"\s+")
_GERMAN_WORDS = re.compile(r"\b(?:der|die|das|und|ist|nicht|ein|eine|wir|mit|für|auf|wird)\b", re.IGNORECASE)
_ENGLISH_WORDS = re.compile(r"\b(?:the|and|is|of|to|not|we|with|for|that|this|are)\b", re.IGNORECASE)
_HEAD = 4_000


def plain_title(title: str) -> str:
    """Return the words of a heading without formatting, links, comments, number and emoji."""
    if len(title) > _MAX_TITLE or _WORDS.fullmatch(title):
        return title
    words = _BLANKS.sub(" ", _MARKS.sub("", _LINK.sub(r"\1", _COMMENT.sub(" ", title)))).strip()
    for _ in range(2):  # a number may follow an emoji, or an emoji a number
        for pattern in (_LEAD, _NUMBER):
            words = words[found.end() :] if (found := pattern.match(words)) else words
    return _TAIL.sub("", words) or title.strip()


def list_title_forms(title: str) -> tuple[str, ...]:
    """Return the lower-case forms of a title to look up: whole, without a remark in brackets, and its first subject."""
    words = plain_title(title)
    label = _LABEL.match(words)
    words = (words[label.end() :] if label else words).casefold()
    short = words if _WORDS.fullmatch(words) else _TAIL.sub("", _REMARK.sub("", words))
    return words, short, short.replace("-", " "), _AND.sub("", short)


def find_required_section(title: str) -> str | None:
    """Return the required section that a title denotes in any language, or None if there is no such section."""
    return next((_CANONICAL[form] for form in list_title_forms(title) if form in _CANONICAL), None)


def section_key(title: str) -> str:
    """Return a key that is equal for all titles of the same section."""
    return title.casefold() if len(title) > _MAX_TITLE else _cached_key(title)


@lru_cache(maxsize=1024)
def _cached_key(title: str) -> str:
    return (find_required_section(title) or plain_title(title)).casefold()


def section_rank(title: str) -> int | None:
    """Return a section's usual position in an ADR, or None for an unusual title."""
    return _RANKS.get(section_key(title))


def choose_section_title(name: str, titles: Iterable[str], prose: str, locale: str) -> str:
    """Return the title under which to request a missing section, in the language and style of the ADR."""
    if name not in REQUIRED_SECTIONS:
        return name
    shown = [plain_title(title).casefold() for title in titles]
    if any(title in _SHOWS[_MADR] for title in shown):
        return str(_TITLES["asked"][_MADR][name])
    german = sum(title in _SHOWS[_GERMAN] for title in shown)
    english = sum(title in _SHOWS[_ENGLISH] for title in shown)
    if german == english:
        head = prose[:_HEAD]
        german, english = len(_GERMAN_WORDS.findall(head)), len(_ENGLISH_WORDS.findall(head))
    neither = german == english and locale.lower().startswith(_ENGLISH)
    return str(_TITLES["asked"][_ENGLISH if english > german or neither else _GERMAN][name])


def _spelled(title: str) -> tuple[str, ...]:
    return title.casefold(), title.casefold().replace(" and ", " & ").replace(" und ", " & ")


_CANONICAL = {
    form: name for name, also in SECTION_TITLES.items() for title in (name, *also) for form in _spelled(title)
}
