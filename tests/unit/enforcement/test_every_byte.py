"""What leaves or enters an accepted text is put in or left out by name; every other byte stays, in all paths."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.enforcement.samples import ADR, HEADER
from worker.enforcement import (
    Accept,
    ADRStructureValidator,
    Attempt,
    Policy,
    StepMarkerValidator,
    ValidationIssue,
    decide,
    judge,
)
from worker.enforcement.going_on import go_on, unfinished
from worker.enforcement.repaired import repair_attempt

RULES = (StepMarkerValidator(), ADRStructureValidator())
MARKER = "<!-- STEP: generate -->"
BLOCKS = [
    "Wir setzen den Cache {n} vor die Suche.",
    "<details>\n<summary>S</summary>\n\ninnen {n}\n\n</details>",
    "<section>\nZeile {n}\n</section>",
    "<answer>\n42{n}\n</answer>",
    "<div class='a'>\n<p>Absatz {n}</p>\n</div>",
    "<table>\n<tr><td>{n}</td></tr>\n</table>",
    "```xml\n<a>\n<answer>{n}</answer>\n<section>\n</section>\n</a>\n```",
    "```html\n<details>\n{n}\n</details>\n```",
    "```markdown\n# Titel {n}\n\n<response>\n```",
    "~~~\n## Kontext {n}\n~~~",
    "| a | b |\n|---|---|\n| {n} | <br> |",
    "    x{n} = 1\n    y = 2",
    "- eins {n}\n  - zwei\n\n    drei",
    "> Zitat {n}\n> zweite Zeile",
    "### Tiefer {n}\n\nText.",
    "Zeile {n}  \nmit Umbruch\tund Tab",
    "<!-- Anmerkung {n} -->",
    "***\n\nDer Index {n} bleibt.",
    "[Verweis {n}](#k) und `code` und **fett**",
    "a\u00a0b\u2028c\x0bd {n}",
]
BODIES = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=7).map(
    lambda blocks: "\n\n".join(block.format(n=n) for n, block in enumerate([*blocks, BLOCKS[0]]))
)
LACKING = ADR.replace("## Entscheidung\n\nWir nehmen einen Cache.\n\n", "") + f"\n{MARKER}\n"
HEAD, TAIL = LACKING.split("## Akzeptanzkriterien")


def asked(first: str, reply: str) -> Attempt:
    """The second attempt of a turn, which must be accepted."""
    history = [judge([], first, RULES)]
    history.append(judge(history, reply, RULES))
    assert decide(history) == Accept(2), history[-1].issues
    return history[-1]


@settings(max_examples=150, deadline=None)
@given(body=BODIES, eol=st.sampled_from(["\n", "\r\n"]), reply_eol=st.sampled_from(["\n", "\r\n"]))
@pytest.mark.parametrize("path", ["part alone", "said before", "whole", "tag", "fence"])
def test_a_section_comes_in_as_it_was_sent_and_nothing_else_changes(
    path: str, body: str, eol: str, reply_eol: str
) -> None:
    section = f"## Entscheidung\n\n{body}"
    reply = {
        "part alone": section,
        "said before": f"Hier ist die Section:\n\n{section}",
        "whole": f"{HEAD}{section}\n\n## Akzeptanzkriterien{TAIL}",
        "tag": f"<answer>\n{section}\n</answer>",
        "fence": f"`````markdown\n{section}\n`````",
    }[path]
    second = asked(LACKING.replace("\n", eol), reply.replace("\n", reply_eol))
    wanted = f"{HEAD}## Entscheidung\n\n{body}\n\n## Akzeptanzkriterien{TAIL}"
    assert second.answer == wanted.replace("\n", eol)
    assert second.answer.replace("\r\n", "\n") == reply or any("## Entscheidung" in edit for edit in second.edits)


@settings(max_examples=150, deadline=None)
@given(body=BODIES, eol=st.sampled_from(["\n", "\r\n"]), reply=BODIES)
def test_asked_for_a_marker_or_a_field_no_byte_of_the_sections_changes(body: str, eol: str, reply: str) -> None:
    answer = (
        f"{HEADER}\n# ADR-040: X\n\n## Kontext\n\n{body}\n\n## Entscheidung\n\nx\n\n## Akzeptanzkriterien\n\n- [ ] y"
    )
    answer = answer.replace("\n", eol)
    second = asked(answer, f"{reply}\n\n{MARKER}")
    assert second.answer == f"{answer}{eol * 2}{MARKER}"
    lacking = answer.replace(f"status: Proposed{eol}", "") + f"{eol}{eol}{MARKER}"
    assert asked(lacking, "status: Proposed").answer == f"{answer}{eol}{eol}{MARKER}"


@settings(max_examples=150, deadline=None)
@given(body=BODIES, eol=st.sampled_from(["\n", "\r\n"]))
def test_the_fallback_and_a_repair_before_asking_change_no_other_byte(body: str, eol: str) -> None:
    answer = body.replace("\n", eol)
    policy = Policy(order={"step_marker": ("repair", "fail")})
    first = judge([], answer, RULES[:1], policy=policy)
    assert first.answer.startswith(answer)
    assert first.answer[len(answer) :].strip().startswith("<!-- STEP: ")
    assert first.changes
    repaired = repair_attempt(judge([], answer, RULES[:1]), [], RULES[:1])
    assert repaired.text.startswith(answer)
    assert repaired.changes


@settings(max_examples=150, deadline=None)
@given(body=BODIES, cut=st.floats(0.2, 1), eol=st.sampled_from(["\n", "\r\n"]))
def test_going_on_keeps_every_byte_before_the_break_and_behind_it(body: str, cut: float, eol: str) -> None:
    whole = f"{HEAD}## Entscheidung\n\n{body}".replace("\n", eol)
    so_far = unfinished(
        [Attempt(number=1, text=(text := whole[: round(len(whole) * cut)]), answer=text, complete=False)]
    )
    if not so_far or not whole[len(so_far) :].strip():
        return
    joined = go_on(so_far, whole[so_far.rstrip().rfind("\n") + 1 :])
    if joined.fits:
        assert joined.text == whole
    assert so_far.startswith(joined.text[: joined.kept])


class Whole(StepMarkerValidator):
    """A rule about the whole answer."""

    name = "whole"

    def validate(self, response: str, context: object) -> list[ValidationIssue]:
        return [ValidationIssue("BAD", "bad", "anew")] if "BAD" in response else []


@settings(max_examples=100, deadline=None)
@given(body=BODIES, eol=st.sampled_from(["\n", "\r\n"]))
def test_a_whole_new_answer_is_taken_byte_for_byte(body: str, eol: str) -> None:
    history = [judge([], "Das ist BAD. " * 3, [Whole()])]
    history.append(judge(history, body.replace("\n", eol), [Whole()]))
    assert history[-1].answer == body.replace("\n", eol)
    assert history[-1].edits == ()
