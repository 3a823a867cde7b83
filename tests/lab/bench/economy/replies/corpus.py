"""Replies of every kind, and what becomes of each; ``measure`` counts them by corpus."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.lab.bench.economy.answers import adr, chat
from tests.lab.bench.economy.play import lay_out
from tests.lab.bench.economy.replies.forms import ASKED_AGAIN, TAKEN, Asked, fence, framed, heading
from tests.lab.bench.economy.replies.malformed import RULE_SETS, firsts
from tests.lab.bench.economy.request import read
from worker.enforcement import (
    Accept,
    Attempt,
    ResponseValidator,
    Retry,
    build_validators,
    decide_next,
    validate_attempt,
)
from worker.enforcement.answer_continuation import append_continuation, find_unfinished_text
from worker.enforcement.rules import StructureRule

HERE = Path(__file__).parent
NAMES = ("step_marker", "adr_structure", "file_existence")


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

    def ask(self) -> list[Attempt]:
        """Return the history after the first answer."""
        return [validate_attempt([], self.answer, self.rules)]

    def asked_for(self, body: str) -> Asked:
        """Return the request for the section, with the text that a model means to send."""
        [(tag, _)] = read(feedback_of(self.ask())).frames
        return Asked(tag, self.asked, body, self.lang, self.before, self.after)


@dataclass(frozen=True, slots=True)
class Trial:
    """One reply, and what became of it: ``bad`` says what is wrong, and is empty when nothing is."""

    corpus: str
    kind: str
    reply: str
    bad: str = ""


def lines_of(name: str) -> list[str]:
    return [line for line in (HERE / name).read_text().splitlines() if line and not line.startswith(("#", "=="))]


def drafts() -> list[Draft]:
    """The answers that lack a section."""
    data: list[dict[str, Any]] = yaml.safe_load((HERE / "drafts.yaml").read_text())
    return [
        Draft(d["name"], d["asked"], d["before"], d["after"], tuple(d["bodies"]), tuple(d.get("structure", ())))
        for d in data
    ]


def feedback_of(history: Sequence[Attempt]) -> str:
    decision = decide_next(history)
    return decision.feedback if isinstance(decision, Retry) else ""


def answer_to(draft: Draft, *replies: str) -> list[Attempt]:
    """Return the attempts of a turn in which the agent sends these replies."""
    history = draft.ask()
    for reply in replies:
        history.append(validate_attempt(history, reply, draft.rules, feedback=feedback_of(history)))
    return history


def talk(every: Sequence[Draft]) -> Iterator[Trial]:
    """Replies that are no section, alone, in a fence and in the frame; the agent says the same twice."""
    texts = [text.replace("\\n", "\n") for text in lines_of("not_the_part.txt")]
    for text in texts:
        for draft in every:
            for reply in (text, fence(text), framed(draft.asked_for(text), text)):
                history = answer_to(draft, reply, reply)
                bad = "entered" if history[-1].answer != draft.answer else ""
                yield Trial("talk, errors, refusals, tool calls", draft.name, reply, bad)


def tool_calls(every: Sequence[Draft]) -> Iterator[Trial]:
    """Tool calls in the frame or below the heading."""
    group = next(one for one in (HERE / "not_the_part.txt").read_text().split("\n== ") if one.startswith("tool"))
    texts = [text.replace("\\n", "\n") for text in group.splitlines()[1:]]
    signs = ("<func", "<tool", "<inv", "<|", "[TOOL", "Action", "Bash(", "<｜", "<write", "<seed", "<bash", "✿", "to=")
    for text in (text for text in texts if text.startswith((*signs, "{", "⏺", "***", "**Tool", "```tool_code"))):
        for draft in every:
            one = draft.asked_for(text)
            for reply in (framed(one, one.body), heading(one)):
                bad = "entered" if answer_to(draft, reply)[-1].answer != draft.answer else ""
                yield Trial("tool calls in a frame", draft.name, reply, bad)


def closings(every: Sequence[Draft]) -> Iterator[Trial]:
    """Closing remarks behind a part, in the frame's form and in the others: never in the document."""
    for number, remark in enumerate(lines_of("closings.txt")):
        draft = every[number % len(every)]
        one = draft.asked_for(draft.bodies[number % len(draft.bodies)])
        for kind, text in (
            ("frame", framed(one, heading(one))),
            ("frame not closed", framed(one, heading(one)).removesuffix("</part>")),
            ("fence", fence(heading(one))),
            ("heading", heading(one)),
            ("heading and rule", f"{heading(one)}\n\n---"),
            ("whole, said around", f"{one.before_it}\n\n{TAKEN['whole'](one)}"),
            ("heading and rule, no blank", f"{heading(one)}\n\n***"),
        ):
            reply = f"{text}\n{remark}" if kind.endswith("no blank") else f"{text}\n\n{remark}"
            history = answer_to(draft, reply)
            bad = "in the document" if remark in history[-1].answer else ""
            if kind in ("frame", "fence") and not isinstance(decide_next(history), Accept):
                bad = "refused"
            yield Trial("closing remarks", kind, reply, bad)


def right(every: Sequence[Draft]) -> Iterator[Trial]:
    """Each body of these drafts, and short decisions, in each form that is to be taken."""
    short = lines_of("short_decisions.txt")
    pairs = [(draft, body) for draft in every for body in draft.bodies]
    pairs += [(draft, body) for draft in every if draft.asked in ("Decision", "Entscheidung") for body in short]
    for draft, body in pairs:
        one = draft.asked_for(body)
        for form, write in TAKEN.items():
            corpus = "short decisions" if body in short else "sections"
            yield Trial(corpus, form, write(one), missed(draft, body, answer_to(draft, write(one))))


def asked_again(every: Sequence[Draft]) -> Iterator[Trial]:
    """Each body in a form without a heading or a clear end: asked for again, and taken from the frame then."""
    for draft in every:
        for body in draft.bodies:
            for form, write in ASKED_AGAIN.items():
                history = answer_to(draft, write(draft.asked_for(body)))
                bad = "entered" if history[-1].answer != draft.answer else ""
                [(tag, _)] = read(feedback_of(history)).frames if not bad else [("", "")]
                reply = framed(one := Asked(tag, draft.asked, body, draft.lang), heading(one))
                last = validate_attempt(history, reply, draft.rules, feedback=feedback_of(history))
                yield Trial("asked again", form, reply, bad or missed(draft, body, [*history, last]))


def missed(draft: Draft, body: str, history: Sequence[Attempt]) -> str:
    """What is wrong after a reply that is the section: it must be there, and nothing else may have changed."""
    if not isinstance(decide_next(history), Accept):
        return "not taken"
    lines = Counter(line.strip() for line in history[-1].answer.split("\n") if line.strip())
    lines.subtract(line.strip() for line in (draft.answer + body).split("\n") if line.strip())
    left = {line: count for line, count in lines.items() if count and not (line.startswith("#") and count == 1)}
    return f"other lines: {left}" if left else ""


def whole_answers(root: Path) -> Iterator[Trial]:
    """Malformed first answers, and then the good one: it is accepted, and no good text is lost."""
    lay_out(root)
    for form, good, first in firsts():
        for name, build in RULE_SETS.items():
            rules = build(root)
            history = [validate_attempt([], first, rules)]
            if isinstance(decide_next(history), Accept):
                continue
            history.append(validate_attempt(history, good.text(), rules, feedback=feedback_of(history)))
            yield Trial("whole valid answers", f"{form}, {name}", good.text(), "" if _passes(history) else "refused")


def _passes(history: Sequence[Attempt]) -> bool:
    return isinstance(decide_next(history), Accept)


def stumps() -> Iterator[Trial]:
    """Truncated answers and texts that are no continuation: none is joined."""
    dice = Random(46)
    goods = [make(n, lang, 1500).text() for n, (make, lang) in enumerate([(adr, "de"), (adr, "en"), (chat, "en")] * 2)]
    ends = [
        "\n\n- one\n- tw",
        "\n\n| a | b |\n|---|---|\n| 1 |",
        "\n\n- [ ] first\n- [",
        "\n\n```py\nx = (",
        "\n\n## De",
    ]
    ends += ["\n\n- yes\n- no\n- yes\n- n", "\n\nThe A", ". So we", " (see"]
    texts = [goods[n][: dice.randrange(400, 1200)] for n in range(len(goods))]
    texts += [f"{text}{end}" for text, end in zip(texts * 3, ends * 2, strict=False)]
    others = [
        "(continued)",
        "[... rest as before ...]",
        "# Summary",
        "In summary, the relay polls the table.",
        "PI answers",
    ]
    others += [text.replace("\\n", "\n") for text in lines_of("not_the_part.txt")[::31]]
    for text in texts:
        so_far = find_unfinished_text([Attempt(number=1, text=text, answer=text, complete=False)])
        for other in others:
            reply = f"{other}\n\n<!-- STEP: done -->"
            joined = append_continuation(so_far, reply)
            yield Trial("text glued to a stump", text[-20:], reply, "glued" if joined.text != so_far else "")


def measure(root: Path) -> list[Trial]:
    """Return every trial of every corpus."""
    every = drafts()
    made = (talk, tool_calls, closings, right, asked_again)
    return [trial for corpus in made for trial in corpus(every)] + [*whole_answers(root), *stumps()]
