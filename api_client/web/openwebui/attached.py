"""Add links, notes and questions to a chat answer, and remove them when the chat sends the answer back."""

from __future__ import annotations

import re
from collections.abc import Iterable

from api_client.contract.turn import Outcome, Turn
from api_client.interruptions.question import QuestionView
from api_client.interruptions.registry import recap_of
from api_client.turns.turn_files import LinkedFile
from api_client.web.words import say

#: Invisible Markdown in front of the links that we add.
_MARK = "[//]: # (helix-files)"
_ATTACHED = re.compile(r"\n{0,2}" + re.escape(_MARK) + r"\n(?:\n|(?:- \[|!\[)[^\n]*(?:\n|\Z))*")
#: Invisible Markdown in front of a question.
_ASKING = "[//]: # (helix-question)"
_ASKED = re.compile(
    r"\n{0,2}" + re.escape(_ASKING) + r"\n\n\*\*[^\n]*\n\n(`{3,})text\n.*?\n\1\n\n[^\n]*\n{0,2}", re.DOTALL
)
#: Longest line that a chat shows whole in a block of code; the parts that a longer line is cut into.
_LINE, _PART = 100, re.compile(r"⟦[^⟧]*⟧|[^⟦]{1,100}")
_GOES_ON = "⟦…⟧"
#: Invisible Markdown in front of a note.
_NOTE = "[//]: # (helix-note)"
_NOTED = re.compile(r"\n{0,2}" + re.escape(_NOTE) + r"\n\n\*[^\n]*\*(?:  \n\*[^\n]*\*)?(?:\n|\Z)")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#!|&~])")
_FORMULA = re.compile(r"[()\[\]$\\]")
_KILO = 1024
_MOST_FILES = 20
#: Rules that have a phrase in notes; a note names any other rule by its name.
_RULES = frozenset({
    "adr_structure", "citations", "claims", "code", "file_existence", "forbidden", "language", "length", "links",
    "step_marker", "structure",
})  # fmt: skip
_CENT, _DOLLAR = 10_000, 1_000_000


def attached(files: Iterable[LinkedFile], address: str) -> str:
    """Return Markdown that shows the images among an answer's files and links to every file.

    Args:
        address: public address of the relay, without a trailing slash.
    """
    shown = list(files)[:_MOST_FILES]
    if not shown:
        return ""
    images = [f"![{_escaped(each.file.path)}]({address}{each.link})\n" for each in shown if each.file.is_image]
    links = [f"- [{_name(each)}]({address}{each.link}) ({_size(each.file.size)})\n" for each in shown]
    return "".join(["\n\n", _MARK, "\n\n", *images, "\n" if images else "", *links])


def detached(text: str) -> str:
    """Return an answer without the links, notes and questions that the relay added to it."""
    text = _NOTED.sub("", text) if _NOTE in text else text
    text = _ASKED.sub("", text) if _ASKING in text else text
    return _ATTACHED.sub("", text) if _MARK in text else text


def noted(turn: Turn, locale: str) -> str:
    """Return the note below an accepted answer, with the checks that it passed and the cost of its turn."""
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
    checks += f"; {recap}" if (recap := recap_of(turn, locale)) else ""
    return f"\n\n{_NOTE}\n\n*{checks}*  \n*{say('note_cost', locale, what=', '.join(costs))}*\n"


def recap_noted(turn: Turn, locale: str) -> str:
    """Return the note about a question that the turn asked a person, or an empty string if it asked none."""
    recap = recap_of(turn, locale)
    return f"\n\n{_NOTE}\n\n*{recap}*\n" if recap else ""


def _number(value: float, locale: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return text.translate({ord(","): ".", ord("."): ","}) if locale == "de" else text


def asking(question: QuestionView, link: str) -> str:
    """Return Markdown that shows a question in a chat, with a link to answer it."""
    whole = "\n".join(map(_broken, question.chat.split("\n")))
    fence = _fence(whole, 3)
    said = f"**{question.title}**\n\n{fence}text\n{whole}\n{fence}\n\n[{question.link}]({link})"
    return f"\n\n{_ASKING}\n\n{said}\n\n"


def _broken(line: str) -> str:
    lines = [""]
    for part in _PART.findall(line):
        if lines[-1] and len(lines[-1]) + len(part) > _LINE:
            lines.append("")
        lines[-1] += part
    return f"{_GOES_ON}\n".join(lines)


def _fence(text: str, least: int) -> str:
    """Return a row of backticks that is longer than any in the text and has at least ``least``."""
    return "`" * max(least, *(len(row) + 1 for row in re.findall("`+", text)), 0)


def _name(each: LinkedFile) -> str:
    """Return a file's name as Markdown, as code if Open WebUI would take its brackets for a formula."""
    name = " ".join(each.file.path.split())
    if not _FORMULA.search(name):
        return _escaped(name)
    ticks = _fence(name, 1)
    return f"{ticks} {name} {ticks}" if "`" in name else f"{ticks}{name}{ticks}"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _size(size: int) -> str:
    for unit in ("B", "kB", "MB"):
        if size < _KILO:
            return f"{size} {unit}"
        size = -(-size // _KILO)
    return f"{size} GB"
