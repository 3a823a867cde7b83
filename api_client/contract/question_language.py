"""Detect whether a question is German or English."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

#: Common words of each language, especially of questions; "was", "will" and "die" exist in both.
_COMMON = {
    "de": "der das und ist nicht ein eine einen einem einer mit für auf den dem sich auch wird werden sind bei oder "
    "aber nur noch wenn wie wir sie ich zur zum durch über nach von vom zu im aus kann kannst könnte können haben "
    "habe hast diese dieser dieses dass weil warum wieso wer wo wann wozu welche welcher welches bitte danke "
    "hallo mir mich uns dir euch ihr mein meine unser unsere kein keine gibt geht soll sollen sollte muss müssen "
    "ja nein schon jetzt hier dann schreib schreibe erklär erkläre erstelle prüfe nenne zeig zeige mach gib hilf "
    "weiter",
    "en": "the and of to is that it for are with this be have from or which you they we can could would should not but "
    "when there their has were been its than into these those what why how who where my our your us does did by as if "
    "please thanks hello yes write explain create check show give make tell help go",
}
_GERMAN, _ENGLISH = (frozenset(_COMMON[name].split()) for name in ("de", "en"))
_WORD = re.compile(r"[^\W\d_]{2,20}")
#: Quoted text and code, which somebody else may have written.
_QUOTED = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|^[ \t]*>[^\n]*|\"[^\"\n]*\"|„[^“”\n]*[“”]", re.DOTALL | re.MULTILINE)
#: How many messages are read, and how many characters of each.
_MESSAGES, _CHARS = 8, 1_000


def detect_language(texts: Iterable[str]) -> str:
    """Return the language that a user writes, ``de`` or ``en``, or an empty string if the texts do not show it.

    ``texts`` has the user's messages, newest first; the first one that shows a language decides.
    """
    for text in islice(texts, _MESSAGES):
        words = _WORD.findall(_QUOTED.sub(" ", text[:_CHARS]).lower())
        german, english = sum(map(_GERMAN.__contains__, words)), sum(map(_ENGLISH.__contains__, words))
        if german != english:
            return "de" if german > english else "en"
    return ""
