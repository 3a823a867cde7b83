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
_GOES_ON = {"de": "Gern, hier geht es weiter:", "en": "Sure, continuing where I stopped:"}
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


def some(good: Answer, header: bool, named: Sequence[Named], marker: bool, form: int) -> str:
    """The parts in one of the forms; ``form`` is any number from 0."""
    heading = _HEADINGS[form % len(_HEADINGS)]
    if len(named) == 1 and not header and form % 5 == 3:
        sections = [named[0].body]  # the body alone
    else:
        sections = [f"{heading(one)}\n\n{one.body}" for one in named]
    wrap = _WRAPS[form % len(_WRAPS)]
    text = wrap(good, header, sections, marker, form)
    return text + "\n"


def _fence(text: str, info: str) -> str:
    ticks = "````" if "```" in text else "```"
    return f"{ticks}{info}\n{text}\n{ticks}"


def _bare(good: Answer, header: bool, sections: Sequence[str], marker: bool) -> str:
    blocks = [good.head() if header else "", *sections, good.marker if marker else ""]
    return "\n\n".join(block for block in blocks if block)


def _before(good: Answer, header: bool, sections: Sequence[str], marker: bool, form: int) -> str:
    return f"{_pick(_BEFORE, good, form)}\n\n{_bare(good, header, sections, marker)}"


def _around(good: Answer, header: bool, sections: Sequence[str], marker: bool, form: int) -> str:
    after = _pick(_AFTER, good, form)
    parts = _bare(good, header, sections, False)
    text = f"{_pick(_BEFORE, good, form)}\n\n{parts}" if parts else _pick(_BEFORE, good, form)
    if sections and not marker:
        return f"{text}\n\n---\n\n{after}"
    return f"{text}\n\n{good.marker}" if marker else f"{text}\n\n{after}"


def _one_fence(good: Answer, header: bool, sections: Sequence[str], marker: bool, form: int) -> str:
    return _fence(_bare(good, header, sections, marker), ("markdown", "", "md", "html")[form % 3])


def _fence_after_prose(good: Answer, header: bool, sections: Sequence[str], marker: bool, form: int) -> str:
    return f"{_pick(_BEFORE, good, form)}\n\n{_one_fence(good, header, sections, marker, form)}"


def _fence_between_prose(good: Answer, header: bool, sections: Sequence[str], marker: bool, form: int) -> str:
    inside = _bare(good, header, sections, marker and not header and not sections)
    text = f"{_pick(_BEFORE, good, form)}\n\n{_fence(inside, 'markdown')}\n\n{_pick(_AFTER, good, form)}"
    return f"{text}\n\n{good.marker}" if marker and (header or sections) else text


def _fence_each(good: Answer, header: bool, sections: Sequence[str], marker: bool, form: int) -> str:
    """Each part in a fence, the header as YAML (with or without its ``---`` lines), prose between."""
    blocks = [_pick(_BEFORE, good, form)]
    if header:
        blocks.append(_fence(good.header if form % 2 else good.head(), "yaml"))
    for section in sections:
        blocks += [_pick(_BEFORE, good, form + 1), _fence(section, "markdown")]
    blocks.append(good.marker if marker else _pick(_AFTER, good, form))
    return "\n\n".join(blocks)


def _pick(said: Mapping[str, tuple[str, ...]], good: Answer, form: int) -> str:
    return said[good.lang][form % len(said[good.lang])]


_WRAPS = (
    lambda good, header, sections, marker, form: _bare(good, header, sections, marker),
    _before,
    _around,
    _one_fence,
    _fence_after_prose,
    _fence_between_prose,
    _fence_each,
)


def whole(good: Answer, form: int) -> str:
    """The whole answer in one of the forms."""
    text = good.text()
    if form % 3 == 0:
        return text
    if form % 3 == 1:
        return f"{_WHOLE[good.lang]}\n\n{text}"
    return f"{_WHOLE[good.lang]}\n\n{_fence(text.rstrip(), 'markdown')}\n"


def going_on(quoted: str, rest: str, form: int, lang: str) -> str:
    """The rest of an answer in one of the forms: exact, with the quoted lines again, with a word before, in a fence."""
    last = quoted.rsplit("\n", 1)[-1]
    forms = (
        rest,
        quoted + rest,
        last + rest,
        f"{_GOES_ON[lang]}\n\n{quoted}{rest}",
        f"{_GOES_ON[lang]}\n\n{last}{rest}",
        f"{_GOES_ON[lang]}\n\n{_fence((quoted + rest).rstrip(), 'markdown')}\n",
    )
    return forms[form % len(forms)]
