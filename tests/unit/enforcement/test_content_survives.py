"""For any answer, any issues and any reply: text outside the named parts survives, or the turn does not pass."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from worker.enforcement import (
    Accept,
    ADRStructureValidator,
    Fallback,
    Policy,
    ResponseValidator,
    Retry,
    StepMarkerValidator,
    ValidationIssue,
    decide,
    judge,
)
from worker.enforcement.content_guard import taken
from worker.enforcement.repaired import repair_attempt

TITLES = ("Kontext", "Entscheidung", "Akzeptanzkriterien", "Konsequenzen", "Notizen", "Context", "Decision")
FIELDS = ("adr_id", "title", "status", "owner", "files")
STEP = "<!-- STEP: done -->"
#: A section may come back under its English name.
ENGLISH = {"Kontext": "Context", "Entscheidung": "Decision"}
PARTS = ("step_marker", "yaml_header", *(f"yaml_header.{key}" for key in FIELDS), *(f"## {title}" for title in TITLES))
NOISE = st.text(alphabet="aä #-`~>\n\r<!*:|[](){}\"'.0\u200b\ufeff", max_size=40)

#: A piece of an answer: the part it belongs to (empty for none), and its text.
Piece = tuple[str, str]


@st.composite
def answers(draw: st.DrawFn) -> list[Piece]:
    """An ADR in its pieces, each line with a word that stands nowhere else; joined, they are the answer."""
    words = (f"w{number}" for number in count())
    eol = draw(st.sampled_from(["\n", "\r\n"]))
    pieces: list[Piece] = []
    if draw(st.booleans()):
        pieces.append(("", f"Vorab {next(words)}.\n\n"))
    if draw(st.booleans()):
        keys = ["adr_id", *draw(st.lists(st.sampled_from(FIELDS[1:]), unique=True))]
        pieces.append(("yaml_header", "---\n"))
        for key in keys:
            value = f"\n  create:\n    - {next(words)}.py" if key == "files" else f" {next(words)}"
            pieces.append((f"yaml_header.{key}", f"{key}:{value}\n"))
        pieces.append(("yaml_header", "---\n\n"))
    pieces.append(("", f"# ADR-040: {next(words)}\n\n"))
    for title in draw(st.lists(st.sampled_from(TITLES[:5]), unique=True, min_size=1)):
        heading = draw(st.sampled_from(["## {}", "## **{}**:", "## 1. {}", "## {} <!-- x -->"])).format(title)
        pieces.append(("", f"{heading}\n\n"))
        if draw(st.booleans()):
            code = f"\n```yaml\nstatus: {next(words)}\n```\n" if draw(st.booleans()) else ""
            pieces.append((f"## {title}", f"Text {next(words)}.\n{code}\n- {next(words)}\n"))
            pieces.append(("", "\n"))
    if draw(st.booleans()):
        pieces.append(("step_marker", STEP if draw(st.booleans()) else "<!-- STEP: nie -->"))
        pieces.append(("", "\n"))
    return [(part, text.replace("\n", eol)) for part, text in pieces]


WRAPS = ("{}", "Hier:\n\n```markdown\n{}\n```\n\nFertig.", "```yaml\n{}\n```", "```\n{}", "> {}", "1. x\n   {}")


def _part(part: str, draw: st.DrawFn) -> str:
    """A part as an agent may write it."""
    if part == "step_marker":
        return STEP
    if part.startswith("## "):
        heading = draw(st.sampled_from(["## {}", "### **{}**:", "# {}", "**{}**", "{}\n---"]))
        body = draw(
            st.sampled_from(["Neu, mit Gründen.", "Neu.\n\n#### Mehr\n\n- [ ] neu", "```\nohne Ende", "(wie oben)"])
        )
        return f"{heading.format(part.removeprefix('## '))}\n\n{body}"
    header = 'adr_id: "040"\ntitle: Neu\nstatus: Proposed\nowner: Neu\nfiles:\n  modify:\n    - neu.py'
    key = part.partition(".")[2]
    lines = [line for line in header.split("\n") if line.startswith(key) or (key == "files" and line[0] == " ")]
    return draw(st.sampled_from(["\n".join(lines), f"---\n{header}\n---", header]))


@st.composite
def replies(draw: st.DrawFn, named: Sequence[str] = PARTS) -> str:
    """Parts and talk in any order and any wrapping."""
    pieces = []
    for part in draw(st.lists(st.sampled_from([*named, *named, *PARTS, "", "adr", "noise"]), min_size=1, max_size=5)):
        if part == "adr":
            text = draw(st.sampled_from(["# ADR-040: Neu\n\n## Kontext\n\nNeu.\n\n## Entscheidung\n\n(unverändert)"]))
        elif part == "noise":
            text = draw(NOISE)
        else:
            talk = st.sampled_from(["Der Rest bleibt unverändert.", "Hier ist die Section:", "Entschuldigung."])
            text = _part(part, draw) if part else draw(talk)
        pieces.append(draw(st.sampled_from(WRAPS)).replace("{}", text))
    return draw(st.sampled_from(["\n\n", "\n\n", "\n", "\r\n\r\n"])).join(pieces)


@st.composite
def retries(draw: st.DrawFn) -> tuple[list[Piece], list[str], str]:
    """An answer, parts that its issues name, and a reply."""
    named = draw(st.lists(st.sampled_from(PARTS), unique=True, min_size=1, max_size=3))
    return draw(answers()), named, draw(replies(named))


def survives(pieces: Sequence[str], answer: str) -> bool:
    """True when all pieces stand in the answer, byte for byte and in their order."""
    at = 0
    for piece in pieces:
        found = answer.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def outside(answer: Sequence[Piece], named: Sequence[str]) -> list[str]:
    """The texts that no part names, neighbours joined."""
    joined: list[str] = []
    apart = True
    for part, text in answer:
        if part in named or ("yaml_header" in named and part.startswith("yaml_header")):
            apart = True
            continue
        joined = [*joined, text] if apart else [*joined[:-1], joined[-1] + text]
        apart = text.endswith(("\n\n", "\r\n\r\n")) or part.startswith(("## ", "yaml_header"))
    return [text.strip("\r\n") for text in joined if text.strip()]


def issue(part: str) -> ValidationIssue:
    return ValidationIssue("ANY", "any", "any", part=part)


@settings(deadline=None, max_examples=400)
@given(retries())
def test_asked_for_parts_everything_else_survives_byte_for_byte(case: tuple[list[Piece], list[str], str]) -> None:
    answer, named, reply = case
    text = "".join(piece for _, piece in answer)
    after = taken(text, [issue(part) for part in named], reply)
    has_header = any(part == "yaml_header" for part, _ in answer)
    wide = named if has_header or not any(p.startswith("yaml") for p in named) else [*named, "yaml_header"]
    event("changed" if after != text else "same")
    german = {f"## {english}": f"## {title}" for title, english in ENGLISH.items()}
    assert survives(outside(answer, [german.get(part, part) for part in wide]), after)


@settings(deadline=None, max_examples=300)
@example(" ", ["## Kontext"], "## Kontext\n\nNeu, mit Gründen.")  # the blank went
@given(NOISE, st.lists(st.sampled_from(["step_marker", "## Kontext", "yaml_header.title"]), unique=True), replies())
def test_any_text_at_all_is_only_added_to(answer: str, named: list[str], reply: str) -> None:
    # No ADR: a section or a key is nowhere to be put, so the whole answer is asked for, and a text may replace it.
    errors = [issue(part) for part in named]
    after = taken(answer, errors, reply)
    assert after.startswith(answer) if named in ([], ["step_marker"]) else after == reply or after.startswith(answer)


class AnyRule(ResponseValidator):
    """A rule without a part, until the answer says that it is new."""

    name = "any"

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        return [] if "Neu" in response else [issue("")]


@st.composite
def turns(draw: st.DrawFn) -> tuple[str, list[Piece], list[str]]:
    """A good ADR with one fault, its pieces, and what an agent says when it is asked again: a new one, or anything."""
    pieces = [("", '---\nadr_id: "040"\ntitle: Alt\nstatus: Proposed\n---\n\n# ADR-040: Alt\n\n')]
    for number, title in enumerate((*TITLES[:3], *draw(st.lists(st.sampled_from(TITLES[3:5]), unique=True)))):
        pieces.append((f"## {title}", f"## {title}\n\nGut w{number}.\n\n"))
    pieces.append(("step_marker", STEP))
    new = "".join(text.replace("Gut", "Neu") for _, text in draw(st.permutations(pieces)) if draw(st.integers(0, 5)))
    said = [new, draw(replies(TITLES and [f"## {title}" for title in TITLES[:5]])), new.replace("w1", "w7")]
    return "".join(text for _, text in pieces), pieces, draw(st.permutations(said))


#: A heading of level 2 or 3, underlined or not, with content below it.
_FILLED = r"^(?:#{2,3} .*|\w+\n---)\n+(?:\w|```)"


@settings(deadline=None, max_examples=300)
@given(turns(), st.booleans())
def test_a_turn_that_passes_has_lost_no_adr_and_no_good_section(
    case: tuple[str, list[Piece], list[str]], repair_first: bool
) -> None:
    first, pieces, said = case
    rules = (StepMarkerValidator(), ADRStructureValidator(), AnyRule())
    policy = Policy(order={"step_marker": ("repair", "retry", "fallback")} if repair_first else {})
    history = [judge([], first, rules, policy=policy)]
    for reply in said:
        if not isinstance(decide(history, policy), Retry):
            break
        history.append(judge(history, reply, rules, policy=policy))
    decision = decide(history, policy)
    if isinstance(decision, Accept):
        passed = history[-1].answer
    elif isinstance(decision, Fallback):
        repaired = repair_attempt(history[decision.attempt - 1], history, rules)
        passed = repaired.text if repaired.accepted else ""
    else:
        passed = ""
    event(f"{type(decision).__name__} {bool(passed)}")
    for part, _ in pieces if passed else ():
        title = part.removeprefix("## ")
        assert title in passed or ENGLISH.get(title, title) in passed or part == "step_marker"
    assert not passed or len(re.findall(_FILLED, passed.replace("\r", ""), re.MULTILINE)) >= len(pieces) - 2
