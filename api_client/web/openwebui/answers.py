"""An answer as a page of Open WebUI shows it: its YAML headers, why there is none, and what we put around it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from api_client.contract.error_codes import ERROR_CODES, sentence, words_of
from api_client.contract.events import TurnFinished
from api_client.contract.issues import TurnError, ValidationIssue, error_codes
from api_client.contract.marker import fence_after
from api_client.contract.tool_calls import ToolQuestion
from api_client.contract.turn import Outcome, Turn
from api_client.turns.turn_files import LinkedFile
from api_client.web.errors import say

# The YAML headers of an answer, each inside a fence: Markdown takes the text above a line of dashes for a heading.
# ``fenced`` puts two lines around a header; ``unfenced`` takes exactly these away again, from what a chat sends back.
# Four back quotes: no agent writes such a fence. Any header at the beginning counts; further down only that of a
# further ADR, behind an empty line and outside of code.

_TICKS = "````"
_OPEN, _CLOSE = f"{_TICKS}yaml\n", f"\n{_TICKS}"
_KEY = r"[A-Za-z_][\w-]{0,60}[ \t]{0,9}:"
_RULE = re.compile(r"---[ \t]{0,9}\r?")
_BEGIN = re.compile(rf"\s{{0,99}}(?={_RULE.pattern}\n{_KEY})")
#: What may still become the beginning of a header when more text comes.
_MAYBE = re.compile(r"\s{0,99}(?:-{1,3}|---[ \t]{0,9}\r?(?:\n(?:[A-Za-z_][\w-]{0,60}[ \t]{0,9})?)?)?\Z")
_CLOSING = re.compile(rf"\n{_RULE.pattern}(?=\n|\Z)")
_FENCED = re.compile(rf"\s{{0,99}}(?={_OPEN}---)")
_FENCE_END = re.compile(rf"\n{_RULE.pattern}(\n{_TICKS})(?=\n|\Z)")
#: How the header of a further ADR begins, behind its line of dashes.
_ADR = "adr_id:"
_GAP = r"\n[ \t]{0,99}\r?\n"
_EMPTY_LINE = re.compile(_GAP)
_FURTHER = re.compile(rf"{_GAP}(?={_RULE.pattern}\n{_ADR})")
_FURTHER_FENCED = re.compile(rf"{_GAP}(?={_OPEN}{_RULE.pattern}\n{_ADR})")
_FURTHER_BEGIN = re.compile(rf"{_RULE.pattern}\n{_ADR}")
_FURTHER_MAYBE = re.compile(
    r"(?:-{1,3}|---[ \t]{0,9}\r?(?:\n(?:" + "|".join(_ADR[:size] for size in range(len(_ADR) - 1, 0, -1)) + r")?)?)\Z"
)
#: Represents the closing line of a header: not empty, no fence.
_RULE_LINE = "---"
_CODE = re.compile(r"^[ \t>]{0,32}(?:[-*+][ \t]{1,4})?(?:`{3,}|~{3,}).*$", re.MULTILINE)
#: Of a line so much is read to see whether it is empty, or a fence.
_LINE_CHARS = 200


def fenced(text: str) -> str:
    """The text with each of its YAML headers inside a fence."""
    shown, done = [], 0
    for start, end in _headers(text):
        shown += [text[done:start], _OPEN, text[start:end], _CLOSE]
        done = end
    return "".join([*shown, text[done:]])


def _headers(text: str) -> list[tuple[int, int]]:
    """Return where the headers stand: from the first line of dashes to the end of the second."""
    begin = _BEGIN.match(text)
    first = _closed(text, begin.end()) if begin else None
    found, done, code = ([first], first[1], "") if first else ([], 0, "")
    fences = _CODE.finditer(text, done)
    fence = next(fences, None)
    for gap in _FURTHER.finditer(text, done) if _ADR in text else ():
        while fence and fence.start() < gap.end():
            if fence.start() >= done:
                code = fence_after(code, fence[0][:_LINE_CHARS])[0]
            fence = next(fences, None)
        header = _closed(text, gap.end()) if not code and gap.end() >= done else None
        if header and not _EMPTY_LINE.search(text, *header):
            found.append(header)
            done = header[1]
    return found


def _closed(text: str, start: int) -> tuple[int, int] | None:
    """The header that begins at ``start``; None when it does not end, or would end the fence."""
    end = _CLOSING.search(text, start)
    return (start, end.end()) if end and _TICKS not in text[start : end.end()] else None


def unfenced(text: str) -> str:
    """The text that ``fenced`` was given; also of one that was stopped inside a header."""
    kept: list[str] = []
    done, begin = 0, _FENCED.match(text) or _FURTHER_FENCED.search(text)
    while begin:
        kept.append(text[done : begin.end()])
        done = begin.end() + len(_OPEN)
        if end := _FENCE_END.search(text, done):
            kept.append(text[done : end.start(1)])
            done = end.end(1)
        begin = _FURTHER_FENCED.search(text, done)
    return "".join([*kept, text[done:]])


class GrowingHeader:
    """A text that comes in pieces, each header fenced as soon as it is known to be one."""

    def __init__(self) -> None:
        self._held = ""  # what may become the beginning of a header
        self._inside = self._begun = False
        self._line = ""  # the beginning of the last line so far; inside a header that line whole
        self._code, self._empty = "", False  # the fence that is open; the line before is empty

    def feed(self, piece: str) -> str:
        """Add a piece; returns what the reader sees more."""
        if self._inside:
            return self._through(piece)
        if self._begun:
            return self._on(piece)
        self._held += piece
        if begin := _BEGIN.match(self._held):
            self._begun, text = True, self._held
            return text[: begin.end()] + self._opened(text[begin.end() :])
        if _MAYBE.match(self._held):
            return ""
        self._begun, text, self._held = True, self._held, ""
        return self._on(text)

    def _opened(self, text: str) -> str:
        self._inside, self._held, self._line = True, "", ""
        return _OPEN + self._through(text)

    def _through(self, piece: str) -> str:
        """Header text; behind its closing line, which ends with this piece or within it, the fence closes."""
        text = self._line + piece
        end = _CLOSED.search(text)
        if end is None:
            self._line = text[max(text.rfind("\n"), 0) :]
            return piece
        shown = text[len(self._line) : end.end(1)] + _CLOSE
        self._inside, self._line, self._empty = False, _RULE_LINE, False
        return shown + self._on(text[end.end(1) :])

    def _on(self, piece: str) -> str:
        """Text behind a header, or of an answer without one: held back where a further header may begin."""
        shown: list[str] = []
        text, self._held = self._held + piece, ""
        while text:
            if not self._line and self._empty and not self._code:
                if _FURTHER_BEGIN.match(text):
                    return "".join([*shown, self._opened(text)])
                if _FURTHER_MAYBE.match(text):
                    self._held = text
                    break
            line, end, text = text.partition("\n")
            shown.append(line + end)
            self._line = (self._line + line)[:_LINE_CHARS]
            if end:
                self._empty = not self._line.strip()
                self._code, self._line = fence_after(self._code, self._line)[0], ""
        return "".join(shown)


#: The closing line with its end: before that, more of the line may come.
_CLOSED = re.compile(rf"(\n{_RULE.pattern})\n")


# The failure text for a user of a chat: one plain paragraph, because Open WebUI shows a box of text. What happened,
# what was wrong with the last answer, what to do now; names for administrators come last. Programs get the form of
# ADR-038 instead (``streaming.reply``).

#: Most different faults that are named.
_MOST = 6
#: Endings for which asking again helps, or asking differently; every other has its advice in the table of codes.
_ADVICE = {"failed": "ask_differently", "incomplete": "ask_again", "expired": "ask_less", "cancelled": "ask_again"}


def failure_text(end: TurnFinished, locale: str, turn_id: str) -> str:
    """The text for a turn that ended without an answer.

    ``locale``: of the text; the issues have the turn's. The turn is named, not linked: its page wants a sign-in.
    """
    error, outcome = end.error or TurnError(), end.outcome
    code = error.code
    issues = [issue for issue in error.issues if issue.is_error]
    kind = code if code in ERROR_CODES else outcome if outcome in ERROR_CODES else "error"
    happened, advice = words_of(kind, locale)
    if kind == "failed":
        happened = say("failed_all" if end.attempts > 1 else "failed", locale, attempts=end.attempts)
    details = _found(issues, locale) if outcome == "failed" else ""
    if kind in {"incomplete", "rejected", "refused"}:
        details = _last_reason(error.message)
        if kind == "refused":  # that the model did is said already
            details = re.sub(r"\A(?:The model refused|Es sagte)(?:: |\.\Z)", "", details)
    if kind in _ADVICE:
        advice = say(_ADVICE[kind], locale)
    return " ".join(filter(None, [happened, details, advice, _names(issues, turn_id)]))


def lost_text(code: str, locale: str, turn_id: str) -> str:
    """The text for a stream that ends before its turn (``stream_lost``, ``turn_parked``): how to get the answer."""
    if code not in {"stream_lost", "turn_parked"}:
        return sentence(code, locale)
    return f"{words_of(code, locale)[0]} {say(f'{code}_advice', locale)} {_names((), turn_id)}"


def _found(issues: Sequence[ValidationIssue], locale: str) -> str:
    """Each fault once, with where it was found, or how often."""
    places: dict[str, list[str]] = {}
    for issue in issues:
        places.setdefault(issue.message.strip().rstrip("."), []).append(issue.adr or issue.file)
    faults = [_with_places(message, where) for message, where in places.items() if message]
    if not faults:
        return ""
    more = [say("and_more", locale, count=len(faults) - _MOST)] if len(faults) > _MOST else []
    return say("found", locale, faults="; ".join([*faults[:_MOST], *more]))


def _with_places(message: str, where: list[str]) -> str:
    named = [name for name in dict.fromkeys(where) if name and name not in message]
    if named:
        return f"{message} ({', '.join(named)})"
    return f"{message} ({len(where)}×)" if len(where) > 1 else message


def _last_reason(message: str) -> str:
    """The reason that a turn's own message gives in its last list entry."""
    reasons = [line.removeprefix("- ").strip() for line in message.splitlines() if line.startswith("- ")]
    return f"{reasons[-1][:1].upper()}{reasons[-1][1:].rstrip('.: ')}." if reasons else ""


def _names(issues: Sequence[ValidationIssue], turn_id: str) -> str:
    """Return what an administrator asks for: the codes, and the turn."""
    codes = filter(None, error_codes(issues))
    return f"({', '.join([*codes, turn_id])})"


# What we put around an answer in a chat, and the answer without it when the chat sends it back.

#: Markdown that is drawn as nothing: the lines behind it are ours, up to the first other one.
_MARK = "[//]: # (helix-files)"
_ATTACHED = re.compile(r"\n{0,2}" + re.escape(_MARK) + r"\n(?:\n|(?:- \[|!\[)[^\n]*(?:\n|\Z))*")
#: As ``_MARK``, for one question: a link, which is in front of the answer or between drafts.
_ASKING = "[//]: # (helix-question)"
_ASKED = re.compile(
    r"\n{0,2}" + re.escape(_ASKING) + r"\n\n\*\*[^\n]*\n\n(`{3,})text\n.*?\n\1\n\n[^\n]*\n{0,2}", re.DOTALL
)
#: Characters of a line in a block of code, beyond which a chat shows a part of it only; what a call is cut into.
_LINE, _PART = 100, re.compile(r"⟦[^⟧]*⟧|[^⟦]{1,100}")
_GOES_ON = "⟦…⟧"
#: As ``_MARK``, for the one or two lines of a note.
_NOTE = "[//]: # (helix-note)"
_NOTED = re.compile(r"\n{0,2}" + re.escape(_NOTE) + r"\n\n\*[^\n]*\*(?:  \n\*[^\n]*\*)?(?:\n|\Z)")
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#!|&~])")
_FORMULA = re.compile(r"[()\[\]$\\]")
_KILO = 1024
_MOST_FILES = 20
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
    shown = list(files)[:_MOST_FILES]
    if not shown:
        return ""
    images = [f"![{_escaped(each.file.path)}]({address}{each.link})\n" for each in shown if each.file.is_image]
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
    checks += f"; {say('note_unused', locale, count=turn.unused)}" if turn.unused else ""
    return f"\n\n{_NOTE}\n\n*{checks}*  \n*{say('note_cost', locale, what=', '.join(costs))}*\n"


def unused_noted(turn: Turn, locale: str) -> str:
    """The line below an answer that says how many calls a person allowed and the agent never made; empty for none."""
    return f"\n\n{_NOTE}\n\n*{say('note_unused', locale, count=turn.unused)}*\n" if turn.unused else ""


def _number(value: float, locale: str) -> str:
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return text.translate({ord(","): ".", ord("."): ","}) if locale == "de" else text


def asking(question: ToolQuestion, link: str, locale: str) -> str:
    """The text in a chat that asks about a tool call: all of it, as code; ``link`` is the address that answers."""
    call = "\n".join(map(_broken, question.text.split("\n")))
    fence = _fence(call, 3)
    said = f"**{say('may_it', locale)}**\n\n{fence}text\n{call}\n{fence}\n\n[{say('yes_or_no', locale)}]({link})"
    return f"\n\n{_ASKING}\n\n{said}\n\n"


def _broken(line: str) -> str:
    """A line as several, each but the last with a sign that it goes on."""
    lines = [""]
    for part in _PART.findall(line):
        if lines[-1] and len(lines[-1]) + len(part) > _LINE:
            lines.append("")
        lines[-1] += part
    return f"{_GOES_ON}\n".join(lines)


def _fence(text: str, least: int) -> str:
    """Back quotes that no row of them in the text ends."""
    return "`" * max(least, *(len(row) + 1 for row in re.findall("`+", text)), 0)


def _name(each: LinkedFile) -> str:
    """A file's name; as code where Open WebUI would draw an escaped bracket of it as the begin of a formula."""
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
