"""The forms in which obedient models send what they were asked for: prose around, fences, headings of all kinds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.lab.bench.economy.answers import Answer

_BEFORE = {
    "de": ("Gern, hier ist die Ergänzung:", "Hier die fehlenden Teile:", "Entschuldigung, das fehlte noch:"),
    "en": ("Sure, here is the missing part:", "Here are the corrections:", "Sorry, this was missing:"),
}
_AFTER = {
    "de": ("Der Rest bleibt unverändert.", "Alles andere ist, wie es war.", "Sag Bescheid, wenn noch etwas fehlt."),
    "en": ("The rest stays as it is.", "Everything else is unchanged.", "Let me know if anything else is missing."),
}
_WHOLE = {"de": "Hier ist die vollständige Antwort:", "en": "Here is the complete answer:"}
#: The titles that MADR and Nygard give two of the required sections, by our own title.
_SYNONYMS = {
    "Context": "Context and Problem Statement",
    "Decision": "Decision Outcome",
    "Kontext": "Context",
    "Entscheidung": "Decision",
    "Akzeptanzkriterien": "Acceptance Criteria",
    "Acceptance Criteria": "Akzeptanzkriterien",
}


@dataclass(frozen=True, slots=True)
class Named:
    """A section that was asked for: the title in the feedback, the answer's own title for it, and its body."""

    asked: str
    own: str
    body: str


def _plain(one: Named) -> str:
    return f"## {one.asked}"


#: How a heading may be written.
_HEADINGS: tuple[Callable[[Named], str], ...] = (
    _plain,
    lambda one: f"## {one.own}:",
    lambda one: f"## **{one.own}**",
    lambda one: f"### {one.own}",
    lambda one: f"## 2. {one.own}",
    lambda one: f"## ✅ {one.own}",
    lambda one: f"## [{one.own}](#{one.own.lower().replace(' ', '-')})",
    lambda one: f"## {_SYNONYMS.get(one.own, one.own)}",
    lambda one: f"## {one.own.upper()}",
)


def some(good: Answer, frames: Sequence[str], header: bool, named: Sequence[Named], marker: bool, form: int) -> str:
    """The parts in one of the forms; ``form`` is any number from 0."""
    heading = _HEADINGS[form % len(_HEADINGS)]
    sections = [f"{heading(one)}\n\n{one.body}" for one in named]
    if not frames:
        return f"{_pick(_BEFORE, good, form)}\n\n{_bare(good, header, sections, marker)}\n"
    if len(named) == 1 and not header and not marker and form % 4 == 3:
        text = _bare(good, header, sections, marker)
        return (text if form % 8 == 3 else _fence(text, "markdown")) + "\n"
    return _WRAPS[form % len(_WRAPS)](good, "\n".join(frames), form) + "\n"


def _fence(text: str, info: str) -> str:
    ticks = "````" if "```" in text else "```"
    return f"{ticks}{info}\n{text}\n{ticks}"


def _bare(good: Answer, header: bool, sections: Sequence[str], marker: bool) -> str:
    blocks = [good.head() if header else "", *sections, good.marker if marker else ""]
    return "\n\n".join(block for block in blocks if block)


def _pick(said: Mapping[str, tuple[str, ...]], good: Answer, form: int) -> str:
    return said[good.lang][form % len(said[good.lang])]


#: How frames may be sent.
_WRAPS: tuple[Callable[[Answer, str, int], str], ...] = (
    lambda good, frames, form: frames,
    lambda good, frames, form: f"{_pick(_BEFORE, good, form)}\n\n{frames}",
    lambda good, frames, form: f"{_pick(_BEFORE, good, form)}\n\n{frames}\n\n{_pick(_AFTER, good, form)}",
    lambda good, frames, form: _fence(frames, ("xml", "", "markdown")[form % 3]),
    lambda good, frames, form: f"{frames}\n\n{_pick(_AFTER, good, form)}",
)


def whole(good: Answer, form: int) -> str:
    """The whole answer in one of the forms."""
    text = good.text()
    if form % 3 == 0:
        return text
    if form % 3 == 1:
        return f"{_WHOLE[good.lang]}\n\n{text}"
    return f"{_WHOLE[good.lang]}\n\n{_fence(text.rstrip(), 'markdown')}\n"


def going_on(quoted: str, rest: str, form: int) -> str:
    """The rest of an answer in one of the forms: from the first quoted line, from the last one, or quoted again."""
    last = quoted.rsplit("\n", 1)[-1]
    return (quoted + rest, last + rest, f"> {last}{rest}", f"\n{last}{rest}")[form % 4]
