"""Finds statements in an answer about the agent's work on files, tests and commands, in German and English.

Only statements about finished work count ("I created", "all tests pass"), no plans, conditions, denials or quotes.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.outline import Outline, lines_in_spans
from worker.enforcement.documents.step import strip_marker

Subject = Literal["file", "tests", "command", "files", "record"]

MOST_STATEMENTS, MOST_CHARS = 200, 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkStatement:
    """A statement in an answer about the agent's own work, such as "all tests pass".

    Attributes:
        what: the path, the command, or the identifier of a record in another system.
        passed: a good result is stated too.
        count: stated number of files or tests; 0 for none.
        some: the number covers only some of them ("the 3 new tests").
        vague: tests are not named ("everything passes").
    """

    subject: Subject
    said: str
    line: int
    what: str = ""
    passed: bool = False
    count: int = 0
    some: bool = False
    vague: bool = False


_W = SimpleNamespace(
    **{
        name: text.replace("\n", "")
        for name, text in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
    }
)


# Signs that mask inline code, one per character: a path, other code.
_PATH, _CODE = "\ue000", "\ue001"
_NAME = (
    rf"(?:~?/|\.{{1,2}}/)?(?:[\w.@+-]{{1,80}}/){{0,20}}[\w.@+-]{{0,80}}\.(?:{_W.endings})"
    rf"|(?:[\w.@+-]{{1,80}}/){{0,20}}(?:Dockerfile|Makefile)"
)
_IS_PATH = re.compile(rf"(?:{_NAME})(?!\w)(?::\d[\d:-]*)?")
_BARE_PATH = re.compile(rf"(?<![\w/.@:-])(?:{_NAME})(?![\w/(@-])(?!\.\w)")
#: Products that are named like files.
_PRODUCT = re.compile(r"(?:[A-Z][a-z]+\.(?:js|ts|go|py))|asp\.net|draw\.io", re.ASCII)
_INLINE = re.compile(r"(`{1,3})(?!`)([^`\n]{1,500})\1(?!`)")
_QUOTED = re.compile('"[^"\n]{1,300}"|[“„»«][^“”„»«\n]{1,300}[”“«»]')
_EMPHASIS = re.compile(r"\*\*|__|~~|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)")
#: The end of a clause, which also ends the reach of a condition or a denial.
_CLAUSE = re.compile(
    r"[.!?;](?=\s|$)|,?\s(?:but|however|though|although|aber|jedoch|allerdings|sondern|whereas|während)\s|\n\s*\|",
    re.IGNORECASE,
)

#: Words that leave open if something was done.
_OPEN = re.compile(rf"(?<![\w'’])(?:{_W.open_en}|{_W.open_de})(?!\w)", re.IGNORECASE)
_CONDITION = re.compile(r",\s*(?:damit|sodass|so dass|so that)\b", re.IGNORECASE)
#: Denials, except denials of a fault.
_DENIED = re.compile(
    r"(?<!\w)(?:not|nothing(?! else)|nichts|neither|nor|weder|noch nicht|never|cannot|no longer|unable|skip\w*"
    r"|fail(?:ed|s)? to|nicht|nie|niemals|statt|instead|rather|übersprung\w*"
    r"|without(?!\s+(?:any\s+)?(?:\w+\s+)?(?:error|failure|problem|issue|warning|complaint|finding|regression))"
    r"|ohne(?!\s+(?:\w+e\s+)?(?:Fehl|Problem|Warnung|Befund|Beanstandung|Ausfäll|Auffällig))"
    r"|no(?=\s+(?:\w+\s+)?(?:files?|changes?|commands?)\b)|no(?=\s+(?:\w+\s+)?tests?\s+(?:were|was|have|has|ran))|none"
    r"|kein\w*(?=\s+(?:\w+\s+)?(?:Datei|Änderung|Befehl|Tests?\s+(?:ausge|gelauf|lauf|gestart|durchgef)))"
    r"|some|most|almost|nearly|except|einige|manche|fast|beinahe|außer|die meisten)(?!\w)|n['’]t\b",
    re.IGNORECASE,
)
_AHEAD = re.compile(_W.ahead, re.IGNORECASE)

_NUMBERS = {
    word: number
    for number, names in enumerate(
        ("", "one ein eine einen", "two zwei beide both", "three drei", "four vier", "five fünf", "six sechs",
         "seven sieben", "eight acht", "nine neun", "ten zehn", "eleven elf", "twelve zwölf")
    )
    for word in names.split()
}  # fmt: skip
_N = rf"(?:\d{{1,6}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})(?![\w.%])"
_ICH = r"(?:ich\s+habe|habe\s+ich|hab\s+ich|ich\s+hab|wir\s+haben|haben\s+wir)"
_LABEL = (
    r"(?:(?:(?:new|created|added|generated|changed|modified|updated|edited|touched|neue?|erstellte?|angelegte?"
    r"|geänderte?|bearbeitete?"
    r"|aktualisierte?|angepasste?)\s+(?:files?|Datei(?:en)?)|(?:files?|Dateien?)\s+(?:I\s+)?(?:"
    + _W.done_en
    + "|"
    + _W.done_de
    + r")"
    r"|" + _W.done_en + "|" + _W.done_de + r"))(?:\s*\(\d+\))?"
)
_OWN_C = r"(?P<code>\ue001+)"


def _all(*patterns: str) -> list[re.Pattern[str]]:
    return [re.compile(pattern, re.IGNORECASE) for pattern in patterns]


_FILE = _all(
    rf"\b{_W.have}\s+(?:{_W.verbs})\b{_W.words_en}{_W.list}",
    rf"{_W.start}(?:(?:also|and|successfully|newly)\s+)?(?:{_W.verbs})\b(?!\s+by\b){_W.words_en}{_W.list}",
    rf"{_W.list}\)?\s+(?:(?:has|have)\s+(?:now\s+|also\s+|just\s+)?been|(?:was|were|is"
    rf"|are)(?:\s+now)?)\s+(?:\w+ly\s+|now\s+|also\s+)*(?:{_W.done_en})\b(?!\s+(?:by(?!\s+(?:me|us|hand"
    rf"|\w+ing)\b)|in\s+\d|on\s+\w+day|automatically|from)\b)",
    rf"{_W.start}(?:the\s+|die\s+|file\s+|Datei\s+)*{_W.list}\)?\s*(?:[:–—(-]|→|->|=>)\s*(?:now\s+|neu\s+"
    rf"|neue\s+)?(?:{_W.done_en}|{_W.done_de}|new|neu)\b",
    rf"{_W.start}(?:(?:die|neue|Datei|Modul|Skript)\s+)*{_W.list}\s+(?:\w+\s+){{0,4}}(?:{_W.done_de})\b",
    rf"{_W.start}{_LABEL}\s*[:–—]\s*{_W.list}",
    rf"\b{_ICH}\b{_W.words_de}{_W.list}[^?;\ue000]{{0,90}}?\b(?:{_W.done_de})\b",
    rf"\b{_ICH}\b[^?;]{{0,60}}\b(?:{_W.done_de})\s*:\s*{_W.list}",
    rf"{_W.start}(?:habe|hab|haben)\s+(?:ich\s+|wir\s+)?{_W.words_de}{_W.list}[^?;\ue000]{{0,90}}?\b(?:{_W.done_de})\b",
    rf"{_W.start}(?:die\s+|neue\s+|Datei\s+|Modul\s+)*{_W.list}\s*[:–—-]\s*(?:[\w-]+\s+){{0,5}}?(?:{_W.done_de})\b",
    rf"{_W.list}\)?\s+(?:habe\s+ich|haben\s+wir)\s+[^?;\ue000]{{0,70}}?\b(?:{_W.done_de})\b",
    rf"{_W.list}\)?\s+(?:wurden?|ist|sind)\s+(?!von\b)(?:\w+\s+){{0,5}}?(?:{_W.done_de})\b",
    rf"\bwurden?\s+(?:(?:\w+\s+){{0,2}}?(?:in|die|Datei|das"
    rf"|Modul)\s+)?{_W.list}\)?\s+(?!von\b)(?:\w+\s+){{0,5}}?(?:{_W.done_de})\b",
    rf"\bin\s+{_W.list}\s+(?:wurden?|ist|sind)\s+[^?;\ue000]{{0,70}}?\b(?:{_W.done_de})\b",
)
_FURTHER = _all(
    rf"(?:,|\band\b|&)\s+(?:and\s+|also\s+|then\s+|I\s+)*(?:{_W.verbs})\b{_W.words_en}{_W.list}",
    rf"(?:,|\bund\b|\bsowie\b)\s+(?:habe\s+)?{_W.words_de}{_W.list}[^?;\ue000]{{0,90}}?\b(?:{_W.done_de})\b",
)
_OWN = re.compile(rf"\b(?:{_W.have}|{_ICH})\b|{_W.start}(?:(?:{_W.verbs})\b|habe\b)", re.IGNORECASE)
_TESTS_PASS = _all(
    rf"\b(?:(?P<count>{_N})\s*(?:/|of(?:\s+the)?|out\s+of|von|der)\s*(?P<total>{_N}))\s+(?:of\s+the\s+"
    rf"|der\s+)?{_W.test_adj}(?:{_W.tests}\s+)?{_W.be}{_W.green}\b",
    rf"(?:\b{_W.all})?(?:(?:the|die|der|these|diese|my|meine|our"
    rf"|unsere)\s+)?(?:\b(?P<count>{_N})\s+)?(?P<adj>{_W.test_adj})\b{_W.tests}\s+(?:in\s+\ue000+\s+)?{_W.be}{_W.green}\b",
    rf"\b(?:laufen|bestehen|sind|waren|liefen|gehen|gingen|läuft|ist|lief"
    rf"|besteht)\s+(?:\w+\s+){{0,2}}?(?:{_W.all})?(?:die\s+)?(?:(?P<count>{_N})\s+)?(?P<adj>{_W.test_adj})\b"
    rf"{_W.tests}\s+{_W.be}{_W.green}\b",
    rf"\bbestehen\s+(?:jetzt\s+|nun\s+|wieder\s+"
    rf"|damit\s+)?(?:{_W.all})?(?:die\s+)?(?:(?P<count>{_N})\s+)?(?P<adj>{_W.test_adj})\b{_W.tests}\b",
    rf"\b{_W.tests}\s*(?::|=>|→|->|–|—)\s*(?:(?P<count>\d{{1,6}})\s+)?(?:all\s+|alle\s+)?(?:{_W.green}|ok)\b",
    rf"\b(?P<count>\d{{1,6}})\s+(?:{_W.tests}\s+)?(?:passed|passing|bestanden)\b",
    rf"\b{_W.tests}\b[^?;]{{0,40}}?\b(?:they|it|everything|alles)\s+{_W.be}{_W.green}\b",
    rf"\b(?:pytest|unittest|jest|vitest|mocha|tox|nox|ctest|rspec|phpunit)\s+{_W.be}{_W.green}\b",
    rf"\b(?P<vague>everything|all(?:\s+checks)?|alles|alle\s+(?:Prüfungen|Checks))\s+{_W.be}(?:pass(?:es|ed|ing)?|green|grün"
    r"|bestanden|besteht|durch(?:gelaufen)?)\b(?!\s+(?:through|by|to|on|the|an?)\b)",
    r"\b(?:no|zero|0)\s+(?:test\s+)?(?:failures|failing\s+tests|failed\s+tests|broken\s+tests)\b"
    r"|\bno\s+tests?\s+fail(?:ed|s)?\b",
    rf"\bkein(?:e|er|en)?\s+(?:der\s+)?(?:{_N}\s+)?(?:fehlgeschlagenen?\s+|roten?\s+)?(?:Tests?"
    rf"|Testfehler)\b(?:\s+(?:schlägt|schlug|ist|sind|schlagen)\s+(?:\w+\s+)?(?:fehl|rot|fehlgeschlagen))?",
)  # fmt: skip
_TESTS_RUN = _all(
    rf"\b{_W.have}\s+(?:re-?)?(?:ran|run|executed|launched|started)\s+(?:(?:all|the|my|of|our"
    rf"|both)\s+)*(?:(?P<count>{_N})\s+)?{_W.test_adj}{_W.tests}\b",
    rf"{_W.start}(?:re-?)?(?:ran|executed)\s+(?:(?:all|the|my|of|our"
    rf"|both)\s+)*(?:(?P<count>{_N})\s+)?{_W.test_adj}{_W.tests}\b",
    rf"\b{_W.tests}\s+(?:were|was|have\s+been|has\s+been)\s+(?:all\s+|now\s+|also\s+)?(?:re-?)?(?:run|executed)\b",
    rf"\b{_ICH}\b[^?;\ue001]{{0,50}}?\b(?:(?P<count>{_N})\s+)?{_W.test_adj}{_W.tests}\b[^?;]{{0,40}}?\b{_W.run_de}\b",
    rf"{_W.start}(?:die\s+|alle\s+)*(?:(?P<count>{_N})\s+)?{_W.test_adj}{_W.tests}\s+(?:wurden\s+|wurde\s+"
    rf"|sind\s+)?(?:\w+\s+){{0,2}}?{_W.run_de}\b",
)
_COMMAND_PASSES = _all(
    rf"{_OWN_C}\s*(?:[:–—(-]|→|->|=>)?\s*(?:it\s+|und\s+|and\s+)?{_W.command}",
    rf"\b(?:{_W.have}\s+(?:re-?)?(?:ran|run|executed)|{_W.start}(?:ran"
    rf"|executed))\s+(?:the\s+)?(?:command\s+)?{_OWN_C}\s*[,:(]?\s*(?:and\s+)?(?:it\s+|which\s+"
    rf"|everything\s+)?{_W.command}",
    rf"\b{_ICH}\b[^?;\ue001]{{0,40}}?{_OWN_C}\s+(?:\w+\s+){{0,3}}?(?:erfolgreich|fehlerfrei|ohne\s+Fehler)\s+{_W.run_de}",
    rf"\b(?:erfolgreich|successfully)\s+(?:ran|executed|run|ausgeführt)\s*:?\s*{_OWN_C}",
)
_COMMAND_RUN = _all(
    rf"\b{_W.have}\s+(?:re-?)?(?:ran|run|executed)\s+(?:the\s+)?(?:command\s+|tests?\s+with\s+|suite\s+with\s+)?{_OWN_C}",
    rf"{_W.start}(?:re-?)?(?:ran|executed)\s+(?:the\s+)?(?:command\s+)?{_OWN_C}",
    rf"{_OWN_C}\s+(?:was|has\s+been)\s+(?:re-?)?(?:run|executed)\b",
    rf"\b{_ICH}\b[^?;\ue001]{{0,60}}?{_OWN_C}[^?;]{{0,50}}?\b{_W.run_de}\b",
    rf"{_W.start}{_OWN_C}\s+(?:wurde\s+)?{_W.run_de}\b",
    rf"\bwurde\s+(?:\w+\s+){{0,2}}?{_OWN_C}\s+(?:\w+\s+){{0,3}}?{_W.run_de}\b",
)
#: Records of other systems, such as tickets: verbs and nouns that go together, and the identifier after the noun.
_RECORD = _all(
    *(
        rf"{own}(?:{verbs})\s+{_W.record_words}(?P<noun>{nouns}){_W.record_end}"
        for verbs, nouns in ((_W.filed, _W.tickets), (_W.sent, _W.messages), (_W.booked, _W.meetings))
        for own in (rf"\b{_W.have}\s+", rf"{_W.start}(?:successfully\s+)?")
    ),
    *(
        rf"{own}(?:[\w-]+\s+){{0,4}}?(?P<noun>{nouns})\b[^?;,]{{0,40}}?\b(?:{verbs})\b"
        for verbs, nouns in ((_W.filed_de, _W.tickets_de), (_W.sent_de, _W.messages_de), (_W.booked_de, _W.meetings_de))
        for own in (rf"\b{_ICH}\s+", rf"{_W.start}(?:habe\s+)?(?=[^.]*(?:{verbs})\W*$)")
    ),
)
_RECORD_NAME = re.compile(r"[\s*_`\"'(\[:]*(?:#(?=\d))?((?:[A-Za-z][A-Za-z0-9_]*-|(?<=#))\d{1,9}\b|\d{2,9}\b(?!\s+\w))")
_SOME_FILES = r"(?P<adj>(?:[\w-]+\s+){0,2}?)"
_FILES = _all(
    rf"\b{_W.have}\s+(?:{_W.verbs})\s+(?:a\s+total\s+of\s+|exactly\s+"
    rf"|in\s+total\s+)?(?P<count>{_N})\s+{_SOME_FILES}files\b",
    rf"{_W.start}(?:{_W.verbs})\s+(?:a\s+total\s+of\s+|exactly\s+)?(?P<count>{_N})\s+{_SOME_FILES}files\b",
    rf"\b(?P<count>{_N})\s+{_SOME_FILES}files\s+(?:were\s+|have\s+been\s+)?(?:\w+ly\s+)?(?:{_W.done_en})\b",
    rf"\b{_ICH}\b(?:\s+(?:insgesamt|genau|dabei|dafür|dazu|nun|jetzt|hier"
    rf"|also))*\s+(?P<count>{_N})\s+{_SOME_FILES}Dateien\b[^?;]{{0,50}}?\b(?:{_W.done_de})\b",
    rf"\b(?P<count>{_N})\s+{_SOME_FILES}Dateien\s+(?:(?:wurden|sind|habe\s+ich"
    rf"|haben\s+wir)\s+)?(?:\w+\s+){{0,2}}?(?:{_W.done_de})\b",
    rf"{_W.start}(?:files?\s+(?:{_W.done_en})|(?:geänderte|neue|angelegte|erstellte)\s+Dateien"
    rf"|Dateien\s+(?:{_W.done_de}))\s*[:=]\s*(?P<count>\d{{1,4}})(?!\w)",
)
_FAILS, _APART = _all(_W.fails, _W.apart)
_OTHERS, _FIRST_PERSON = _all(_W.others, r"\b(?:I|we|ich|wir)\b")
#: Words between a number and "files" that leave the number a total.
_ANY_FILES = frozenset(
    {"", "new", "neue", "source", "different", "verschiedene", "weitere", "further", "more", "changed"}
)
_SUBSET = re.compile(r"\b(?:new|added|other|remaining|neuen?|übrigen|anderen|unit|integration|e2e)\b", re.IGNORECASE)
#: Kinds of tests that may pass while others fail.
_OTHER_TESTS = re.compile(r"\b(?:other|remaining|übrigen|anderen|restlichen)\b", re.IGNORECASE)


#: The line before a list of created or changed files.
_IS_LABEL = re.compile(rf"{_W.start}{_LABEL}\s*:?\s*$|\b(?:{_W.done_en}|{_W.done_de}|{_W.verbs})\b.*:$", re.IGNORECASE)
#: Words without one of which a paragraph makes no statement.
_HINT = re.compile(
    rf"{_W.done_en}|{_W.done_de}|{_W.verbs}|test|suite|spec|pass|green|grün|durch|bestanden|`|neue? "
    rf"|new |{_W.filed}|{_W.sent}|{_W.booked}|{_W.filed_de}|{_W.sent_de}|{_W.booked_de}",
    re.IGNORECASE,
)


def find_statements(answer: str) -> list[WorkStatement]:
    """Return the statements about the agent's work in an answer, in order, up to ``MOST_STATEMENTS``."""
    found: list[WorkStatement] = []
    for text, first in _paragraphs(parse_document(strip_marker(answer)).out):
        found += _claims(_Paragraph(text, first))
        if len(found) >= MOST_STATEMENTS:
            break
    return found[:MOST_STATEMENTS]


def find_named_paths(answer: str) -> list[str]:
    """Return the paths of the files that an answer says were created or changed."""
    return list(dict.fromkeys(claim.what for claim in find_statements(answer) if claim.subject == "file"))


def _paragraphs(out: Outline) -> Iterator[tuple[str, int]]:
    """Yield text and line number of each paragraph that may report finished work. Skip quotes, code and plans."""
    hidden, ends = lines_in_spans(out.quotes, out.fenced, out.indented, out.headers, out.html), out.section_ends()
    for heading, end in zip(out.headings, ends, strict=True):
        if _AHEAD.search(heading.title):
            hidden |= set(range(heading.line, end))
    lead, titles = "", [heading.line for heading in out.headings]
    for start, end in out.paragraphs:
        text = "\n".join(out.lines[start:end]).strip("\r")
        item = re.match(r"\s*(?:[-*+]|\d{1,3}[.)])\s+(\[[ xX]\])?", text)
        if not item:
            at = bisect_left(titles, start) - 1
            title = out.headings[at].title if at >= 0 and not out.lines[titles[at] + 1 : start] else ""
            plain = _EMPHASIS.sub("", text).strip()
            lead = plain if plain.endswith(":") else title
        if start in hidden or (item and (item[1] == "[ ]" or _AHEAD.search(lead))):
            continue
        if item and _IS_LABEL.search(lead) and _starts_with_path(text[item.end() :].strip().strip("`*[")):
            text = f"{' ' * item.end()}Created: {text[item.end() :]}"
        if _HINT.search(text):
            yield text[:MOST_CHARS], start + 1


def _starts_with_path(text: str) -> bool:
    found = _IS_PATH.match(text)
    return found is not None and not text[found.end() : found.end() + 1].isalnum()


class _Paragraph:
    def __init__(self, text: str, first: int) -> None:
        self.text, self.first = text, first
        masked = _INLINE.sub(_sign, text)
        masked = _QUOTED.sub(lambda found: "\ue002" * len(found[0]), masked)
        masked = _BARE_PATH.sub(
            lambda found: found[0] if _PRODUCT.fullmatch(found[0]) else _PATH * len(found[0]), masked
        )
        self.masked = _EMPHASIS.sub(lambda found: " " * len(found[0]), masked).replace("’", "'")

    def line_at(self, place: int) -> int:
        return self.first + self.text.count("\n", 0, place)

    def clauses(self) -> Iterator[tuple[int, int, str]]:
        start = 0
        for found in _CLAUSE.finditer(self.masked):
            yield start, found.start(), found[0].strip()
            start = found.end()
        yield start, len(self.masked), ""


def _sign(found: re.Match[str]) -> str:
    inside = found[2].strip()
    sign = _PATH if _IS_PATH.fullmatch(inside) else _CODE
    return sign * len(found[0])


def _claims(paragraph: _Paragraph) -> Iterator[WorkStatement]:
    for start, end, stop in paragraph.clauses():
        clause = paragraph.masked[start:end]
        if stop == "?" or not clause.strip():
            continue
        seen: set[tuple[Subject, str, bool]] = set()
        for claim in _of_clause(paragraph, clause, start):
            key = (claim.subject, claim.what, claim.passed)
            if key not in seen:
                seen.add(key)
                yield claim


def _of_clause(paragraph: _Paragraph, clause: str, start: int) -> Iterator[WorkStatement]:
    said = " ".join(paragraph.text[start : start + len(clause)].split())

    def claim(subject: Subject, found: re.Match[str], **values: object) -> WorkStatement:
        line = paragraph.line_at(start + found.start() + len(found[0]) - len(found[0].lstrip()))
        return WorkStatement(subject=subject, said=said, line=line, **values)  # type: ignore[arg-type]

    further = (found for found in _found(_FURTHER, clause) if _OWN.search(clause, 0, found.start()))
    for found in (*_found(_FILE, clause), *further):
        others = _OTHERS.search(clause, found.start()) and not _FIRST_PERSON.search(clause)
        if not (others or _is_open(clause[: found.end()])):
            for path in re.finditer("\ue000+", found["paths"]):
                at = start + found.start("paths") + path.start()
                name = re.sub(r":\d[\d:-]*$", "", paragraph.text[at : at + len(path[0])].strip("`").strip())
                yield claim("file", found, what=name)
    if _is_open(clause):
        return
    for found in _found(_FILES, clause):
        some = found.groupdict().get("adj", "") or ""
        yield claim("files", found, count=_number(found["count"]), some=some.strip().lower() not in _ANY_FILES)
    passes = next(_found(_TESTS_PASS, clause), None)
    if passes is not None:
        groups = passes.groupdict()
        count, total = _number(groups.get("count")), _number(groups.get("total"))
        admits = _FAILS.search(paragraph.masked) or _APART.search(paragraph.masked) or _OTHER_TESTS.search(passes[0])
        values = {"count": 0 if count == 1 else count, "some": bool(_SUBSET.search(passes[0]))}
        values |= {"passed": not admits and total <= count, "vague": bool(groups.get("vague"))}
        yield claim("tests", passes, **values)
    elif (ran := next(_found(_TESTS_RUN, clause), None)) is not None:
        yield claim("tests", ran, count=_number(ran.groupdict().get("count")))
    for patterns, passed in ((_COMMAND_PASSES, True), (_COMMAND_RUN, False)):
        for found in _found(patterns, clause):
            at = start + found.start("code")
            what = paragraph.text[at : at + len(found["code"])].strip("`").strip()
            if _is_command(what, was_run=not passed):
                yield claim("command", found, what=what, passed=passed)
    yield from _find_records(paragraph, clause, start, claim)


def _find_records(
    paragraph: _Paragraph, clause: str, start: int, claim: Callable[..., WorkStatement]
) -> Iterator[WorkStatement]:
    for found in _found(_RECORD, clause):
        if _FIRST_PERSON.search(clause) or not _OTHERS.search(clause, found.start()):
            named = _RECORD_NAME.match(paragraph.text, start + found.end("noun"))
            yield claim("record", found, what=named[1].upper() if named else "")


def _found(patterns: Sequence[re.Pattern[str]], clause: str) -> Iterator[re.Match[str]]:
    for pattern in patterns:
        yield from pattern.finditer(clause)


def _is_open(clause: str) -> bool:
    return bool(_OPEN.search(clause) or _DENIED.search(clause) or _CONDITION.search(clause))


def _number(word: str | None) -> int:
    if not word:
        return 0
    return int(word) if word.isdecimal() else _NUMBERS.get(word.lower(), 0)


_PROGRAMS = frozenset({
    "ansible", "bash", "biome", "black", "bun", "bundle", "cargo", "cmake", "composer", "ctest", "deno",
    "docker", "dotnet", "eslint", "flake8", "git", "go", "gradle", "gradlew", "helm", "jest", "just",
    "kubectl", "make", "meson", "mvn", "mypy", "ninja", "node", "nox", "npm", "npx", "php",
    "phpunit", "pip", "pnpm", "poetry", "prettier", "pre-commit", "pylint", "pyright", "pytest", "python", "python3",
    "rake", "ruby", "ruff", "rustc", "sh", "swift", "terraform", "tox", "tsc", "ty", "uv",
    "vite", "vitest", "yarn", "zig",
})  # fmt: skip


def _is_command(text: str, *, was_run: bool) -> bool:
    """Return True if inline code is a command: a known program or, if the text says it ``was_run``, any plain word."""
    words = text.split()
    first = next((word for word in words if "=" not in word), "")
    known = first.rpartition("/")[2] in _PROGRAMS or first.startswith("./")
    plain = re.fullmatch(r"[a-z][\w./-]*", first) is not None and not text.endswith(")")
    return known or (was_run and plain)
