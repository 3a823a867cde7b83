"""Both corpora, and what becomes of each reply: what is no part may change nothing, what is one must be accepted."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.lab.bench.economy.replies.forms import FORMS, Asked
from worker.enforcement import (
    Accept,
    Attempt,
    ResponseValidator,
    Retry,
    build_validators,
    decide_next,
    validate_attempt,
)
from worker.enforcement.rules import StructureRule

HERE = Path(__file__).parent
NAMES = ("step_marker", "adr_structure", "file_existence")
#: Each third text is held out: nobody looks at what becomes of it while the code changes.
HELD_OUT = 3


@dataclass(frozen=True, slots=True)
class Draft:
    """An answer that lacks a section, what judges it, and bodies that are the section."""

    name: str
    asked: str
    before: str
    after: str
    bodies: tuple[str, ...]
    structure: tuple[str, ...]

    @property
    def answer(self) -> str:
        return self.before + self.after

    @property
    def lang(self) -> str:
        return self.name.rpartition(" ")[2]

    @property
    def rules(self) -> Sequence[ResponseValidator]:
        return (StructureRule(sections=self.structure),) if self.structure else build_validators(NAMES, root=HERE)


@dataclass(frozen=True, slots=True)
class Trial:
    """One reply to one draft, and what became of it: ``bad`` says what is wrong, and is empty when nothing is."""

    kind: str
    draft: str
    reply: str
    held_out: bool
    bad: str = ""


def drafts() -> list[Draft]:
    """The answers that lack a section."""
    data: list[dict[str, Any]] = yaml.safe_load((HERE / "drafts.yaml").read_text())
    return [
        Draft(d["name"], d["asked"], d["before"], d["after"], tuple(d["bodies"]), tuple(d.get("structure", ())))
        for d in data
    ]


def not_the_part() -> Iterator[tuple[int, str, str, str]]:
    """Number, kind, language and text of each reply that is no section."""
    kind = lang = ""
    number = 0
    for line in (HERE / "not_the_part.txt").read_text().splitlines():
        if line.startswith("== "):
            _, kind, lang = line.split()
        elif line and not line.startswith("# "):
            yield number, kind, lang, line.replace("\\n", "\n")
            number += 1


def wrong_replies(every: Sequence[Draft]) -> Iterator[Trial]:
    """Each reply that is no section: alone, in a fence, and below the heading, to each of these drafts."""
    for number, kind, lang, text in not_the_part():
        held_out = number % HELD_OUT == 0
        for draft in every:
            below = f"## {draft.asked}\n\n{text}"
            if draft.lang not in (lang, "de", "en") and lang != "-":
                continue  # a draft in French meets talk in French, and what has no language
            replies = [text, f"```markdown\n{text}\n```", below]
            if text.startswith("```") and draft.structure:
                replies.pop()  # a section of a text of its own kind may be a block of code
            for reply in replies:
                yield Trial(f"{kind} {lang}", draft.name, reply, held_out, _entered(draft, reply))


def right_replies(every: Sequence[Draft]) -> Iterator[Trial]:
    """Each body of these drafts in each form."""
    number = 0
    for draft in every:
        for body in draft.bodies:
            for form, write in FORMS.items():
                asked = Asked(draft.asked, body, draft.lang, draft.before, draft.after)
                reply = write(asked)
                yield Trial(form, draft.name, reply, number % HELD_OUT == 0, _missed(draft, asked, reply))
            number += 1


def _entered(draft: Draft, reply: str) -> str:
    """What of a reply that is no section became one; the agent says the same three times."""
    history = [validate_attempt([], draft.answer, draft.rules)]
    for _ in range(2):
        history.append(validate_attempt(history, reply, draft.rules, feedback=_told(history)))
    return (
        "passed"
        if isinstance(decide_next(history), Accept)
        else "entered"
        if history[-1].answer != draft.answer
        else ""
    )


def _told(history: Sequence[Attempt]) -> str:
    decision = decide_next(history)
    return decision.feedback if isinstance(decision, Retry) else ""


def _missed(draft: Draft, asked: Asked, reply: str) -> str:
    """What is wrong after a reply that is the section: it must be there, and nothing else may have changed."""
    history = [validate_attempt([], draft.answer, draft.rules)]
    history.append(validate_attempt(history, reply, draft.rules, feedback=_told(history)))
    if not isinstance(decide_next(history), Accept):
        return "not taken"
    lines = Counter(line.strip() for line in history[-1].answer.split("\n") if line.strip())
    lines.subtract(line.strip() for line in (draft.answer + asked.body).split("\n") if line.strip())
    left = {line: count for line, count in lines.items() if count and not (line.startswith("#") and count == 1)}
    return f"other lines: {left}" if left else ""


def counted(trials: Sequence[Trial], *, held_out: bool) -> tuple[int, int]:
    """How many of these trials ended badly, and how many there are."""
    mine = [trial for trial in trials if trial.held_out is held_out]
    return sum(bool(trial.bad) for trial in mine), len(mine)
