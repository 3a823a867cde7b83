"""Placeholders: lines for text that was never written or was left out. Words are in ``placeholders.toml``."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from markdown_it.common.html_blocks import block_names

from api_client.contract.word_tables import load_word_table

_WORDS = load_word_table(__file__)


def _join_patterns(patterns: Iterable[str]) -> str:
    known = re.compile(r"\{([a-z]+)\}")
    filled = (known.sub(lambda name: _WORDS["words"][name[1]], pattern) for pattern in patterns)
    return "|".join(f"(?:{pattern})" for pattern in filled)


_LINE, _STATE = (re.compile(_join_patterns(_WORDS[key]), re.IGNORECASE) for key in ("lines", "states"))
#: "TODO", "TODO: describe it", "TODO(anna): later", "TBD (later)", "TODO write this".
_MARK = re.compile(
    rf"(?:{'|'.join(_WORDS['marks'])})(?:\s?\([^()]*\)?)?(?:\s*[:.–—-](?:\s.*)?|\s(?:{'|'.join(_WORDS['notes'])})\b.*)?",
    re.IGNORECASE,
)
_LEFT_OUT = rf"\b(?:{'|'.join(map(re.escape, _WORDS['left_out']))})\b"
#: A line that marks omitted text: "(unchanged)", "[… rest as before …]", "<!-- unchanged -->".
_OMISSION = re.compile(
    rf"[ \t*_>-]{{0,8}}(?:[(\[{{\u2026]|\.{{3}}|<!--|\*|_).{{0,100}}{_LEFT_OUT}"
    r".{0,60}(?:[)\]}\u2026*_]|\.{3}|-->)[ \t\r]{0,8}$",
    re.IGNORECASE,
)
#: "The rest stays as above", "The rest is omitted for brevity", bare or marked.
_REST = re.compile(
    r"(?:der |die |das |the )?"
    r"(?:rest|inhalt|content|text|section|abschnitt|all(?:e|es)? (?:andere|übrige|other|else)\w*)\b.{0,60}"
    rf"(?:{_LEFT_OUT}(?:\W{{1,3}}(?:{_join_patterns(_WORDS['after_left_out'])})){{0,2}}"
    rf"|\bbleibt(?:,? (?:{_join_patterns(_WORDS['after_bleibt'])}))?)$",
    re.IGNORECASE,
)
#: A field of a template: "[Insert decision here]", "<your decision>", "{{ decision }}", "%DECISION%".
_FIELD = re.compile(
    rf"\[(?=[^\[\]]{{0,200}}?(?:\b(?:{'|'.join(_WORDS['fields'])})\b|…|\.\.\.))[^\[\]]{{1,200}}\]|\[\W*\]"
    r"|<[^\W\d_][^<>=/]{0,120}\s[^<>=/]{1,120}>"
    r"|\$?\{[\w \t.…-]{1,200}\}|\$\{[^{}]{1,200}\}|\{\{[^{}]{1,200}\}\}|%\w{2,60}%"
    rf"|<(?!(?:{'|'.join(block_names)})>)[^\W\d_][\w-]{{0,60}}>",
    re.IGNORECASE,
)
_LEAD = re.compile(r"(?:[-+*>#|\s]|\d{1,3}[.)](?=\s)|\[[ xX]?\](?=\s))+")
_AROUND = " \t/\r\xa0()[]{}<>*_`~.,:;!?\u2026|-–—\"'„“”»«"
_EMPHASIS, _REMARK = re.compile(r"[*`]+|(?<!\w)_+|_+(?!\w)"), re.compile(r"\s?\([^()]*$")
#: Longest placeholder, in characters.
_MOST = 300


def is_placeholder(line: str, *, state: bool = False) -> bool:
    """Return True if a line is only a placeholder, such as "TBD" or "[Insert …]"."""
    bare = html.unescape(line).strip() if "&" in line else line.strip()
    if len(bare) > _MOST or "](" in bare:
        return False
    bare = _LEAD.sub("", bare, count=1) if _LEAD.match(bare) else bare
    words = " ".join(_EMPHASIS.sub("", bare).strip(_AROUND).split())
    if not any(char.isalnum() for char in words) or _FIELD.fullmatch(bare.strip(" \t*_`.")):
        return True
    if _STATE.fullmatch(words):
        return not state
    return bool(_LINE.fullmatch(_REMARK.sub("", words)) or _MARK.fullmatch(words) or _REST.match(words))


def remove_placeholders(text: str) -> str:
    """Return the text without placeholder lines. Blank lines are kept."""
    return "\n".join(line for line in text.split("\n") if not line.strip() or not is_placeholder(line))


def omits_text(text: str) -> bool:
    """Return True if a line of the text says that text was omitted, such as "(unchanged)"."""
    return any(_OMISSION.match(line) for line in text.split("\n") if len(line) <= _MOST)
