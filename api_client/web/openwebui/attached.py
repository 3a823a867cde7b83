"""Links to files below an answer in a chat, and the answer without them when the chat sends it back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from api_client.contract.tool_calls import ToolQuestion
from api_client.turns.turn_files import LinkedFile
from api_client.web.errors import say

#: Markdown that is drawn as nothing: the lines behind it are ours, up to the first other one.
_MARK = "[//]: # (helix-files)"
_ATTACHED = re.compile(r"\n{0,2}" + re.escape(_MARK) + r"\n(?:\n|(?:- \[|!\[)[^\n]*(?:\n|\Z))*")
#: As ``_MARK``, for one question: a link, which is in front of the answer or between drafts.
_ASKING = "[//]: # (helix-question)"
_ASKED = re.compile(r"\n{0,2}" + re.escape(_ASKING) + r"\n\n\*\*[^\n]*\n\n[^\n]*\n{0,2}")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#!|&~])")
_KILO = 1024
_MOST = 20
#: Characters of a question; its page shows more.
_MOST_ASKED = 300


def attached(files: Iterable[LinkedFile], address: str) -> str:
    """The links below an answer with files: images are drawn, all are linked. Empty without any.

    ``address`` is the relay's, as people reach it, without a slash at its end.
    """
    shown = list(files)[:_MOST]
    if not shown:
        return ""
    images = [f"![{_name(each)}]({address}{each.link})\n" for each in shown if each.file.is_image]
    links = [f"- [{_name(each)}]({address}{each.link}) ({_size(each.file.size)})\n" for each in shown]
    return "".join(["\n\n", _MARK, "\n\n", *images, "\n" if images else "", *links])


def detached(text: str) -> str:
    """The answer as it was before links were added to it."""
    text = _ASKED.sub("", text) if _ASKING in text else text
    return _ATTACHED.sub("", text) if _MARK in text else text


def asking(question: ToolQuestion, link: str, locale: str) -> str:
    """The text in a chat that asks about a tool call; ``link`` is the whole address that answers."""
    what = _SPECIAL.sub(r"\\\1", _cut(question.words))
    said = f"**{say('may_it', locale)}** {what}\n\n[{say('yes_or_no', locale)}]({link})"
    return f"\n\n{_ASKING}\n\n{said}\n\n"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_ASKED else f"{text[: _MOST_ASKED - 1]}…"


def _name(each: LinkedFile) -> str:
    return _SPECIAL.sub(r"\\\1", each.file.path)


def _size(size: int) -> str:
    for unit in ("B", "kB", "MB"):
        if size < _KILO:
            return f"{size} {unit}"
        size = -(-size // _KILO)
    return f"{size} GB"
