"""Which turns a rule judges."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from worker.enforcement.documents.document import parse
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.rules.language import language_of

CONTENTS = ("adr", "code", "json")
KINDS = ("chat", "phase")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known of a turn before its answer: its model, owner, route (chat, responses, turns) and kind."""

    model: str = ""
    owner: str = ""
    route: str = ""
    kind: str = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliesTo:
    """All conditions must hold; one that is empty always does. Models and owners may have ``*`` in them."""

    models: tuple[str, ...] = field(default=(), metadata={"what": "Models, such as consultant or claude-*."})
    owners: tuple[str, ...] = field(default=(), metadata={"what": "Owners: names of keys."})
    routes: tuple[str, ...] = field(default=(), metadata={"what": "Routes: chat, responses or turns."})
    kinds: tuple[str, ...] = field(default=(), metadata={"what": "Kinds of turns: chat or phase; none named: chat."})
    content: tuple[str, ...] = field(default=(), metadata={"what": "What the answer holds: adr, code or json."})
    languages: tuple[str, ...] = field(default=(), metadata={"what": "Languages of the answer, such as de."})

    def __post_init__(self) -> None:
        for name, known in (("content", CONTENTS), ("kinds", KINDS)):
            for value in getattr(self, name):
                if value not in known:
                    raise ValueError(f"{name} must be of {', '.join(known)}, not {value!r}")

    def judges(self, subject: Subject) -> bool:
        """Whether the turn is one of these, as far as it can be said before there is an answer.

        Phases have their own gates: a rule judges one only where ``kinds`` names them.
        """
        if subject.kind == "phase" and "phase" not in self.kinds:
            return False
        wanted = ((self.models, subject.model), (self.owners, subject.owner))
        if not all(not names or any(fnmatchcase(value, name) for name in names) for names, value in wanted):
            return False
        listed = ((self.routes, subject.route), (self.kinds, subject.kind))
        return all(not names or value in names for names, value in listed)

    @property
    def looks_at_the_answer(self) -> bool:
        """Whether the answer itself decides too."""
        return bool(self.content or self.languages)

    def fits(self, answer: str) -> bool:
        """Whether the answer is one that the rule judges."""
        if self.languages and language_of(answer) not in self.languages:
            return False
        return not self.content or any(_holds(answer, what) for what in self.content)

    def to_dict(self) -> dict[str, Any]:
        """The conditions that are set, JSON-ready."""
        return {each.name: list(value) for each in fields(self) if (value := getattr(self, each.name))}


def _holds(answer: str, what: str) -> bool:
    document = parse(answer)
    if what == "adr":
        return bool(document.adrs)
    bare = strip_marker(answer).strip()
    if what == "json" and (bare[:1], bare[-1:]) in (("{", "}"), ("[", "]")):
        return True
    fences = [fence for fence in document.out.fences if not fence.is_document]
    return any(what == "code" or fence.info.split(" ")[0].lower() == what for fence in fences)
