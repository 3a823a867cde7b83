"""Replies to a request for parts (docs/enforcement.md): frames and headings are read, and nothing else is guessed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.enforcement.samples import ADR, BODY, HEADER, codes, header_with, repair_once
from worker.enforcement import (
    Accept,
    ADRStructureValidator,
    Attempt,
    FileExistenceValidator,
    Part,
    ResponseValidator,
    Retry,
    StepMarkerValidator,
    ValidationIssue,
    build_feedback,
    decide_next,
    run_validators,
    validate_attempt,
)

RULES = (StepMarkerValidator(), ADRStructureValidator(), FileExistenceValidator(Path(__file__).parent))
MARKER = "<!-- STEP: generate -->"
TEXT = "Wir nehmen Redis, weil es schon da ist."
CRITERIA = "- [ ] schneller als 100 ms\n- [ ] misst sich selbst\n- [ ] bleibt frisch"
YAML = HEADER.replace("---\n", "").strip()
ENGLISH = (
    ADR.replace("Kontext", "Context")
    .replace("Entscheidung", "Decision")
    .replace("Akzeptanzkriterien", "Acceptance Criteria")
)


def reply_to(first: str, *replies: str) -> list[Attempt]:
    """The attempts when the agent answers this first and then these; ``FRAME`` stands for the frame's opening tag."""
    history = [validate_attempt([], first, RULES)]
    decision = decide_next(history)
    assert isinstance(decision, Retry)
    feedback = decision.feedback
    for reply in replies:
        tags = re.findall(r"<part id=.*?>", feedback)
        for number, tag in reversed(list(enumerate(tags, 1))):
            reply = reply.replace(f"FRAME{number}", tag)
        reply = reply.replace("FRAME", tags[0] if tags else "")
        history.append(validate_attempt(history, reply, RULES, feedback=feedback))
        decision = decide_next(history)
        feedback = decision.feedback if isinstance(decision, Retry) else ""
    return history


def after(first: str, reply: str) -> str:
    """The answer that counts when the agent answers this first and then that; it must be accepted."""
    history = reply_to(first, reply)
    assert decide_next(history) == Accept(2), codes(history[-1].issues)
    return history[-1].answer


def without(title: str, text: str = ADR) -> str:
    """The answer without one of its sections, with a marker."""
    head, _, rest = text.partition(f"## {title}\n")
    return head + (rest[rest.index("## ") :] if "## " in rest else "") + f"\n{MARKER}\n"


HEADINGS = [
    "## Entscheidung\n\n{}",
    "## **Entscheidung**:\n{}",
    "## [Entscheidung](#entscheidung)\n\n{}",
    "## 2.1) Entscheidung\n\n{}",
    "## 🎯 Entscheidung <!-- neu -->\n\n{}",
    "## Entscheidung (ergänzt) ##\n\n{}",
    "##Entscheidung\n\n{}",
    "# Entscheidung\n\n{}",
    "#### Entscheidung\n\n{}",
    "Entscheidung\n------------\n\n{}",
    "**Entscheidung:**\n\n{}",
    "__Entscheidung__\n{}",
    "**Entscheidung:** {}",
    "## Section: ENTSCHEIDUNG\n\n{}",
    "## Decision Outcome\n\n{}",
]
FRAMES = [
    "FRAME\n{}\n</part>",
    "FRAME{}</part>",
    "Hier ist sie:\n\nFRAME\n{}\n</part>\n\nSag Bescheid, wenn noch etwas fehlt.",
    "```xml\nFRAME\n{}\n</part>\n```",
    "FRAME\n```markdown\n{}\n```\n</part>",
    "FRAME\nein Entwurf\n</part>\n\nBesser so:\n\nFRAME\n{}\n</part>",
    *(
        "**FRAME**\n{}\n**</part>**",
        "`FRAME`\n{}\n`</part>`",
        'FRAME\n{}\n</part id="3">',
        "FRAME\n{}\n<part />",
        "{}\n</part>",
    ),
]
BARE = [
    "{}",
    "{}\n\n" + MARKER,
    "```markdown\n{}\n```",
    "Hier die Section:\n\n```\n{}\n```\n\nDer Rest bleibt, wie er war.\n\n" + MARKER,
    "~~~md\n{}\n~~~\n\nSag Bescheid, wenn noch etwas fehlt.",
    "\ufeff{}",
]


@pytest.mark.parametrize("around", [*FRAMES, *BARE])
@pytest.mark.parametrize("section", HEADINGS)
def test_a_section_is_taken_from_its_frame_and_below_its_heading(section: str, around: str) -> None:
    answer = after(without("Entscheidung"), around.format(section.format(TEXT)))
    assert answer == ADR.replace("Wir nehmen einen Cache.", TEXT) + f"\n{MARKER}\n"


@pytest.mark.parametrize(
    "reply",
    [
        TEXT,
        f"Hier die Section:\n\n## Entscheidung\n\n{TEXT}",
        f"## Entscheidung\n\n{TEXT}\n\nSag Bescheid, wenn noch etwas fehlt.",
        f"## Entscheidung\n\n{TEXT}\n\n---\n\nAlles andere ist gleich geblieben.",
        f"FRAME\n{TEXT}\n</part>",
        f"FRAME\n## Entscheidung\n\n{TEXT}\n\nDer Rest bleibt unverändert.",
        f'<part id="aaaaaa">\n{TEXT}\n</part>',
        f"<section>\n{TEXT}\n</section>",
        "Ich habe die Section ergänzt.",
        "FRAME\n## Entscheidung\n\n…\n</part>",
        "FRAME\n## Entscheidung\n\n(unverändert)\n</part>",
        "FRAME\n## Entscheidung\n\nDabei kann ich leider nicht helfen.\n</part>",
        'FRAME\n## Entscheidung\n\n<invoke name="Write">\n</invoke>\n</part>',
        "FRAME\n## Konsequenzen\n\nMehr Speicher.\n</part>",
        "## Entscheidung\n\nTODO",
    ],
)
def test_what_is_no_part_for_certain_changes_nothing_and_the_frame_is_asked_for_again(reply: str) -> None:
    first = without("Entscheidung")
    history = reply_to(first, reply)
    assert history[-1].answer == first
    decision = decide_next(history)
    assert isinstance(decision, Retry)
    assert "Only what stands in its frame below is taken, heading included" in decision.feedback
    assert decide_next(reply_to(first, reply, f"FRAME\n## Entscheidung\n\n{TEXT}\n</part>")) == Accept(3)


def test_each_retry_has_its_own_frames_and_asking_twice_asks_the_same() -> None:
    first = without("Entscheidung")
    history = reply_to(first, "Nein.")
    asked = [re.findall("<part id=.*?>", decide_next(history[:n]).feedback) for n in (1, 1, 2)]  # type: ignore[union-attr]
    assert asked[0] == asked[1] != asked[2]


def test_children_of_a_section_stay_and_copies_of_other_sections_do_not_come_in() -> None:
    children = f"{TEXT}\n\n### Folgen\n\nMehr Speicher.\n\n#### Kosten\n\nWenig."
    for heading in ("## Entscheidung", "### Entscheidung", "**Entscheidung**"):
        for other in ("", "\n\n## Kontext\n\nEtwas anderes.", "\n\n## Hinweis\n\nDer Rest bleibt."):
            answer = after(without("Entscheidung"), f"FRAME\n{heading}\n\n{children}{other}\n</part>")
            assert answer == ADR.replace("Wir nehmen einen Cache.", children) + f"\n{MARKER}\n"


def test_lines_that_end_in_a_colon_and_last_sentences_are_part_of_a_section() -> None:
    body = "Wir nehmen folgende Bausteine:\n\n- Redis\n- der Index\n\nDas ersetzt ADR-036."
    for reply in ("FRAME\n## Entscheidung\n{}\n</part>", "## Entscheidung\n\n{}"):
        assert body in after(without("Entscheidung"), reply.format(body))


def test_of_a_whole_answer_with_placeholders_the_asked_section_is_taken() -> None:
    reply = ADR.replace("Die Suche ist langsam.", "(unverändert)").replace("Wir nehmen einen Cache.", TEXT)
    assert after(without("Entscheidung"), reply) == ADR.replace("Wir nehmen einen Cache.", TEXT) + f"\n{MARKER}\n"


HEADERS = [
    HEADER,
    f"```yaml\n{YAML}\n```",
    f"```yaml\n{HEADER}```",
    f"```\n{YAML}\n```",
    f"```yaml\n---\n{YAML}\n...\n```",
    YAML,
    f"{HEADER}\n# ADR-040: Ein Cache\n",
]


@pytest.mark.parametrize("around", ["FRAME\n{}\n</part>", "Hier:\n\nFRAME\n{}\n</part>\n\nFertig.", "{}"])
@pytest.mark.parametrize("header", HEADERS)
def test_a_missing_header_is_understood_in_every_form(header: str, around: str) -> None:
    first = f"{BODY.lstrip()}\n{MARKER}\n"
    assert after(first, around.format(header)) == f"{HEADER}\n{BODY.lstrip()}\n{MARKER}\n"


@pytest.mark.parametrize(
    "reply",
    [
        "FRAME\nstatus: Proposed\n</part>",
        "FRAME\n```yaml\nstatus: Proposed\n```\n</part>",
        "status: Proposed",
        "Hier die Zeile:\n\n```yaml\nstatus: Proposed\n```\n\nDer Rest bleibt.",
        "---\nstatus: Proposed\n---",
        HEADER,
        ADR,
    ],
)
def test_a_missing_line_of_the_header_is_put_behind_the_fields_before_it(reply: str) -> None:
    lacking = header_with('# intern\nowner: "Ada"\n').replace("status: Proposed\n", "") + f"\n{MARKER}\n"
    assert after(lacking, reply) == lacking.replace('Cache"\n', 'Cache"\nstatus: Proposed\n', 1)


def test_what_a_part_supersedes_goes_with_it() -> None:
    first = ADR.replace("Wir nehmen einen Cache.", "TBD") + f"\n## Entscheidung\n\nNoch offen.\n\n{MARKER}\n"
    reply = f"FRAME\n## Entscheidung\n\n{TEXT}\n</part>"
    assert after(first, reply) == ADR.replace("Wir nehmen einen Cache.", TEXT) + f"\n{MARKER}\n"
    fenced = f"Vorab.\n\n```yaml\n{YAML}\n```\n{BODY}\n{MARKER}\n"
    assert after(fenced, f"FRAME\n{HEADER}</part>") == f"Vorab.\n\n{HEADER}{BODY}\n{MARKER}\n"


def test_outside_of_adrs_a_part_replaces_the_copies_of_its_section_and_no_section_of_another_parent() -> None:
    class Vague(ResponseValidator):
        name = "vague"

        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [ValidationIssue("BAD", "bad", "write it", part=Part.section("Why"))] if "TBD" in response else []

    first = "# A\n\n## Why\n\nTBD\n\n## Then\n\nx\n\n## Why\n\n...\n\n# B\n\n## Why\n\ny\n"
    answer, decision = repair_once(Vague(), first, "FRAME\n## Why\n\nWe measured it.\n</part>")
    assert decision == Accept(2)
    assert answer == first.replace("TBD", "We measured it.").replace("## Why\n\n...\n\n", "")


@pytest.mark.parametrize(
    "reply",
    [
        "files:\n  modify: [samples.py]",
        "```yaml\nfiles:\n  modify:\n    - samples.py\n```",
        "Hier der Block:\n\n```yaml\nmodify:\n  - samples.py\n```\n\nDer Rest bleibt unverändert.",
        HEADER.removesuffix("---\n") + "files:\n  modify:\n    - samples.py\n---\n",
        header_with("files:\n  modify:\n    - samples.py\n"),
    ],
)
def test_the_files_of_a_header_are_exchanged_alone(reply: str) -> None:
    wrong = header_with("files:\n  modify:\n    - sampels.py\nowner: Ada\n") + f"\n{MARKER}\n"
    answer = after(wrong, reply)
    assert "sampels" not in answer
    assert answer.replace("    - samples.py\n", "").replace(" [samples.py]", "") == wrong.replace(
        "    - sampels.py\n", ""
    )


def test_several_parts_come_in_one_frame_each_or_together() -> None:
    first = without("Kontext", BODY.lstrip()).replace(MARKER, "")
    context = "## Kontext\n\nDie Suche ist langsam."
    for reply in (
        f"FRAME1\n{MARKER}\n</part>\nFRAME2\n{HEADER}</part>\nFRAME3\n{context}\n</part>",
        f"FRAME2\n{YAML}\n</part>\n\nFRAME3\n{context}\n</part>\n\n{MARKER}",
        f"FRAME2\n{HEADER}\n{context}\n</part>\n\n{MARKER}",
        f"{HEADER}\n{context}\n\n{MARKER}",
        f"```markdown\n{HEADER}\n{context}\n```\n\nDer Rest bleibt.\n\n{MARKER}",
    ):
        assert after(first, reply).rstrip() == f"{ADR.rstrip()}\n\n\n{MARKER}"


def test_code_in_a_section_in_a_fence_is_part_of_it() -> None:
    code = f"{TEXT}\n\n```python\ncache = {{}}\n```\n\nMehr braucht die Suche nicht."
    for around in ("## Entscheidung\n\n{}", "Hier:\n\n```markdown\n## Entscheidung\n\n{}\n```\n\nDer Rest bleibt."):
        assert code in after(without("Entscheidung"), around.format(code))


@pytest.mark.parametrize("tail", ["```python\nx = 1\n", "- x\n\n  ```\n  y = 2\n"])
def test_a_code_block_that_does_not_end_hides_no_section_behind_it(tail: str) -> None:
    answer = after(without("Entscheidung"), f"## Entscheidung\n\n{TEXT}\n\n{tail}")
    assert [line for line in answer.split("\n") if line.startswith("## ")] == [
        "## Kontext",
        "## Entscheidung",
        "## Akzeptanzkriterien",
    ]
    assert "schneller als 100 ms" in answer


def test_a_rule_and_a_block_of_code_are_part_of_a_section() -> None:
    for body in (f"{TEXT}\n\n---", f"{TEXT}\n\n***\n\nMehr nicht.\n\n---", "```python\ncache = {}\n```"):
        answer = after(without("Entscheidung"), f"FRAME\n## Entscheidung\n\n{body}\n</part>")
        assert answer == ADR.replace("Wir nehmen einen Cache.", body) + f"\n{MARKER}\n"


def test_a_section_that_would_hide_others_is_not_taken() -> None:
    first = without("Entscheidung")
    history = [validate_attempt([], first, RULES)]
    history.append(validate_attempt(history, f"## Entscheidung\n\n{TEXT}\n\n<!-- offen", RULES))
    assert history[-1].answer == first
    assert isinstance(decide_next(history), Retry)


@pytest.mark.parametrize("title", ["Context", "Decision", "Acceptance Criteria"])
def test_an_english_adr_is_asked_in_english_and_its_section_goes_where_it_belongs(title: str) -> None:
    consequences = "## Consequences\n\nMore memory.\n"
    first = without(title, f"{ENGLISH}\n{consequences}")
    decision = decide_next([validate_attempt([], first, RULES)])
    assert isinstance(decision, Retry)
    assert f"Send only the section '## {title}'" in decision.feedback
    body = CRITERIA if title.startswith("Acc") else TEXT
    answer = after(first, f"Sure!\n\nFRAME\n## {title}\n\n{body}\n</part>\n\nThe rest is unchanged.")
    order = [answer.index(f"## {name}") for name in ("Context", "Decision", "Acceptance Criteria", "Consequences")]
    assert order == sorted(order)


def test_an_adr_by_madr_is_asked_for_madrs_titles() -> None:
    madr = (
        ENGLISH.replace("## Context", "## Context and Problem Statement\n\nx\n\n## Considered Options")
        .replace("## Decision\n", "## Decision Outcome\n")
        .replace("## Acceptance", "## Consequences\n\nx\n\n## Acceptance")
    )
    assert run_validators(f"{madr}\n{MARKER}", RULES) == []
    first = without("Decision Outcome", madr)
    [issue] = run_validators(first, RULES)
    assert issue.part == "## Decision Outcome"
    answer = after(first, f"## Decision\n\n{TEXT}")
    assert answer.index("## Considered") < answer.index("## Decision Outcome") < answer.index("## Consequences")


def test_nygards_titles_pass_but_for_the_criteria_he_does_not_know() -> None:
    nygard = without("Acceptance Criteria", ENGLISH.replace("## Context", "## Status\n\nProposed\n\n## Context"))
    [issue] = run_validators(nygard, RULES)
    assert (issue.code, issue.part) == ("MISSING_ADR_SECTION", "## Acceptance Criteria")


@pytest.mark.parametrize(
    "heading",
    [
        "**Kontext**",
        "[Kontext](#k)",
        "Kontext <!-- x -->",
        "1. Kontext",
        "🎯 Kontext",
        "Kontext:",
        "Context",
        "`Kontext`",
        "Kontext und Problemstellung",
        "Context and Problem Statement",
        "Problemstellung",
        "Kontext – warum",
        "Kontext und Optionen",
        "Context and Scope",
    ],
)
def test_mark_up_that_is_understood_in_replies_is_understood_in_answers(heading: str) -> None:
    assert run_validators(f"{ADR}\n{MARKER}".replace("## Kontext", f"## {heading}"), RULES) == []


def test_an_adr_that_has_all_its_sections_at_level_three_is_complete() -> None:
    shifted = ADR.replace("## ", "### ") + f"\n{MARKER}\n"
    assert run_validators(shifted, RULES) == []
    first = shifted.replace("### Entscheidung\n\nWir nehmen einen Cache.\n\n", "")
    assert after(first, f"## Entscheidung\n\n{TEXT}") == shifted.replace("Wir nehmen einen Cache.", TEXT)


def test_the_feedback_names_exactly_what_is_to_be_sent() -> None:
    parts = ["yaml_header.title", "yaml_header.files", "step_marker"]
    issues = [ValidationIssue("X", "x", "y", part=part) for part in parts]
    asked = build_feedback(issues, nonce="0a1b2c")
    assert asked.endswith(
        "Send only the line 'title' of the YAML header, the whole block 'files' of the YAML header, the STEP marker: "
        "the rest of your answer is kept as it is.\n"
        "Write out each of them in full between its two lines, and nothing before or after them:\n\n"
        '<part id="0a1b2c-1">\ntitle: …\n</part>\n'
        '<part id="0a1b2c-2">\nfiles:\n  …\n</part>\n'
        '<part id="0a1b2c-3">\n<!-- STEP: … -->\n</part>'
    )
    assert '<part id="0a1b2c">\n## Kontext\n\n…\n</part>' in build_feedback(
        [ValidationIssue("X", "x", "y", part="## Kontext")], nonce="0a1b2c"
    )
