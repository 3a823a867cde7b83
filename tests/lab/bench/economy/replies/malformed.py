"""First answers that are malformed in as many ways as models know, made of good ADRs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.lab.bench.economy.answers import TITLES, Answer, adr
from tests.lab.bench.economy.replies.forms import fence
from worker.enforcement import ResponseValidator, build_validators
from worker.enforcement.rules import ForbiddenRule, RegexRule, StructureRule

#: A line that two of the rule sets reject.
DRAFT = "ENTWURF: siehe TODO-INTERN."
ALTERNATIVES = tuple(f"{de}|{en}" for de, en in zip(*TITLES.values(), strict=True) if de != "Alternativen")
RULE_SETS: Mapping[str, Callable[[Path], Sequence[ResponseValidator]]] = {
    "built in": lambda root: build_validators(("step_marker", "adr_structure", "file_existence"), root=root),
    "structure": lambda root: (StructureRule(sections=ALTERNATIVES, ordered=True),),
    "forbidden": lambda root: (ForbiddenRule(words=("TODO-INTERN",)),),
    "regex": lambda root: (RegexRule(must=(r"(?m)^# ADR-\d+: ",), must_not=("ENTWURF",)),),
}


def _section(good: Answer, at: int) -> str:
    return good.section(good.sections[at][0])


def _cut(good: Answer, at: int, text: str = "") -> str:
    return good.text().replace(_section(good, at), text, 1)


#: The broken forms: each lacks something, or has it twice, in a fence, or at a wrong place.
FORMS: Mapping[str, Callable[[Answer], str]] = {
    "header in a fence": lambda good: good.text().replace(good.head(), fence(good.header, "yaml"), 1),
    "header and rules in a fence": lambda good: good.text().replace(good.head(), fence(good.head(), "yaml"), 1),
    "header twice": lambda good: good.text().replace(good.head(), f"{good.head()}\n\n{good.head()}", 1),
    "header behind the title": lambda good: good.text().replace(
        f"{good.head()}\n\n{good.title}", f"{good.title}\n\n{good.head()}", 1
    ),
    "header at the end": lambda good: good.text().replace(f"{good.head()}\n\n", "", 1) + f"\n{good.head()}\n",
    "header unclosed": lambda good: good.text().replace(good.head(), f"---\n{good.header}", 1),
    "header bare": lambda good: good.text().replace(good.head(), good.header, 1),
    "header as a list": lambda good: good.text().replace(
        good.head(), "\n".join(f"- {line}" for line in good.header.split("\n")[:3]), 1
    ),
    "header missing": lambda good: good.text().replace(f"{good.head()}\n\n", "", 1),
    "header short": lambda good: good.text().replace(good.header, good.header.partition("\n")[0], 1),
    "header broken": lambda good: good.text().replace("status: Proposed", "status: [Proposed", 1),
    "in a fence": lambda good: fence(good.text().rstrip()),
    "in a fence with words": lambda good: f"Hier:\n\n{fence(_cut(good, 1).rstrip())}\n\nFertig.",
    "section missing": lambda good: _cut(good, 1),
    "two sections missing": lambda good: _cut(good, 1).replace(_section(good, 0), "", 1),
    "section empty": lambda good: _cut(good, 1, f"## {good.sections[1][0]}"),
    "section a place holder": lambda good: _cut(good, 1, f"## {good.sections[1][0]}\n\nTBD"),
    "section twice, once empty": lambda good: (
        f"{_cut(good, 1, f'## {good.sections[1][0]}')}\n## {good.sections[1][0]}\n"
    ),
    "sections twice, empty": lambda good: _cut(good, 1, f"## {good.sections[1][0]}\n\n## {good.sections[1][0]}\n\n..."),
    "sections in bold": lambda good: _bold(good),
    "sections at level 4": lambda good: good.text().replace("\n## ", "\n#### "),
    "sections swapped": lambda good: _cut(good, 0) + f"\n{_section(good, 0)}\n",
    "two sections under one heading": lambda good: good.text().replace(f"\n## {good.sections[1][0]}\n", "\n", 1),
    "title missing": lambda good: _cut(good, 1).replace(f"{good.title}\n\n", "", 1),
    "title twice": lambda good: _cut(good, 1).replace(good.title, f"{good.title}\n\n{good.title}", 1),
    "document twice": lambda good: f"{_cut(good, 1)}\n{_cut(good, 1)}",
    "outline alone": lambda good: "\n\n".join([good.title, *(f"## {title}" for title, _ in good.sections)]),
    "byte order mark": lambda good: "\ufeff" + _cut(good, 1),
    "windows line ends": lambda good: _cut(good, 1).replace("\n", "\r\n"),
    "announcement alone": lambda good: "Ich schreibe das ADR sofort. I will write it now.",
}


def _bold(good: Answer) -> str:
    text = good.text()
    for title, _ in good.sections:
        text = text.replace(f"## {title}\n", f"**{title}**\n", 1)
    return text


def firsts() -> Iterator[tuple[str, Answer, str]]:
    """Yield the form, the good answer and the malformed one."""
    number = 0
    for size in (400, 1500, 4000, 9000):
        for lang in ("de", "en"):
            for form, malform in FORMS.items():
                number += 1
                good = adr(number, lang, size)
                yield form, good, f"{malform(good).rstrip()}\n\n{DRAFT}\n"
