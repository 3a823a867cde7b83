"""What we put around an answer in a chat, and the answer without it when the chat sends it back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from api_client.contract.tool_calls import ToolQuestion
from api_client.contract.turn import Outcome, Turn
from api_client.turns.turn_files import LinkedFile
from api_client.web.errors import say

#: Markdown that is drawn as nothing: the lines behind it are ours, up to the first other one.
_MARK = "[//]: # (helix-files)"
_ATTACHED = re.compile(r"\n{0,2}" + re.escape(_MARK) + r"\n(?:\n|(?:- \[|!\[)[^\n]*(?:\n|\Z))*")
#: As ``_MARK``, for one question: a link, which is in front of the answer or between drafts.
_ASKING = "[//]: # (helix-question)"
_ASKED = re.compile(r"\n{0,2}" + re.escape(_ASKING) + r"\n\n\*\*[^\n]*\n\n[^\n]*\n{0,2}")
#: As ``_MARK``, for the two lines of a note.
_NOTE = "[//]: # (helix-note)"
_NOTED = re.compile(r"\n{0,2}" + re.escape(_NOTE) + r"\n\n\*[^\n]*\*  \n\*[^\n]*\*(?:\n|\Z)")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#!|&~])")
_KILO = 1024
_MOST = 20
#: Characters of a question; its page shows more.
_MOST_ASKED = 300
#: The rules that a note has words for; of any other it gives the name.
_RULES = frozenset({
    "adr_structure", "citations", "claims", "code", "file_existence", "forbidden", "language", "length", "links",
    "step_marker", "structure",
})  # fmt: skip
_CENT, _DOLLAR = 10_000, 1_000_000


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
    """The answer as it was before anything was added to it."""
    text = _NOTED.sub("", text) if _NOTE in text else text
    text = _ASKED.sub("", text) if _ASKING in text else text
    return _ATTACHED.sub("", text) if _MARK in text else text


def noted(turn: Turn, locale: str) -> str:
    """The two lines below an accepted answer: what it was checked for, and what the whole turn cost."""
    names = [say(f"rule_{name}", locale) if name in _RULES else _escaped(name) for name in turn.request.validators]
    if turn.outcome is Outcome.PASSED_BY_HUMAN:
        checks = say("accepted_by_person", locale)
    elif not names:
        checks = say("note_unchecked", locale)
    else:
        checks = say("note_checked", locale, what=", ".join(names))
    runs = turn.attempt
    if turn.outcome is Outcome.PASSED_BY_FALLBACK:
        checks += say("note_repaired", locale)
    elif turn.outcome is Outcome.PASSED_AFTER_RETRY:
        checks += say("note_again", locale, count=turn.retries + 1)
    costs = [say("note_run" if runs == 1 else "note_runs", locale, count=runs)]
    if turn.tokens_used:
        costs.append(say("note_tokens", locale, count=_number(turn.tokens_used, locale)))
    if turn.cost_used:
        small = turn.cost_used < _CENT
        amount = _number(max(turn.cost_used, _CENT) / _DOLLAR, locale)
        costs.append(say("note_less_than" if small else "note_money", locale, amount=amount))
    return f"\n\n{_NOTE}\n\n*{checks}*  \n*{say('note_cost', locale, what=', '.join(costs))}*\n"


def _number(value: float, locale: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return text.translate({ord(","): ".", ord("."): ","}) if locale == "de" else text


def asking(question: ToolQuestion, link: str, locale: str) -> str:
    """The text in a chat that asks about a tool call; ``link`` is the whole address that answers."""
    words = question.words
    cut = words if len(words) <= _MOST_ASKED else f"{words[: _MOST_ASKED - 1]}…"
    what = _SPECIAL.sub(r"\\\1", cut)
    said = f"**{say('may_it', locale)}** {what}\n\n[{say('yes_or_no', locale)}]({link})"
    return f"\n\n{_ASKING}\n\n{said}\n\n"


def _name(each: LinkedFile) -> str:
    return _escaped(each.file.path)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _size(size: int) -> str:
    for unit in ("B", "kB", "MB"):
        if size < _KILO:
            return f"{size} {unit}"
        size = -(-size // _KILO)
    return f"{size} GB"
