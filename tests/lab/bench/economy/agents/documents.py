"""Documents whose first answer lacks a part: real ones without a section, and the broken ADRs of the economy bench."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, zip_longest
from pathlib import Path

from tests.lab.bench.economy.corpus import cases
from tests.lab.bench.economy.play import NAMES
from worker.enforcement import Accept, ResponseValidator, Retry, build_validators, decide_next, validate_attempt
from worker.enforcement.documents.content import is_filled
from worker.enforcement.documents.outline import parse_outline
from worker.enforcement.rules import StructureRule

#: The documents of this repository.
OURS = Path(__file__).parents[5] / "docs"
_SIZES = range(800, 25_000)
_FRAME = re.compile(r"^(<part id=\"[\w-]+\">)\n(.*?)\n</part>$", re.DOTALL | re.MULTILINE)
_MARKER = re.compile(r"<!-- STEP: .*? -->")
_LIKE_FRAMES = re.compile(r"</?part\b")


@dataclass(frozen=True)
class Document:
    """A document, the first answer that lacks a part of it, and the rules that notice this."""

    name: str
    good: str
    first: str
    rules: Sequence[ResponseValidator]
    lang: str = "en"


@dataclass(frozen=True, slots=True)
class Section:
    """A section of level 2: its title, the number of its heading's line, and that of the line behind it."""

    title: str
    start: int
    end: int


def list_sections(text: str) -> list[Section]:
    out = parse_outline(text)
    tops = [heading for heading in out.headings if heading.top and heading.level <= 2]
    ends = [*(heading.line for heading in tops[1:]), len(out.lines)]
    return [
        Section(heading.title, heading.line, end)
        for heading, end in zip(tops, ends, strict=True)
        if heading.level == 2 and "\n" not in heading.title and is_filled(out, heading.line + 1, end)
    ]


def find_frames(feedback: str) -> list[tuple[str, str]]:
    """Return the opening tag and the sketch of each frame that a feedback shows."""
    return _FRAME.findall(feedback)


def fill_frame(good: str, sketch: str) -> str:
    """Return the part of a document for a frame, by the sketch in the frame."""
    lines = good.split("\n")
    if sketch.startswith("##"):
        title = sketch.partition("\n")[0].strip("# ")
        found = next((each for each in list_sections(good) if each.title == title), None)
        return f"## {title}\n\n" + ("\n".join(lines[found.start + 1 : found.end]).strip("\n") if found else "")
    if sketch.startswith("<!--"):
        return find_marker(good)
    opened = lines.index("---")
    header = lines[opened : lines.index("---", opened + 1) + 1]
    if sketch.startswith("---"):
        return "\n".join(header)
    key = sketch.partition(":")[0]
    start = next(n for n, line in enumerate(header) if line.startswith(f"{key}:"))
    end = next(n for n in range(start + 1, len(header)) if not header[n].startswith(" "))
    return "\n".join(header[start:end])


def find_marker(good: str) -> str:
    return _MARKER.findall(good)[-1]


def answer_obediently(document: Document, feedback: str) -> str:
    """Return exactly what a feedback asks for."""
    frames = [f"{tag}\n{fill_frame(document.good, sketch)}\n</part>" for tag, sketch in find_frames(feedback)]
    return "\n".join(frames) or find_marker(document.good)


def list_documents(count: int, root: Path, folders: Iterable[Path] = ()) -> list[Document]:
    """Return documents that code restores to the byte from an exact reply: two of three are real ones."""
    paths = [path for folder in folders or [OURS] for path in folder.rglob("*.md")]
    paths.sort(key=lambda path: sha256(path.name.encode()).digest())
    mixed = zip_longest(_real(paths), _real(paths, skip=1), _made(root))
    found: list[Document] = []
    for each in filter(None, chain.from_iterable(mixed)):
        if _is_restored(each) and all(each.first != one.first for one in found):
            found.append(each)
        if len(found) == count:
            return found
    raise SystemExit(f"there are only {len(found)} documents for {count} different first answers")


def _real(paths: Sequence[Path], skip: int = 0) -> Iterator[Document]:
    """Yield documents with one or two sections empty, or without one; a round over all files for each section."""
    texts = [(path, path.read_text(errors="replace")) for path in paths[skip::2]]
    fit = [(path, text, list_sections(text)) for path, text in texts if len(text) in _SIZES]
    for turn in range(max((len(sections) for *_, sections in fit), default=0)):
        for number, (path, text, sections) in enumerate(fit):
            if turn >= len(sections):
                continue
            kind = (number + turn) % 3
            chosen = sections[-1:] if kind == 1 else sections[turn : turn + 1 + kind // 2]
            keeps = 0 if kind == 1 else 1
            lines, title = text.split("\n"), ", ".join(each.title for each in chosen)
            for each in reversed(chosen):
                lines[each.start + keeps : each.end] = [""] * keeps
            rules = (StructureRule(sections=tuple(each.title for each in chosen)),)
            fault = "section missing" if not keeps else "section empty" if len(chosen) == 1 else "two sections empty"
            yield Document(f"{path.name}, {title}: {fault}", text, "\n".join(lines), rules)


def _made(root: Path) -> Iterator[Document]:
    rules = build_validators(NAMES, root=root)
    for case in sorted(cases(), key=lambda case: (abs(case.size - 1500), case.number)):
        if case.complete and case.kind != "warnings_only":
            yield Document(case.name, case.good.text(), case.first, rules, case.good.lang)


def _is_restored(document: Document) -> bool:
    context = {"locale": document.lang}
    history = [validate_attempt([], document.first, document.rules, context)]
    decision = decide_next(history)
    if not isinstance(decision, Retry) or _LIKE_FRAMES.search(document.good):
        return False
    reply = answer_obediently(document, decision.feedback)
    history.append(validate_attempt(history, reply, document.rules, context, feedback=decision.feedback))
    return isinstance(decide_next(history), Accept) and history[-1].answer == document.good
