"""Adds links, notes and questions to a chat answer, and removes them when the chat sends the answer back."""

from __future__ import annotations

import re
from collections.abc import Iterable

from api_client.contract.turn import Outcome, Turn
from api_client.interruptions.question import QuestionView
from api_client.interruptions.registry import summarise_turn_questions
from api_client.turns.turn_files import LinkedFile
from api_client.web.sentences import translate

_FILES_COMMENT = "[//]: # (helix-files)"
_FILES_BLOCK = re.compile(r"\n{0,2}" + re.escape(_FILES_COMMENT) + r"\n(?:\n|(?:- \[|!\[)[^\n]*(?:\n|\Z))*")
_QUESTION_COMMENT = "[//]: # (helix-question)"
_QUESTION_BLOCK = re.compile(
    r"\n{0,2}" + re.escape(_QUESTION_COMMENT) + r"\n\n\*\*[^\n]*\n\n(`{3,})text\n.*?\n\1\n\n[^\n]*\n{0,2}", re.DOTALL
)
#: Longest line that a chat shows uncut in a code block, and the pieces into which a longer line is cut.
_LINE, _PART = 100, re.compile(r"⟦[^⟧]*⟧|[^⟦]{1,100}")
_LINE_CONTINUES = "⟦…⟧"
_NOTE_COMMENT = "[//]: # (helix-note)"
_NOTE_BLOCK = re.compile(r"\n{0,2}" + re.escape(_NOTE_COMMENT) + r"\n\n\*[^\n]*\*(?:  \n\*[^\n]*\*)?(?:\n|\Z)")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#!|&~])")
_FORMULA = re.compile(r"[()\[\]$\\]")
_KILO = 1024
_MAX_FILES = 20
#: Rules that have a phrase in notes; a note names any other rule by its name.
_RULES = frozenset({
    "adr_structure", "citations", "claims", "code", "file_existence", "forbidden", "language", "length", "links",
    "step_marker", "structure",
})  # fmt: skip
_CENT, _DOLLAR = 10_000, 1_000_000


def format_file_links(files: Iterable[LinkedFile], address: str) -> str:
    """Return Markdown that shows an answer's images and links to all its files.

    ``address`` is the relay's public address, without a trailing slash.
    """
    shown = list(files)[:_MAX_FILES]
    if not shown:
        return ""
    images = [f"![{_escape_markdown(each.file.path)}]({address}{each.link})\n" for each in shown if each.file.is_image]
    links = [f"- [{_format_name(each)}]({address}{each.link}) ({_format_size(each.file.size)})\n" for each in shown]
    return "".join(["\n\n", _FILES_COMMENT, "\n\n", *images, "\n" if images else "", *links])


def strip_additions(text: str) -> str:
    """Return an answer without the links, notes and questions that the relay added."""
    text = _NOTE_BLOCK.sub("", text) if _NOTE_COMMENT in text else text
    text = _QUESTION_BLOCK.sub("", text) if _QUESTION_COMMENT in text else text
    return _FILES_BLOCK.sub("", text) if _FILES_COMMENT in text else text


def format_note(turn: Turn, locale: str) -> str:
    """Return the note below an accepted answer about its passed checks and the turn's cost."""
    names = [
        translate(f"rule_{name}", locale) if name in _RULES else _escape_markdown(name)
        for name in turn.request.validators
    ]
    if turn.outcome is Outcome.PASSED_BY_HUMAN:
        checks = translate("accepted_by_person", locale)
    elif not names:
        checks = translate("note_unchecked", locale)
    else:
        checks = translate("note_checked", locale, what=", ".join(names))
    runs = turn.attempt
    if turn.outcome is Outcome.PASSED_BY_FALLBACK:
        checks += translate("note_repaired", locale)
    elif turn.outcome is Outcome.PASSED_AFTER_RETRY and turn.retries:  # not only runs that broke off
        checks += translate("note_again", locale, count=turn.retries + 1)
    costs = [translate("note_run" if runs == 1 else "note_runs", locale, count=runs)]
    if turn.tokens_used:
        costs.append(translate("note_tokens", locale, count=_format_number(turn.tokens_used, locale)))
    if turn.cost_used:
        small = turn.cost_used < _CENT
        amount = _format_number(max(turn.cost_used, _CENT) / _DOLLAR, locale)
        costs.append(translate("note_less_than" if small else "note_money", locale, amount=amount))
    checks += f"; {recap}" if (recap := summarise_turn_questions(turn, locale)) else ""
    return f"\n\n{_NOTE_COMMENT}\n\n*{checks}*  \n*{translate('note_cost', locale, what=', '.join(costs))}*\n"


def format_recap_note(turn: Turn, locale: str) -> str:
    """Return the note about questions that the turn asked people, or an empty string if it asked none."""
    recap = summarise_turn_questions(turn, locale)
    return f"\n\n{_NOTE_COMMENT}\n\n*{recap}*\n" if recap else ""


def _format_number(value: float, locale: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return text.translate({ord(","): ".", ord("."): ","}) if locale == "de" else text


def format_question(question: QuestionView, link: str) -> str:
    """Return Markdown that shows a question in a chat, with a link for answering it."""
    whole = "\n".join(map(_break_line, question.chat.split("\n")))
    fence = _choose_fence(whole, 3)
    said = f"**{question.title}**\n\n{fence}text\n{whole}\n{fence}\n\n[{question.link}]({link})"
    return f"\n\n{_QUESTION_COMMENT}\n\n{said}\n\n"


def _break_line(line: str) -> str:
    lines = [""]
    for part in _PART.findall(line):
        if lines[-1] and len(lines[-1]) + len(part) > _LINE:
            lines.append("")
        lines[-1] += part
    return f"{_LINE_CONTINUES}\n".join(lines)


def _choose_fence(text: str, least: int) -> str:
    return "`" * max(least, *(len(row) + 1 for row in re.findall("`+", text)), 0)


def _format_name(each: LinkedFile) -> str:
    name = " ".join(each.file.path.split())
    if not _FORMULA.search(name):
        return _escape_markdown(name)
    ticks = _choose_fence(name, 1)
    return f"{ticks} {name} {ticks}" if "`" in name else f"{ticks}{name}{ticks}"


def _escape_markdown(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _format_size(size: int) -> str:
    for unit in ("B", "kB", "MB"):
        if size < _KILO:
            return f"{size} {unit}"
        size = -(-size // _KILO)
    return f"{size} GB"
