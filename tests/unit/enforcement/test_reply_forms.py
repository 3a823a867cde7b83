"""Replies as models write them (docs/enforcement.md): each form is understood, and prose around it never lands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.enforcement.samples import ADR, BODY, HEADER, codes, header_with
from worker.enforcement import (
    Accept,
    ADRStructureValidator,
    FileExistenceValidator,
    Retry,
    StepMarkerValidator,
    ValidationIssue,
    build_feedback,
    decide,
    examine,
    judge,
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
TALK = ("Hier", "Rest", "bleibt", "unverändert", "Bescheid", "Entschuldigung", "folgt", "fehlte", "Sure", "rest")


def after(first: str, reply: str) -> str:
    """The answer that counts when the agent answers this first and then that; it must be accepted."""
    history = [judge([], first, RULES)]
    assert isinstance(decide(history), Retry)
    history.append(judge(history, reply, RULES))
    assert decide(history) == Accept(2), codes(history[-1].issues)
    assert not [word for word in TALK if word in history[-1].answer.replace("bleibt frisch", "")]
    return history[-1].answer


def without(title: str, text: str = ADR) -> str:
    """The answer without one of its sections, with a marker."""
    head, _, rest = text.partition(f"## {title}\n")
    return head + (rest[rest.index("## ") :] if "## " in rest else "") + f"\n{MARKER}\n"


SECTIONS = [
    "## Entscheidung\n\n{}",
    "## Entscheidung:\n\n{}",
    "## **Entscheidung**\n\n{}",
    "## __Entscheidung__:\n{}",
    "## [Entscheidung](#entscheidung)\n\n{}",
    "## 2. Entscheidung\n\n{}",
    "## 2.1) Entscheidung\n\n{}",
    "## 🎯 Entscheidung\n\n{}",
    "## 2️⃣ Entscheidung\n\n{}",
    "## Entscheidung <!-- neu -->\n\n{}",
    "## Entscheidung (ergänzt)\n\n{}",
    "## Entscheidung ##\n\n{}",
    "# Entscheidung\n\n{}",
    "### Entscheidung\n\n{}",
    "#### Entscheidung\n\n{}",
    "Entscheidung\n------------\n\n{}",
    "**Entscheidung**\n\n{}",
    "**Entscheidung:**\n\n{}",
    "## Section: Entscheidung\n\n{}",
    "## ENTSCHEIDUNG\n\n{}",
    "## Decision\n\n{}",
    "## Decision Outcome\n\n{}",
    "{}",
    "> **Hinweis:** neu\n\n## Entscheidung\n\n{}",
]
AROUND = [
    "{}",
    "{}\n\n" + MARKER,
    "Entschuldigung, die Section fehlte. Hier ist sie:\n\n{}",
    "Hier die Section:\n\n{}\n\nDer Rest bleibt unverändert.",
    "Hier die Section:\n\n{}\n\n---\n\nDer Rest der Antwort bleibt unverändert. Sag Bescheid, wenn etwas fehlt.",
    "```markdown\n{}\n```",
    "Hier die Section:\n\n```markdown\n{}\n```\n\nDer Rest bleibt, wie er war.\n\n" + MARKER,
    "Hier die Section:\n\n```\n{}\n```\n",
    "~~~md\n{}\n~~~\n\nDer Rest bleibt.",
    "````markdown\n{}\n````",
    "```markdown\n{}\n\n" + MARKER + "\n```",
    "\ufeff{}",
]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("section", SECTIONS)
def test_a_missing_section_is_understood_in_every_form(section: str, around: str) -> None:
    answer = after(without("Entscheidung"), around.format(section.format(TEXT)))
    assert answer == ADR.replace("Wir nehmen einen Cache.", TEXT) + f"\n{MARKER}\n"


@pytest.mark.parametrize("around", AROUND)
def test_criteria_are_understood_without_their_heading(around: str) -> None:
    answer = after(without("Akzeptanzkriterien"), around.format(CRITERIA))
    assert f"## Akzeptanzkriterien\n\n{CRITERIA}\n" in answer


@pytest.mark.parametrize(
    "reply",
    [
        f"> ## Entscheidung\n>\n> {TEXT}",
        f"- **Entscheidung**: {TEXT}",
        f"**Entscheidung:** {TEXT}",
        f"<section>\n## Entscheidung\n\n{TEXT}\n</section>",
        f"<details>\n<summary>Neu</summary>\n\n## Entscheidung\n\n{TEXT}\n\n</details>",
        f"```diff\n Es ist langsam.\n \n+## Entscheidung\n+\n+{TEXT}\n+\n ## Akzeptanzkriterien\n```",
        f"1. Section:\n\n   ```markdown\n   ## Entscheidung\n\n   {TEXT}\n   ```\n\n2. Marker:\n\n   `{MARKER}`",
        f"## Entscheidung\n{TEXT}\n{MARKER}\nDer Rest bleibt.",
        f"✅ Ergänzt:\n\n## Entscheidung\n\n{TEXT}\n\n✨ Viel Erfolg!",
        f"## Entscheidung\n\n{TEXT}\n\n---\n\nAlles andere bleibt unverändert.\n\nSoll ich noch etwas anpassen?",
        f"# Korrektur\n\n## Entscheidung\n\n{TEXT}\n\n## Hinweis\n\nDer Rest bleibt.",
        ADR.replace("Die Suche ist langsam.", "(unverändert)").replace("Wir nehmen einen Cache.", TEXT),
    ],
)
def test_a_section_is_understood_in_rarer_forms(reply: str) -> None:
    assert after(without("Entscheidung"), reply) == ADR.replace("Wir nehmen einen Cache.", TEXT) + f"\n{MARKER}\n"


def test_windows_line_endings_in_a_reply_are_no_part_of_it() -> None:
    answer = after(without("Entscheidung"), f"Hier:\r\n\r\n## Entscheidung\r\n\r\n{TEXT}\r\n")
    assert "\r" not in answer


HEADERS = [
    HEADER,
    f"```yaml\n{YAML}\n```",
    f"```yaml\n{HEADER}```",
    f"```\n{YAML}\n```",
    f"```markdown\n{HEADER}```",
    f"```yaml\n---\n{YAML}\n```",
    YAML,
    f"{HEADER}\n# ADR-040: Ein Cache\n",
    f"```yaml\n---\n{YAML}\n...\n```",
    f"```frontmatter\n{YAML}\n```",
    f"- **{YAML.replace(': ', '**: ').replace(chr(10), chr(10) + '- **')}",
]


@pytest.mark.parametrize("prose", [("", ""), ("Hier der Header:\n\n", "\n\nDer Rest bleibt unverändert.\n")])
@pytest.mark.parametrize("header", HEADERS)
def test_a_missing_header_is_understood_in_every_form(header: str, prose: tuple[str, str]) -> None:
    first = f"{BODY.lstrip()}\n{MARKER}\n"
    assert after(first, header.join(prose)) == f"{HEADER}\n{BODY.lstrip()}\n{MARKER}\n"


@pytest.mark.parametrize(
    "reply",
    [
        "status: Proposed",
        "`status: Proposed`",
        "- status: Proposed",
        "Hier die Zeile:\n\n```yaml\nstatus: Proposed\n```\n\nDer Rest bleibt.",
        "---\nstatus: Proposed\n---",
        HEADER,
        f"Hier:\n\n```yaml\n{YAML}\n```",
        ADR,
        "**status**: Proposed",
    ],
)
def test_a_missing_line_of_the_header_is_put_behind_the_fields_before_it(reply: str) -> None:
    lacking = header_with('# intern\nowner: "Ada"\n').replace("status: Proposed\n", "") + f"\n{MARKER}\n"
    assert after(lacking, reply) == lacking.replace('Cache"\n', 'Cache"\nstatus: Proposed\n', 1)


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


@pytest.mark.parametrize("around", ["{}", "Hier:\n\n```markdown\n{}\n```\n\nDer Rest bleibt.", "```\n{}\n```\nFertig."])
def test_several_parts_in_one_fence_are_all_taken(around: str) -> None:
    first = without("Kontext", BODY.lstrip()).replace(MARKER, "")
    reply = around.format(f"{HEADER}\n## Kontext\n\nDie Suche ist langsam.\n\n{MARKER}")
    answer = after(first, reply)
    assert answer == f"{HEADER}\n{BODY.lstrip().rstrip()}\n\n\n{MARKER}" or examine(answer, RULES) == []


def test_one_part_in_each_fence() -> None:
    first = without("Kontext", BODY.lstrip()).replace(MARKER, "")
    reply = (
        f"Hier der Header:\n\n```yaml\n{YAML}\n```\n\nUnd der Kontext:\n\n```markdown\n## Kontext\n\nEs ist langsam."
        f"\n```\n\nUnd der Marker:\n\n```html\n{MARKER}\n```\n\nDer Rest bleibt."
    )
    assert "## Kontext\n\nEs ist langsam.\n\n## Entscheidung" in after(first, reply)


def test_code_in_a_section_in_a_fence_is_part_of_it() -> None:
    code = f"{TEXT}\n\n```python\ncache = {{}}\n```\n\nMehr nicht."
    for around in ("## Entscheidung\n\n{}", "Hier:\n\n```markdown\n## Entscheidung\n\n{}\n```\n\nDer Rest bleibt."):
        assert code in after(without("Entscheidung"), around.format(code))


@pytest.mark.parametrize("reply", ["Der Marker: `<!-- STEP: done -->`", "```html\n<!-- STEP: done -->\n```\nFertig."])
def test_a_marker_in_code_is_taken_when_the_marker_was_asked_for(reply: str) -> None:
    assert after(ADR, reply) == f"{ADR}\n<!-- STEP: done -->"


@pytest.mark.parametrize(
    "reply",
    [
        "Ich habe die Section ergänzt.",
        "Die Section Entscheidung steht jetzt im ADR.",
        "Das geht leider nicht.",
        "Welche Datenbank soll ich nehmen?",
        "I have added the missing section to the ADR.",
        "Done. The rest of the answer is unchanged.",
        "Siehe oben.",
        "Die Suche ist langsam.",
        BODY.replace("## ", "").replace("# ", ""),
        "## Entscheidung\n\n(unverändert)",
        "## Entscheidung\n\nHier die Entscheidung:",
        "```python\nprint('Entscheidung fehlt')\n```",
    ],
)
def test_talk_about_a_section_is_never_taken_for_the_section(reply: str) -> None:
    first = without("Entscheidung")
    history = [judge([], first, RULES)]
    history.append(judge(history, f"{reply}\n\n{MARKER}", RULES))
    assert history[-1].answer == first
    assert isinstance(decide(history), Retry)


@pytest.mark.parametrize("tail", ["```python\nx = 1\n", "- x\n\n  ```\n  y = 2\n"])
def test_a_code_block_that_does_not_end_hides_no_section_behind_it(tail: str) -> None:
    answer = after(without("Entscheidung"), f"## Entscheidung\n\n{TEXT}\n\n{tail}")
    assert [line for line in answer.split("\n") if line.startswith("## ")] == [
        "## Kontext",
        "## Entscheidung",
        "## Akzeptanzkriterien",
    ]
    assert "schneller als 100 ms" in answer


def test_a_section_that_would_hide_others_is_not_taken() -> None:
    first = without("Entscheidung")
    history = [judge([], first, RULES)]
    history.append(judge(history, f"## Entscheidung\n\n{TEXT}\n\n<!-- offen", RULES))
    assert history[-1].answer == first
    assert isinstance(decide(history), Retry)


def test_a_heading_before_a_fence_that_holds_the_text_alone() -> None:
    reply = f"## Entscheidung\n\n```markdown\n{TEXT}\n```\n\nDer Rest bleibt unverändert."
    assert after(without("Entscheidung"), reply) == ADR.replace("Wir nehmen einen Cache.", TEXT) + f"\n{MARKER}\n"


@pytest.mark.parametrize("title", ["Context", "Decision", "Acceptance Criteria"])
def test_an_english_adr_is_asked_in_english_and_its_section_goes_where_it_belongs(title: str) -> None:
    consequences = "## Consequences\n\nMore memory.\n"
    first = without(title, f"{ENGLISH}\n{consequences}")
    decision = decide([judge([], first, RULES)])
    assert isinstance(decision, Retry)
    assert f"Send only the section '## {title}'" in decision.feedback
    body = CRITERIA if title.startswith("Acc") else TEXT
    answer = after(first, f"Sure! Here it is:\n\n## {title}\n\n{body}\n\nThe rest of the ADR is unchanged.")
    order = [answer.index(f"## {name}") for name in ("Context", "Decision", "Acceptance Criteria", "Consequences")]
    assert order == sorted(order)


def test_an_adr_by_madr_is_asked_for_madrs_titles() -> None:
    madr = (
        ENGLISH.replace("## Context", "## Context and Problem Statement\n\nx\n\n## Considered Options")
        .replace("## Decision\n", "## Decision Outcome\n")
        .replace("## Acceptance", "## Consequences\n\nx\n\n## Acceptance")
    )
    assert examine(f"{madr}\n{MARKER}", RULES) == []
    first = without("Decision Outcome", madr)
    [issue] = examine(first, RULES)
    assert issue.part == "## Decision Outcome"
    answer = after(first, f"## Decision\n\n{TEXT}")
    assert answer.index("## Considered") < answer.index("## Decision Outcome") < answer.index("## Consequences")


def test_nygards_titles_pass_but_for_the_criteria_he_does_not_know() -> None:
    nygard = without("Acceptance Criteria", ENGLISH.replace("## Context", "## Status\n\nProposed\n\n## Context"))
    [issue] = examine(nygard, RULES)
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
    ],
)
def test_mark_up_that_is_understood_in_replies_is_understood_in_answers(heading: str) -> None:
    assert examine(f"{ADR}\n{MARKER}".replace("## Kontext", f"## {heading}"), RULES) == []


@pytest.mark.parametrize(
    "heading", ["Kontext und Problemstellung", "Context and Problem Statement", "Problemstellung", "Kontext – warum"]
)
def test_what_is_understood_in_replies_is_understood_in_answers(heading: str) -> None:
    assert examine(f"{ADR}\n{MARKER}".replace("## Kontext", f"## {heading}"), RULES) == []


def test_an_adr_that_has_all_its_sections_at_level_three_is_complete() -> None:
    shifted = ADR.replace("## ", "### ") + f"\n{MARKER}\n"
    assert examine(shifted, RULES) == []
    first = shifted.replace("### Entscheidung\n\nWir nehmen einen Cache.\n\n", "")
    assert after(first, f"## Entscheidung\n\n{TEXT}") == shifted.replace("Wir nehmen einen Cache.", TEXT)


def test_the_feedback_names_exactly_what_is_to_be_sent() -> None:
    parts = ["yaml_header.title", "yaml_header.files", "step_marker"]
    issues = [ValidationIssue("X", "x", "y", part=part) for part in parts]
    assert build_feedback(issues).endswith(
        "Send only the line 'title' of the YAML header, the whole block 'files' of the YAML header, the STEP marker: "
        "the rest of your answer is kept as it is."
    )


@pytest.mark.parametrize(
    ("last", "is_content"),
    [
        ("J'attends votre confirmation avant de poursuivre.", False),
        ("Ik heb de ontbrekende sectie aan het document toegevoegd.", False),
        ("Session expired. Please log in again.", False),
        ("Ja, denn der Cache ist klein.", True),
        ("Soll ein Eintrag veralten, ersetzt ihn der Cache.", True),
    ],
)
def test_the_last_paragraph_of_a_section_is_content_where_it_speaks_of_the_subject(last: str, is_content: bool) -> None:
    judged = after(without("Entscheidung"), f"## Entscheidung\n\n{TEXT}\n\n{last}")
    assert (last in judged) is is_content
