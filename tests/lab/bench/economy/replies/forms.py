"""The forms in which models send one section."""

import json
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
    "fr": ("Voici la section manquante :", ""),
    "es": ("Aquí está la sección que faltaba:", ""),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A section that was asked for: its title, its body, its language, and the answer before and behind its place."""

    title: str
    body: str
    lang: str
    before: str
    after: str

    @property
    def before_it(self) -> str:
        return _SAYS[self.lang][0]

    @property
    def behind_it(self) -> str:
        return _SAYS[self.lang][1]


def _heading(one: Asked, heading: str = "## {}") -> str:
    return f"{heading.format(one.title)}\n\n{one.body}"


def _fence(text: str, info: str = "markdown") -> str:
    mark = "````" if "```" in text else "```"
    return f"{mark}{info}\n{text}\n{mark}"


def _name(one: Asked) -> str:
    return one.title.lower().replace(" ", "_")


def _whole(one: Asked) -> str:
    return f"{one.before}{_heading(one)}\n\n{one.after}"


FORMS: Mapping[str, Callable[[Asked], str]] = {
    "heading": _heading,
    "heading, colon": lambda one: _heading(one, "## {}:"),
    "heading, bold": lambda one: _heading(one, "## **{}**"),
    "heading, number": lambda one: _heading(one, "## 2. {}"),
    "heading, sign": lambda one: _heading(one, "## ✅ {}"),
    "heading, level 3": lambda one: _heading(one, "### {}"),
    "heading, level 1": lambda one: _heading(one, "# {}"),
    "heading, capitals": lambda one: f"## {one.title.upper()}\n\n{one.body}",
    "heading, translated": lambda one: f"## {_TRANSLATED.get(one.title, one.title)}\n\n{one.body}",
    "heading, underlined": lambda one: f"{one.title}\n{'-' * len(one.title)}\n\n{one.body}",
    "bold line": lambda one: _heading(one, "**{}**"),
    "bold label": lambda one: f"**{one.title}:** {one.body}",
    "html heading": lambda one: _heading(one, "<h2>{}</h2>"),
    "said before": lambda one: f"{one.before_it}\n\n{_heading(one)}",
    "said around": lambda one: f"{one.before_it}\n\n{_heading(one)}\n\n---\n\n{one.behind_it}".rstrip("\n- "),
    "fence": lambda one: _fence(_heading(one)),
    "fence, no word": lambda one: _fence(_heading(one), ""),
    "fence, said around": lambda one: f"{one.before_it}\n\n{_fence(_heading(one))}\n\n{one.behind_it}",
    "fence, body alone": lambda one: f"{one.before_it}\n\n{_fence(one.body)}\n\n{one.behind_it}",
    "tag": lambda one: f"<section>\n{_heading(one)}\n</section>",
    "tag, said before": lambda one: f"{one.before_it}\n\n<answer>\n\n{_heading(one)}\n\n</answer>",
    "tag, named": lambda one: f"<{_name(one)}>\n{one.body}\n</{_name(one)}>",
    "tag, attribute": lambda one: f'<section title="{one.title}">\n{one.body}\n</section>',
    "json, by title": lambda one: json.dumps({one.title: one.body}, ensure_ascii=False),
    "json, content": lambda one: _fence(json.dumps({"content": _heading(one)}, ensure_ascii=False, indent=2), "json"),
    "json, title and content": lambda one: json.dumps({"title": one.title, "content": one.body}),
    "quote": lambda one: "\n".join(f"> {line}".rstrip() for line in _heading(one).split("\n")),
    "whole": _whole,
    "whole, said before": lambda one: f"{one.before_it}\n\n{_whole(one)}",
    "whole, fence": lambda one: _fence(_whole(one)),
    "crlf": lambda one: _heading(one).replace("\n", "\r\n"),
    "body": lambda one: one.body,
    "body, said before": lambda one: f"{one.before_it}\n\n{one.body}",
    "body, said around": lambda one: f"{one.before_it}\n\n{one.body}\n\n{one.behind_it}",
}
