"""Links to files below an answer in a chat, and the answer without them when the chat sends it back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from api_client.turns.turn_files import LinkedFile

#: Markdown that is drawn as nothing: the lines behind it are ours, up to the first other one.
_MARK = "[//]: # (helix-files)"
_ATTACHED = re.compile(r"\n{0,2}" + re.escape(_MARK) + r"\n(?:\n|(?:- \[|!\[)[^\n]*(?:\n|\Z))*")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#!|&~])")
_KILO = 1024
_MOST = 20


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
    return _ATTACHED.sub("", text) if _MARK in text else text


def _name(each: LinkedFile) -> str:
    return _SPECIAL.sub(r"\\\1", each.file.path)


def _size(size: int) -> str:
    for unit in ("B", "kB", "MB"):
        if size < _KILO:
            return f"{size} {unit}"
        size = -(-size // _KILO)
    return f"{size} GB"
