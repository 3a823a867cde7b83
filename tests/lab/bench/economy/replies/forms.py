"""The forms in which models send one section: those that are taken, and those that are asked for again."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_TRANSLATED = {
    "Entscheidung": "Decision",
    "Decision": "Entscheidung",
    "Kontext": "Context",
    "Context": "Kontext",
    "Akzeptanzkriterien": "Acceptance Criteria",
    "Acceptance Criteria": "Akzeptanzkriterien",
    "Decision Outcome": "Decision",
}
_SAYS = {
    "de": ("Hier ist die fehlende Section:", "Der Rest der Antwort bleibt unverändert."),
    "en": ("Here is the missing section:", "The rest of the answer stays unchanged."),
    "fr": ("Voici la section manquante :", "Le reste est inchangé."),
    "es": ("Aquí está la sección que faltaba:", "El resto queda igual."),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A section that was asked for: its frame's tag, title, body and language, and the answer around its place."""

    tag: str
    title: str
    body: str
    lang: str
    before: str = ""
    after: str = ""

    @property
    def before_it(self) -> str:
        return _SAYS[self.lang][0]

    @property
    def behind_it(self) -> str:
        return _SAYS[self.lang][1]


def heading(one: Asked, form: str = "## {}") -> str:
    return f"{form.format(one.title)}\n\n{one.body}"


def framed(one: Asked, text: str) -> str:
    return f"{one.tag}\n{text}\n</part>"


def fence(text: str, info: str = "markdown") -> str:
    mark = "````" if "```" in text else "```"
    return f"{mark}{info}\n{text}\n{mark}"


def _whole(one: Asked) -> str:
    return f"{one.before}{heading(one)}\n\n{one.after}"


#: A form that is taken without another question.
TAKEN: Mapping[str, Callable[[Asked], str]] = {
    "frame": lambda one: framed(one, heading(one)),
    "frame, level 3": lambda one: framed(one, heading(one, "### {}")),
    "frame, bold title": lambda one: framed(one, heading(one, "**{}**")),
    "frame, fence inside": lambda one: framed(one, fence(heading(one))),
    "frame in a fence": lambda one: fence(framed(one, heading(one)), "xml"),
    "frame, said around": lambda one: f"{one.before_it}\n\n{framed(one, heading(one))}\n\n{one.behind_it}",
    "frame in one line": lambda one: (
        framed(one, heading(one)).replace(f"{one.tag}\n", one.tag).replace("\n</part>", "</part>")
    ),
    "frame, crlf": lambda one: framed(one, heading(one)).replace("\n", "\r\n"),
    "frame, single quotes": lambda one: framed(one, heading(one)).replace('"', "'", 2),
    "heading": heading,
    "heading, colon": lambda one: heading(one, "## {}:"),
    "heading, bold": lambda one: heading(one, "## **{}**"),
    "heading, number": lambda one: heading(one, "## 2. {}"),
    "heading, level 3": lambda one: heading(one, "### {}"),
    "heading, level 1": lambda one: heading(one, "# {}"),
    "heading, capitals": lambda one: f"## {one.title.upper()}\n\n{one.body}",
    "heading, translated": lambda one: f"## {_TRANSLATED.get(one.title, one.title)}\n\n{one.body}",
    "heading, underlined": lambda one: f"{one.title}\n{'-' * len(one.title)}\n\n{one.body}",
    "heading, no blank": lambda one: f"##{one.title}\n\n{one.body}",
    "bold line": lambda one: heading(one, "**{}**"),
    "bold label": lambda one: f"**{one.title}:** {one.body}",
    "fence": lambda one: fence(heading(one)),
    "fence, no word": lambda one: fence(heading(one), ""),
    "fence, said around": lambda one: f"{one.before_it}\n\n{fence(heading(one))}\n\n{one.behind_it}",
    "whole": _whole,
    "whole, fence": lambda one: fence(_whole(one)),
}
#: A form without the heading, or without a clear end: nothing of it enters, and the part is asked for again.
ASKED_AGAIN: Mapping[str, Callable[[Asked], str]] = {
    "body": lambda one: one.body,
    "body, said around": lambda one: f"{one.before_it}\n\n{one.body}\n\n{one.behind_it}",
    "heading, said before": lambda one: f"{one.before_it}\n\n{heading(one)}",
    "heading, said behind": lambda one: f"{heading(one)}\n\n{one.behind_it}",
    "frame, no heading": lambda one: framed(one, one.body),
    "another frame": lambda one: framed(one, one.body).replace(one.tag, '<part id="0a0a0a">'),
    "fence, body alone": lambda one: fence(one.body),
}
