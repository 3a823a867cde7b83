"""Models behind the agents: obedient, chatty and forgetful ones, each in many forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tests.lab.bench.economy.agents.documents import Document, answer_obediently, fill_frame, find_frames, list_sections

_SAID = {
    "de": {
        "before": "Gern, hier ist der fehlende Teil:",
        "behind": "Der Rest bleibt unverändert. Sag Bescheid, wenn noch etwas fehlt.",
        "changes": "Was ich geändert habe:\n\n- Der fehlende Teil ist ergänzt.\n- Alles andere ist, wie es war.\n\n---",
        "between": "Der Teil steht zwischen {tag} und </part>:",
        "ends": "Damit steht der Teil zwischen {tag} und </part>, wie gewünscht.",
        "thinks": "<think>\nGefragt ist nur ein Teil. Ich schreibe ihn zwischen {tag} und </part>.\n</think>",
        "looks": "Ich sehe zuerst im Projekt nach.",
        "done": "Erledigt: Ich habe den fehlenden Teil ergänzt und alles noch einmal geprüft.",
        "refuses": "Es tut mir leid, dabei kann ich nicht helfen.",
        "draft": "Ein Entwurf, gleich kommt der Teil selbst.",
    },
    "en": {
        "before": "Sure, here is the missing part:",
        "behind": "The rest stays as it is. Let me know if anything else is missing.",
        "changes": "What I changed:\n\n- I added the missing part.\n- Everything else is as it was.\n\n---",
        "between": "The part stands between {tag} and </part>:",
        "ends": "So the part stands between {tag} and </part>, as you asked.",
        "thinks": "<think>\nOnly a part is asked for. I write it between {tag} and </part>.\n</think>",
        "looks": "I will look at the project first.",
        "done": "Done: I have added the missing part and checked everything again.",
        "refuses": "I'm sorry, but I can't help with that.",
        "draft": "A draft; the part itself follows.",
    },
}


@dataclass(frozen=True, slots=True)
class Said:
    """A model's reply: texts, where ``looks`` means a tool call behind the first one."""

    text: str
    first: str = ""


@dataclass(frozen=True)
class Question:
    """What a model reads: the request for parts of a document, as the agent passed it on."""

    document: Document
    feedback: str
    words: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", _SAID[self.document.lang])

    @cached_property
    def frames(self) -> list[tuple[str, str, str]]:
        """The opening tag of each frame, its sketch, and the part that belongs there."""
        shown = find_frames(self.feedback)
        return [(tag, sketch, fill_frame(self.document.good, sketch)) for tag, sketch in shown]

    @property
    def exact(self) -> str:
        return answer_obediently(self.document, self.feedback)

    @property
    def bare(self) -> str:
        """The parts without frames."""
        return "\n\n".join(part for *_, part in self.frames) or self.exact

    def say(self, name: str) -> str:
        return self.words[name].format(tag=self.frames[0][0] if self.frames else "<part>")

    def frame_parts(self, change: Callable[[str], str]) -> str:
        """Return the frames around changed parts."""
        return "\n".join(f"{tag}\n{change(part)}\n</part>" for tag, _, part in self.frames) or self.exact


def _fence(text: str, info: str = "markdown") -> str:
    mark = "````" if "```" in text else "```"
    return f"{mark}{info}\n{text}\n{mark}"


def _without_heading(part: str) -> str:
    return part.partition("\n")[2].strip("\n") if part.startswith("## ") else part


def _another_part(question: Question) -> str:
    asked = {sketch.partition("\n")[0].strip("# ") for _, sketch, _ in question.frames}
    others = [each for each in list_sections(question.document.good) if each.title not in asked]
    return fill_frame(question.document.good, f"## {others[0].title}") if others else question.say("done")


#: The forms of a model that sends the frames, and talks.
CHATTY: Mapping[str, Callable[[Question], Said]] = {
    "remark before": lambda q: Said(f"{q.say('before')}\n\n{q.exact}"),
    "remark behind": lambda q: Said(f"{q.exact}\n\n{q.say('behind')}"),
    "remarks around": lambda q: Said(f"{q.say('before')}\n\n{q.exact}\n\n{q.say('behind')}"),
    "in an xml fence": lambda q: Said(_fence(q.exact, "xml")),
    "in a markdown fence, remarks around": lambda q: Said(
        f"{q.say('before')}\n\n{_fence(q.exact)}\n\n{q.say('behind')}"
    ),
    "fence in the frame": lambda q: Said(q.frame_parts(_fence)),
    "list of changes before": lambda q: Said(f"{q.say('changes')}\n\n{q.exact}"),
    "names the tags before": lambda q: Said(f"{q.say('between')}\n\n{q.exact}"),
    "names the tags behind": lambda q: Said(f"{q.exact}\n\n{q.say('ends')}"),
    "thinks aloud": lambda q: Said(f"{q.say('thinks')}\n\n{q.exact}"),
    "tool call first": lambda q: Said(q.exact, first=q.say("looks")),
    "draft first": lambda q: Said(f"{q.frame_parts(lambda _: q.say('draft'))}\n\n{q.exact}"),
    "marker behind": lambda q: Said(f"{q.exact}\n\n<!-- STEP: done -->" if q.frames else q.exact),
}
#: The forms of a model that does not send the frames. Asked again, it does.
FORGETFUL: Mapping[str, Callable[[Question], Said]] = {
    "heading": lambda q: Said(q.bare),
    "heading, remark before": lambda q: Said(f"{q.say('before')}\n\n{q.bare}"),
    "heading, remarks around": lambda q: Said(f"{q.say('before')}\n\n{q.bare}\n\n{q.say('behind')}"),
    "whole document": lambda q: Said(q.document.good),
    "whole document in a fence": lambda q: Said(_fence(q.document.good.rstrip("\n"))),
    "whole document, remarks around": lambda q: Said(f"{q.say('before')}\n\n{q.document.good}\n\n{q.say('behind')}"),
    "without heading": lambda q: Said(q.frame_parts(_without_heading)),
    "another part": lambda q: Said(_another_part(q)),
    "nothing of it": lambda q: Said(q.say("done")),
    "another id": lambda q: Said(q.exact.replace('id="', 'id="a1').replace("STEP: ", "SCHRITT: ")),
    "body": lambda q: Said("\n\n".join(_without_heading(part) for *_, part in q.frames) or q.say("done")),
    "empty sketch": lambda q: Said("\n".join(f"{tag}\n{sketch}\n</part>" for tag, sketch, _ in q.frames) or "…"),
    "refusal": lambda q: Said(q.say("refuses")),
    "same as before": lambda q: Said(q.document.first),
    "escaped tags": lambda q: Said(q.exact.replace("<", "&lt;").replace(">", "&gt;")),
    "frame not closed, remark behind": lambda q: Said(
        f"{q.exact.removesuffix('</part>')}\n{q.say('behind')}" if q.frames else q.say("done")
    ),
}


def reply(kind: str, form: int, question: Question, number: int) -> Said:
    """Return a model's reply to its request number ``number`` (from 1) for parts."""
    forms = {"obedient": {}, "chatty": CHATTY, "forgetful": FORGETFUL if number == 1 else {}}[kind]
    return list(forms.values())[form % len(forms)](question) if forms else Said(question.exact)


def name_form(kind: str, form: int) -> str:
    forms = {"obedient": {}, "chatty": CHATTY, "forgetful": FORGETFUL}[kind]
    return list(forms)[form % len(forms)] if forms else "exact"
