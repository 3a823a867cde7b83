"""A title from a user's first message: its first sentence in plain words, without a model. Pure, in linear time."""

from __future__ import annotations

import re

TITLE_CHARS, _WORD_CHARS, _READ_CHARS = 50, 30, 2_000
#: A sentence shorter than this, in words and in characters, goes on behind its end: "Ja. Und warum?"
_LEAST_WORDS, _LEAST_CHARS = 4, 15

_FENCE = re.compile(r"```[^\n]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_IMAGE_OR_LINK = re.compile(r"!?\[([^\[\]\n]{0,200})\]\([^()\s]{0,500}\)")
_URL = re.compile(r"https?://\S+")
_MARKUP = re.compile(r"<[^<>\n]{0,200}>|[*`>|~\[\]]+|(?<!\w)_+|_+(?!\w)|(?<!\w)#+(?=\s)")
_QUOTED = re.compile(r"[\"'«„“‚]([^\"'«»„“”‚‘]{1,200})[\"'»“”‘]")
_LIST_MARK = re.compile(r"\A(?:[-*+•]|\d{1,3}[.)])\s+")
_GREETING = re.compile(
    r"(?:hallo|hi|hey|hello|moin|servus|guten (?:morgen|tag|abend)|good (?:morning|afternoon|evening)"
    r"|dear \w+|liebe[sr]? \w+)"
    r"(?: (?:zusammen|alle|team|there|all|everyone|\w{2,12}))?\s{0,3}(?:[,!.:;–-]|\n|\Z)\s*",
    re.IGNORECASE,
)
_END = re.compile(r"[.!?…]+[\"'»”)]{0,2}(?=\s|\Z)|\n+")
#: Words whose dot ends no sentence.
_SHORT = frozenset(
    [
        "abb",
        "abs",
        "art",
        "bspw",
        "bzw",
        "ca",
        "dr",
        "evtl",
        "fig",
        "fr",
        "ggf",
        "hr",
        "inkl",
        "kap",
        "max",
        "min",
        "mio",
        "mr",
        "mrd",
        "mrs",
        "ms",
        "nr",
        "no",
        "prof",
        "st",
        "str",
        "vgl",
        "vs",
        "zzgl",
        "approx",
        "ltd",
        "inc",
        "sog",
    ]
)


def title_of(text: str) -> str:
    """A short title from what a user wrote; of a message that is code or an address only, its first line."""
    read = text[:_READ_CHARS]
    plain = _MARKUP.sub(" ", _URL.sub(" ", _IMAGE_OR_LINK.sub(r"\1", _FENCE.sub("\n", read)))).strip()
    return _short(_first_sentence(plain)) or _short(_first_line(read))


def _first_sentence(text: str) -> str:
    lines = (_LIST_MARK.sub("", line.strip(), count=1) for line in text.splitlines())
    text = "\n".join(line for line in lines if line)
    for _ in range(2):
        greeting = _GREETING.match(text)
        text = (text[greeting.end() :] if greeting else "") or text
    for end in _END.finditer(text):
        before = text[: end.start()]
        if _ends(before, end[0], text[end.end() :].lstrip()):
            return before
    return text


def _ends(before: str, mark: str, after: str) -> bool:
    """Whether a sentence ends here: it is long enough, and the mark is not that of an abbreviation or a number."""
    words = before.split()
    if not words or (len(words) < _LEAST_WORDS and len(before) < _LEAST_CHARS and after):
        return False
    if mark[0] == "\n":
        return not before.endswith((":", ","))
    if mark[0] != "." or not after:
        return True
    last = words[-1].strip("(\"'„“«»").lower()
    short = len(last.rpartition(".")[2]) == 1 or last.isdecimal() or last in _SHORT
    return not short and not after[0].islower()


def _first_line(text: str) -> str:
    """The first line of code, or the address without its scheme."""
    inside = next((body for body in _FENCE.findall(text) if body.strip()), text)
    line = next((line.strip() for line in inside.splitlines() if line.strip()), "")
    return re.sub(r"https?://(?:www\.)?", "", _MARKUP.sub("", line) if inside is text else line)


def _short(sentence: str) -> str:
    """One printable line, cut between words."""
    clean = "".join(letter for letter in " ".join(sentence.split()) if letter.isprintable())
    clean = clean.strip(" ,;:-–")
    clean = quoted[1] if (quoted := _QUOTED.fullmatch(clean)) else clean
    if len(clean) <= TITLE_CHARS:
        return clean
    cut = clean[: TITLE_CHARS - 1]
    head, _, tail = cut.rpartition(" ")
    return f"{(head if head and len(tail) < _WORD_CHARS else cut).rstrip(' ,;:-')}…"
