"""The judge of the judge: regular expressions and ``yaml.safe_load``, nothing of ``worker.enforcement``."""

import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.lab.bench.economy.answers import facts

STEPS = "what|why|constraints|generate|finalize|done"
_MARKER = re.compile(rf"^<!-- STEP: ({STEPS}|unknown) -->[ \t]*$", re.IGNORECASE | re.MULTILINE)
_FENCE = re.compile(r"^(`{3,}|~{3,})[^\n]*\n.*?(?:^\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_HEADER = re.compile(r"^---\n(.*?)\n---$", re.DOTALL | re.MULTILINE)
_DOCUMENT = re.compile(r"^(`{3,}|~{3,})(?:markdown|md)\n(.*?)\n\1[ \t]*$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"^# ADR-\d", re.MULTILINE)
_NAMES = {
    "Kontext": r"(?:Kontext|Context)\b",
    "Entscheidung": r"(?:Entscheidung|Decision)\b",
    "Akzeptanzkriterien": r"(?:Akzeptanzkriterien|Acceptance Criteria)\b",
}


def problems(text: str, *, is_adr: bool, root: Path) -> list[str]:
    """What is wrong with an answer that passed; empty when it is good."""
    found = [] if _MARKER.search(_FENCE.sub("", text)) else ["no marker"]
    text = unwrapped(text)
    return found + (_adr_problems(_FENCE.sub("", text), text, root) if is_adr else [])


def unwrapped(text: str) -> str:
    """The text with an ADR that stands in a ```markdown fence taken out of it."""
    return _DOCUMENT.sub(lambda found: found[2] if _TITLE.search(found[2]) else found[0], text)


def _adr_problems(plain: str, text: str, root: Path) -> list[str]:
    found = []
    if len(_TITLE.findall(plain)) != 1:
        found.append(f"{len(_TITLE.findall(plain))} titles")
    if plain.count("adr_id") != 1:
        found.append(f"adr_id {plain.count('adr_id')} times")
    for name, pattern in _NAMES.items():
        # A heading may carry marks of its own: a number, bold, a link, a sign.
        bodies = re.findall(
            rf"^## [^\w\n]*(?:\d+\W+)?{pattern}[^\n]*\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
        )
        if len(bodies) != 1:
            found.append(f"section {name} {len(bodies)} times")
        elif not _MARKER.sub("", bodies[0]).strip():
            found.append(f"section {name} empty")
    return found + _header_problems(plain, root)


def _header_problems(plain: str, root: Path) -> list[str]:
    header = _HEADER.search(plain)
    if not header:
        return ["no header"]
    try:
        data = yaml.safe_load(header[1])
    except yaml.YAMLError:
        return ["header is no YAML"]
    if not isinstance(data, dict):
        return ["header is no mapping"]
    found = [f"no {field}" for field in ("adr_id", "title", "status") if not data.get(field)]
    files = data.get("files") or {}
    modify = files.get("modify") or [] if isinstance(files, dict) else [""]
    base = root.resolve()
    for path in modify:
        target = (base / str(path)).resolve()
        if not target.is_relative_to(base) or not target.is_file():
            found.append(f"path {path}")
    return found


def lost(told: Sequence[str], answer: str) -> set[str]:
    """The sentences that stood in a text of the turn and not in its answer."""
    return {fact for text in told for fact in facts(text)} - facts(answer)


def never_written(told: Sequence[str], answer: str, good: str) -> set[str]:
    """The sentences of the good answer that stood in no text of the turn, and not in the answer either."""
    return facts(good) - {fact for text in told for fact in facts(text)} - facts(answer)
