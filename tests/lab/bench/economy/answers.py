"""Good answers, made up: ADRs and chat answers in German and English, from 300 to 20,000 characters.

Each sentence carries a number that stands nowhere else (``#017-003``): so the oracle sees which text was lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random

FACT = re.compile(r"#\d{3}-\d{3}")

_POOL = {
    "de": (
        "Die Suche liest heute bei jeder Anfrage den ganzen Index",
        "Ein Cache vor dem Index hält die häufigsten Treffer bereit",
        "Nach sechzig Sekunden verfällt ein Eintrag und wird neu gelesen",
        "Der Betrieb misst die Trefferquote und schlägt unter achtzig Prozent Alarm",
        "Veraltete Einträge löscht der Schreiber, sobald er speichert",
        "Ein zweiter Knoten übernimmt, wenn der erste nicht antwortet",
        "Die Schnittstelle bleibt, wie sie ist, auch für ältere Klienten",
    ),
    "en": (
        "The search reads the whole index for each query today",
        "A cache before the index keeps the most frequent hits",
        "After sixty seconds an entry expires and is read anew",
        "Operations measure the hit rate and raise an alarm below eighty percent",
        "The writer deletes outdated entries as soon as it saves",
        "A second node takes over when the first one does not answer",
        "The interface stays as it is, for older clients too",
    ),
}
#: Titles in the order of an ADR. The first, second and fourth are required.
TITLES = {
    "de": ("Kontext", "Entscheidung", "Alternativen", "Akzeptanzkriterien", "Konsequenzen"),
    "en": ("Context", "Decision", "Alternatives", "Acceptance Criteria", "Consequences"),
}
#: The places of the required sections in ``TITLES``.
REQUIRED = (0, 1, 3)
_INTRO = {"de": "Hier ist das ADR zum Cache.", "en": "Here is the ADR about the cache."}
_NAME = {"de": "Ein Cache vor der Suche", "en": "A cache before the search"}

#: A section: its title and its body.
Section = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in its parts. ``header`` is the YAML between the ``---`` lines; a chat answer has no header and title.

    Attributes:
        sections: title and body; a chat answer's have no title.
    """

    lang: str
    intro: str
    header: str
    title: str
    sections: tuple[Section, ...]
    marker: str

    @property
    def is_adr(self) -> bool:
        return bool(self.title)

    def head(self) -> str:
        return f"---\n{self.header}\n---"

    def section(self, title: str) -> str:
        return _shown(title, dict(self.sections)[title])

    def text(self) -> str:
        head = self.head() if self.header else ""
        blocks = [self.intro, head, self.title, *(_shown(*one) for one in self.sections), self.marker]
        return "\n\n".join(block for block in blocks if block) + "\n"

    def without(self, *titles: str) -> Answer:
        return replace(self, sections=tuple(one for one in self.sections if one[0] not in titles))

    def with_body(self, title: str, body: str) -> Answer:
        """The answer with another body of one section."""
        return replace(self, sections=tuple((t, body if t == title else b) for t, b in self.sections))


def facts(text: str) -> set[str]:
    """The numbers of the sentences in a text."""
    return set(FACT.findall(text))


def adr(number: int, lang: str, size: int) -> Answer:
    write = _Writer(number, lang)
    titles = TITLES[lang] if size > 500 else [t for n, t in enumerate(TITLES[lang]) if n != 2]
    header = f'adr_id: "{number:03}"\ntitle: "{_NAME[lang]}"\nstatus: Proposed'
    if size > 500:
        header += "\nfiles:\n  create:\n    - src/search/cache.py\n  modify:\n    - src/search/index.py"
    else:
        header += "\nfiles:\n  modify: [src/search/index.py]"
    room = max((size - 160 - len(header)) // len(titles), 20)
    sections = []
    for title in titles:
        if title == TITLES[lang][3]:
            body = write.criteria(room)
        elif title == TITLES[lang][1] and room > 500:
            body = f"{write.prose(room - 300)}\n\n{write.code()}\n\n{write.prose(60)}"
        elif title == TITLES[lang][0] and room > 500:
            body = f"{write.prose(room - 300)}\n\n{write.table()}"
        else:
            body = write.prose(room)
        sections.append((title, body))
    intro = _INTRO[lang] if size > 500 else ""
    return Answer(lang, intro, header, f"# ADR-{number:03}: {_NAME[lang]}", tuple(sections), "<!-- STEP: generate -->")


def chat(number: int, lang: str, size: int) -> Answer:
    write = _Writer(number, lang)
    body = [("", write.prose(max(size - 60, 40)))] if size < 1500 else [("", write.prose(size - 500))]
    if size >= 1500:
        body.append(("", f"{write.code()}\n\n{write.criteria(200)}"))
    return Answer(lang, "", "", "", tuple(body), "<!-- STEP: what -->")


def _shown(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if title else body


class _Writer:
    """Writes sentences, each with a number of its own."""

    def __init__(self, number: int, lang: str) -> None:
        self._number, self._lang, self._count, self._random = number, lang, 0, Random(number)

    def _sentence(self) -> str:
        self._count += 1
        return f"{self._random.choice(_POOL[self._lang])} (#{self._number:03}-{self._count:03})."

    def prose(self, length: int) -> str:
        """Paragraphs of three sentences, about ``length`` characters."""
        text = self._sentence()
        while len(text) < length:
            text += (" " if text.count(".") % 3 else "\n\n") + self._sentence()
        return text

    def criteria(self, length: int) -> str:
        """Acceptance criteria, three at least."""
        lines = [f"- [ ] {self._sentence()}" for _ in range(3)]
        while sum(map(len, lines)) < length:
            lines.append(f"- [ ] {self._sentence()}")
        return "\n".join(lines)

    def table(self) -> str:
        rows = "\n".join(f"| {n} | {self._sentence()} |" for n in range(1, 3))
        return f"| Nr | Text |\n|---|---|\n{rows}"

    def code(self) -> str:
        self._count += 1
        fact = f"#{self._number:03}-{self._count:03}"
        return f"```python\ndef find(query: str) -> list[str]:\n    return cache.get(query)  # {fact}\n```"
