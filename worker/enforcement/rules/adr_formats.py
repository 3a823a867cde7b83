"""Parts of real architecture decision records: status, context, options, decision, consequences.

Reads MADR 2 to 4, Nygard's form, Y-statements and arc42's decisions, in English and German.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from api_client.contract.word_tables import load_word_table
from worker.enforcement.documents.content import is_filled, visible_lines
from worker.enforcement.documents.document import Document
from worker.enforcement.documents.header_lines import parse_mapping
from worker.enforcement.documents.outline import BOM, lines_in_spans
from worker.enforcement.documents.placeholders import is_placeholder
from worker.enforcement.documents.titles import list_title_forms

_TABLE = load_word_table(__file__)
#: Preset -> the parts that it wants, in their usual order.
PRESETS: Mapping[str, tuple[str, ...]] = {name: tuple(parts) for name, parts in _TABLE["presets"].items()}
#: Preset -> the parts whose absence is a warning.
OPTIONAL: Mapping[str, frozenset[str]] = {name: frozenset(_TABLE["optional"].get(name, ())) for name in PRESETS}
ANY_FORM = "adr"
STATUS, CONTEXT, DECISION = "status", "context", "decision"
#: Parts whose heading may stand below another part, such as MADR's ``### Consequences``.
_ANY_LEVEL = frozenset((STATUS, "consequences", "options"))
_PART_OF: Mapping[str, Mapping[str, str]] = {
    language: {title: part for part, titles in parts.items() for title in titles}
    for language, parts in _TABLE["titles"].items()
}
#: A line that begins with a label: ``* Status: accepted``, ``**Status:** accepted``, ``| Status | accepted |``.
_LABEL = re.compile(
    r"[ \t>]{0,8}(?:[-*+][ \t]+|\d{1,3}[.)][ \t]+)?(?P<row>\|[ \t]*)?(?P<bold>\*\*|__|[*_])?"
    r"(?P<label>[^\W\d_][^\n:|*]{0,60}?)[ \t]{0,20}(?P=bold)?[ \t]{0,20}(?:(?(row)\||:)|:[*_]{1,2})"
    r"(?P<value>[^\n]{0,400})"
)
#: The clauses of a Y-statement, by language, and the most characters between two of them.
_CLAUSES = [
    [re.compile(rf"\b(?:{'|'.join(map(re.escape, phrases))})\b", re.IGNORECASE) for phrases in clauses]
    for clauses in _TABLE["y_statement"].values()
]
_MOST_BETWEEN = 900
_MARKS = re.compile(r"[*_`>]")
#: Separates the choices of a status that nobody has chosen: "proposed | accepted | superseded".
_OR = re.compile(r"\s*\|\s*|\s+/\s+")
#: Lines in which labels and Y-statements are searched for.
_MOST_LINES = 400


@dataclass(frozen=True, slots=True)
class AdrPart:
    """A part of an ADR: its line (from 0), the title of its heading, and whether it has content."""

    line: int
    filled: bool
    title: str = ""


def find_adr_parts(document: Document, preset: str) -> dict[str, list[AdrPart]]:
    """Find the parts of an ADR (status, context, ...) in a document, and return their positions by name.

    ``preset`` is a key of ``PRESETS``.
    """
    header_end = _header_end(document)
    named = list(_find_headings(document, header_end))
    first = min((part.line for name, part in named if name != STATUS), default=_MOST_LINES)
    found: dict[str, list[AdrPart]] = {}
    for name, part in (*named, *_find_labels(document, header_end, first), *_find_key(document, header_end)):
        found.setdefault(name, []).append(part)
    lacks = [name for name in (CONTEXT, DECISION) if name not in found]
    if preset == ANY_FORM and lacks and (line := _find_y_statement(document)) is not None:
        found |= {name: [AdrPart(line, filled=True)] for name in lacks}
    return found


def is_adr(document: Document) -> bool:
    """Return True if a text is an ADR of any format: it has a decision, and a status or a context."""
    found = find_adr_parts(document, ANY_FORM)
    return DECISION in found and not found.keys().isdisjoint((STATUS, CONTEXT))


def choose_part_title(preset: str, name: str, document: Document) -> str:
    """Return the title under which to request a missing part, in the language of the document's other titles."""
    forms = [list_title_forms(heading.title) for heading in document.out.headings]
    known = {
        language: sum(any(form in titles for form in each) for each in forms) for language, titles in _PART_OF.items()
    }
    return str(_TABLE["asked"][preset]["de" if known["de"] > known["en"] else "en"][name])


def _part_of(title: str) -> str | None:
    return next(
        (titles[form] for form in list_title_forms(title) for titles in _PART_OF.values() if form in titles), None
    )


def _find_headings(document: Document, header_end: int) -> Iterator[tuple[str, AdrPart]]:
    out, inside = document.out, 0
    for heading, end in zip(out.headings, out.section_ends(), strict=True):
        if not heading.top or heading.line < header_end or not (name := _part_of(heading.title)):
            continue
        if heading.line < inside and name not in _ANY_LEVEL:
            continue
        filled = is_filled(out, heading.line + 1, end)
        if name == STATUS:
            below = next((line for _, line in visible_lines(out, heading.line + 1, end)), "")
            filled = _is_status(heading.title.partition(":")[2].strip() or below)
        else:
            inside = max(inside, end)
        yield name, AdrPart(heading.line, filled, heading.title)


def _is_status(value: str) -> bool:
    value = value.partition("|")[0] if ":" in value else value
    return len(_OR.split(value)) <= 2 and not is_placeholder(value.strip(" \t\r*_|>"), state=True)


def _find_labels(document: Document, start: int, end: int) -> Iterator[tuple[str, AdrPart]]:
    out = document.out
    code = lines_in_spans(out.fenced, out.indented)
    labels = []
    for number in range(start, min(end, len(out.lines))):
        label = None if number in code else _LABEL.match(out.lines[number])
        name = _part_of(label["label"]) if label else None
        if label and name and (name == STATUS or label["bold"] in ("**", "__")):
            labels.append((number, name, label["value"].strip(" \t\r*_|")))
    ends = [*(number for number, _, _ in labels[1:]), min(end, len(out.lines))]
    for (number, name, value), below in zip(labels, ends, strict=bool(labels)):
        filled = _is_status(value) if name == STATUS else not is_placeholder(value)
        yield name, AdrPart(number, filled or (name != STATUS and is_filled(out, number + 1, below)))


def _header_end(document: Document) -> int:
    lines = document.out.lines
    if lines[0].removeprefix(BOM).rstrip() != "---":
        return 0
    return next((n + 1 for n, line in enumerate(lines[:_MOST_LINES]) if n and line.rstrip() == "---"), 0)


def _find_key(document: Document, header_end: int) -> Iterator[tuple[str, AdrPart]]:
    root = parse_mapping("\n".join(document.out.lines[1 : header_end - 1])) if header_end else None
    for key, value in root.pairs if root is not None else ():
        if key.value.casefold() == STATUS and value.kind == "scalar":
            yield STATUS, AdrPart(key.line + 1, _is_status(value.value))


def _find_y_statement(document: Document) -> int | None:
    text = _MARKS.sub(" ", "\n".join(document.out.lines[:_MOST_LINES]))
    for first, *others in _CLAUSES:
        for begins in first.finditer(text):
            at = begins.end()
            for clause in others:
                found = clause.search(text, at, at + _MOST_BETWEEN)
                at = found.end() if found else 0
                if not found:
                    break
            if at:
                return text.count("\n", 0, begins.start())
    return None
