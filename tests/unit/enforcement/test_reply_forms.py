"""Replies to a request for parts (docs/enforcement.md): frames and headings are read, and nothing else is guessed."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.policy import Content
from tests.unit.enforcement.samples import ADR, BODY, HEADER, codes, header_with
from worker.enforcement import (
    Accept,
    ADRStructureValidator,
    Attempt,
    Fallback,
    FileExistenceValidator,
    Part,
    Policy,
    ResponseValidator,
    Retry,
    StepMarkerValidator,
    ValidationIssue,
    build_feedback,
    decide_next,
    run_validators,
    validate_attempt,
)
from worker.enforcement.policies import AppliesTo
from worker.enforcement.policies.chosen_rules import meets_condition
from worker.enforcement.repair import repair_attempt
from worker.enforcement.rules import JsonSchemaRule, RegexRule, StructureRule

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
    class Vague(Wants):
        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [ValidationIssue("BAD", "bad", "write it", part=Part.section("Why"))] if "TBD" in response else []

    first = "# A\n\n## Why\n\nTBD\n\n## Then\n\nx\n\n## Why\n\n...\n\n# B\n\n## Why\n\ny\n"
    answer, decision = second(Vague(), first, "FRAME\n## Why\n\nWe measured it.\n</part>")
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


# A right later answer is taken however short it is, and a rule's own error asks for nothing.

CHATTER = "Here is what I think about the export of orders, before I come to the steps that you asked for. " * 4
JSON = '{"title": "Export", "steps": ["split"]}'
SCHEMA = {"type": "object", "required": ["title"]}


def second(rule: ResponseValidator, first: str, reply: str) -> tuple[str, object]:
    """The answer after a second reply, and what is decided then."""
    history = [validate_attempt([], first, [rule])]
    decision = decide_next(history)
    assert isinstance(decision, Retry)
    tag = re.search("<part id=.*?>", decision.feedback)
    reply = reply.replace("FRAME", tag[0] if tag else "")
    history.append(validate_attempt(history, reply, [rule], feedback=decision.feedback))
    return history[-1].answer, decide_next(history)


@pytest.mark.parametrize(
    "reply", [JSON, f"```json\n{JSON}\n```", f"```\n{JSON}\n```", f"Here is the JSON:\n\n```json\n{JSON}\n```"]
)
def test_where_the_whole_answer_is_json_a_short_one_is_taken(reply: str) -> None:
    assert second(JsonSchemaRule(schema=SCHEMA, where="whole"), CHATTER + JSON, reply) == (JSON, Accept(2))


@pytest.mark.parametrize("pattern", ["^(yes|no)$", r"\A(yes|no)\Z", r"(?i)^[a-z]{2,3}$"])
def test_where_the_whole_answer_is_one_value_it_is_taken(pattern: str) -> None:
    assert second(RegexRule(must=(pattern,)), CHATTER, "yes") == ("yes", Accept(2))


@pytest.mark.parametrize("pattern", ["Source:", "^Source: .+$", "^Status: (ok|late)$"])
def test_a_line_that_a_pattern_wants_in_an_answer_does_not_replace_the_answer(pattern: str) -> None:
    answer, decision = second(RegexRule(must=(pattern,)), CHATTER, "Source: x" if "Source" in pattern else "Status: ok")
    assert answer == CHATTER
    assert isinstance(decision, Retry)


@pytest.mark.parametrize(
    "reply", [JSON, f"```json\n{JSON}\n```", f"```\n{JSON}\n```", f"Sure:\n\n```json\n{JSON}\n```"]
)
@pytest.mark.parametrize("where", ["fence", "any"])
def test_a_json_block_that_was_asked_for_is_taken_with_its_fence_or_without(reply: str, where: str) -> None:
    answer, decision = second(JsonSchemaRule(schema=SCHEMA, where=where), CHATTER.strip(), reply)
    assert answer == f"{CHATTER.strip()}\n\n```json\n{JSON}\n```\n"
    assert decision == Accept(2)


def test_a_block_that_names_no_language_is_named() -> None:
    first = f"Before.\n\n```\n{JSON}\n```\n\nAfter."
    answer, _ = second(JsonSchemaRule(schema=SCHEMA, where="fence"), first, JSON)
    assert answer == first.replace("```\n{", "```json\n{")


class Wants(ResponseValidator):
    """Finds BAD in a part."""

    name = "wants"

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        found = "BAD" in response
        return [ValidationIssue("BAD", "bad", "write GOOD", part=Part.lines(2))] if found else []


@pytest.mark.parametrize(
    "reply",
    [
        "FRAME\nthe cache is GOOD\n</part>",
        "FRAME\n```text\nthe cache is GOOD\n```\n</part>",
        "```text\nthe cache is GOOD\n```",
        "first\nthe cache is GOOD\nlast",
    ],
)
def test_lines_are_taken_in_a_frame_a_block_and_in_the_whole_answer(reply: str) -> None:
    assert second(Wants(), "first\nthe cache is BAD\nlast", reply) == ("first\nthe cache is GOOD\nlast", Accept(2))


@pytest.mark.parametrize("reply", ["Sorry, I cannot do that.", "first\nBAD\nthird\nfourth", "the cache", "Done."])
def test_talk_and_other_lines_are_not_taken_for_lines(reply: str) -> None:
    assert second(Wants(), "first\nthe cache is BAD\nlast", reply)[0] == "first\nthe cache is BAD\nlast"


@pytest.mark.parametrize(
    ("answer", "judges"), [(JSON, True), (f"{JSON}\n\n<!-- STEP: done -->", True), ("[1]", True), (CHATTER, False)]
)
def test_a_condition_on_json_covers_a_bare_answer(answer: str, judges: bool) -> None:
    assert meets_condition(AppliesTo(content=(Content.JSON,)), answer) is judges


class Broken(ResponseValidator):
    """Cannot judge for so many times."""

    name = "broken"

    def __init__(self, times: int) -> None:
        self.times = times

    def validate(self, response: str, context: Mapping[str, Any]) -> Sequence[ValidationIssue]:  # type: ignore[override]
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("no model")
        return []


def test_a_rule_that_cannot_judge_is_asked_once_more_and_the_agent_is_not() -> None:
    rules = [Broken(1)]
    first = validate_attempt([], "fine", rules)
    assert decide_next([first]) == Fallback(1, ("VALIDATOR_ERROR",))
    assert repair_attempt(first, [first], rules).accepted
    assert not repair_attempt(first, [first], [Broken(9)]).accepted
    lenient = Policy(lenient=frozenset({"broken"}))
    assert decide_next([first], lenient) == Accept(1)


def test_beside_another_error_a_rule_that_cannot_judge_asks_for_nothing() -> None:
    decision = decide_next([validate_attempt([], "A long answer. " * 30, [Broken(9), StepMarkerValidator()])])
    assert isinstance(decision, Retry)
    assert "VALIDATOR_ERROR" not in decision.feedback
    assert "Send only the STEP marker" in decision.feedback


def test_talk_does_not_replace_a_short_answer() -> None:
    class NoCache(Wants):
        def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
            return [ValidationIssue("NO", "no", "without")] if "Cache" in response else []

    assert second(NoCache(), "Nimm einen Cache.", "Sorry, I cannot help with that request.")[0] == "Nimm einen Cache."
    assert second(NoCache(), "Nimm einen Cache.", "Nimm einen Index.") == ("Nimm einen Index.", Accept(2))


# Surgical retry (docs/enforcement.md): a repair is spliced in, a fragment never replaces an answer.

ALL = (StepMarkerValidator(), ADRStructureValidator())
LONG = "Das ist eine ausführliche Antwort auf die Frage. " * 20


def spliced(first: str, second: str) -> str:
    """The answer that counts when the agent says this first and that then."""
    return validate_attempt([validate_attempt([], first, ALL)], second, ALL).answer


NOTES = """# Notes on the cache

Here is why there is a cache before the search and what it keeps.

## Decision

## Operation

The writer deletes outdated entries as soon as it saves one.
"""


def repair_notes(reply: str) -> Attempt:
    """The second attempt after notes whose Decision is empty; ``FRAME`` stands for the frame's opening tag."""
    rules = [StructureRule(sections=("Decision",))]
    history = [validate_attempt([], NOTES, rules)]
    decision = decide_next(history)
    assert isinstance(decision, Retry)
    tag = re.findall("<part id=.*?>", decision.feedback)[-1]
    return validate_attempt(history, reply.replace("FRAME", tag), rules, feedback=decision.feedback)


WHOLE_NOTES = NOTES.replace("## Decision\n", f"## Decision\n\n{TEXT}\n")


@pytest.mark.parametrize(
    "reply",
    [
        f"FRAME\n## Decision\n\n{TEXT}\n</part>\n\nSo it is between FRAME and </part>, as you asked.",
        f"It is between FRAME and </part>:\n\nFRAME\n## Decision\n\n{TEXT}\n</part>",
        f"Sure, here it is:\n\n{WHOLE_NOTES}\n\nThe rest stays. Let me know if anything is missing.",
        f"Sure, here it is:\n\n{WHOLE_NOTES}",
    ],
)
def test_a_remark_that_names_the_tags_or_stands_around_the_whole_answer_is_left_out(reply: str) -> None:
    assert repair_notes(reply).answer == WHOLE_NOTES


def test_a_part_may_show_a_frame_in_a_code_block() -> None:
    shown = f'{TEXT}\n\n```text\n<part id="3fa9c1">\n…\n</part>\n```\n\nSo much for frames.'
    repaired = repair_notes(f"FRAME\n## Decision\n\n{shown}\n</part>\n\nDone.")
    assert repaired.answer == NOTES.replace("## Decision\n", f"## Decision\n\n{shown}\n")


@pytest.mark.parametrize(
    "body",
    [
        '```json\n{"kind": "frame", "seq": 1}\n```',
        "```\n[1, 2]\n```",
        "```json\n[]\n```",
        '```json\n{"name": "cache", "type": "module", "tool": "ruff", "action": "fix"}\n```',
        '```json\n{"name": "cache",\n```',
        f'{TEXT}\n\n```json\n{{"tool": "write", "args": {{}}}}\n```',
        "functions.php holds the hook of the theme.",
        "functions.php (in the theme) holds the hook.",
        "Tool calls: the agent may read files.",
        "Action: Anna writes the runbook.",
        "Alles andere bleibt in Python.",
        "### Decision drivers\n\nIt is there.\n\n### Context\n\nEarlier notes.",
    ],
)
def test_a_section_may_be_json_alone_or_speak_of_tools_or_have_children_with_titles_of_adrs(body: str) -> None:
    for around in ("FRAME\n{}\n</part>", "```markdown\n{}\n```"):
        for heading in ("## Decision", "### Decision"):
            if body.startswith("###") and heading.startswith("###"):
                continue
            reply = around.format(f"{heading}\n\n{body}").replace("```markdown", "````markdown")
            reply = f"{reply}`" if reply.startswith("````") else reply
            assert repair_notes(reply).answer == NOTES.replace("## Decision\n", f"## Decision\n\n{body}\n")


def test_children_at_the_level_of_the_heading_stay_where_the_answer_has_no_section_of_that_title() -> None:
    body = f"{TEXT}\n\n### Context\n\nEarlier notes."
    assert body in repair_notes(f"### Decision\n\n{body}").answer
    assert "Somebody" not in repair_notes(f"### Decision\n\n{TEXT}\n\n### Operation\n\nSomebody.").answer


@pytest.mark.parametrize(
    "remark",
    [
        "**Note:** Only this section has been changed.",
        "> Note: only this section was rewritten.",
        "*** End of reply ***",
        "P.S. The search needs an index too.",
        "Everything else in the section about the search is identical.",
    ],
)
def test_a_closing_remark_in_mark_up_is_not_put_in(remark: str) -> None:
    assert repair_notes(f"## Decision\n\n{TEXT}\n\n{remark}").answer == NOTES


@pytest.mark.parametrize(
    "call",
    [
        'functions.write({"path": "a.md"})',
        'functions.write ({"path": "a.md"})',
        'functions.write:0 {"path": "a.md"}',
        'functions.write\n{"path": "a.md"}',
        'to=functions.write code {"path": "a.md"}',
        "*** Update File: a.md\n@@\n+x",
        "--- a/a.md\n+++ b/a.md\n@@ -1 +1 @@",
        "<action>write</action>",
    ],
)
def test_a_tool_call_below_the_heading_is_no_section(call: str) -> None:
    assert repair_notes(f"FRAME\n## Decision\n\n{call}\n</part>").answer == NOTES


@pytest.mark.parametrize(
    "call",
    [
        '{\n  "name": "write",\n  "arguments": {"path": "a.md"}\n}',
        '{\n  "name": "write",\n  "parameters": {"path": "a.md"}\n}',
        '[{"type": "tool_use", "id": "1", "name": "write", "input": {}}]',
        '{"type": "tool_use", "id": "1"}',
        '{"tool": "write", "args": {"path": "a.md"}}',
        '{"tool": "write", "input": "a.md"}',
        '{"action": "final_answer", "action_input": "Done."}',
        '{"tool_calls": [{"id": "1"}]}',
        '{"role": "assistant", "function_call": {"name": "write"}}',
        '{"id": "1", "type": "function", "function": {"name": "write", "arguments": "{}"}}',
        '{"tool": "read", "args": {}}\n{"tool": "write", "args": {}}',
    ],
)
def test_a_code_block_with_a_tool_call_as_json_is_no_section(call: str) -> None:
    for block in (f"```json\n{call}\n```", f"~~~\n{call}\n~~~", f"```json\n[1]\n```\n\n```json\n{call}\n```"):
        assert repair_notes(f"FRAME\n## Decision\n\n{block}\n</part>").answer == NOTES


CALL = '{"tool": "write", "args": {"path": "a.md"}}'


@pytest.mark.parametrize(
    "body",
    [
        CALL,
        f"{CALL}\n{CALL}",
        f"I write the file now.\n\n{CALL}",
        f"{CALL}\n\nThe file of the cache is written.",
        'Now:\n\n{\n  "action": "write",\n  "action_input": "a.md"\n}',
        f"Now:\n\n[{CALL}]",
        '{"cache": "Redis"}\n{"ttl": 5}',
        '["Redis"]',
        "null",
    ],
)
def test_tool_calls_and_bare_json_are_no_section(body: str) -> None:
    for reply in (f"FRAME\n## Decision\n\n{body}\n</part>", f"## Decision\n\n{body}", body, f"FRAME\n{body}\n</part>"):
        assert repair_notes(reply).answer == NOTES


@pytest.mark.parametrize(
    "body",
    [
        '"We cache."',
        "42",
        'The cache has these values:\n\n{"ttl": 5}',
        f"- {CALL}",
        f"Agents send:\n\n```json\n{CALL}\n```",
    ],
)
def test_words_and_examples_in_json_are_a_section(body: str) -> None:
    assert f"## Decision\n\n{body}\n" in repair_notes(f"FRAME\n## Decision\n\n{body}\n</part>").answer


NYGARD = """# 12. Limits at the edge

Date: 2026-03-02

## Status

Accepted

## Context

Some tenants starve the others.

## Decision

Each tenant has a limit at the proxy.

## Consequences

Tenants see status 429.
"""


@pytest.mark.parametrize("title", ["Status", "Context", "Decision", "Consequences"])
@pytest.mark.parametrize("reply", ["FRAME\n{}\n</part>", "{}", "````markdown\n{}\n````"])
def test_a_missing_section_of_a_record_without_header_goes_where_records_have_it(title: str, reply: str) -> None:
    section = re.search(rf"## {title}\n\n.*\n", NYGARD)
    assert section
    first = NYGARD.replace(f"{section[0]}\n", "").replace(section[0], "")
    answer, decision = second(StructureRule(sections=(title,)), first, reply.format(section[0].rstrip()))
    assert (answer.rstrip(), decision) == (NYGARD.rstrip(), Accept(2))


def test_a_whole_answer_with_the_same_lines_is_taken_in_its_own_order() -> None:
    whole = NOTES.replace("## Decision\n", f"## Choice of a store\n\n{TEXT}\n")
    first = NOTES.replace("## Decision\n\n", "")
    for reply in (whole, f"{whole}\n<!-- STEP: why -->\n"):
        assert second(StructureRule(sections=("Choice of a store",)), first, reply) == (reply, Accept(2))


@pytest.mark.parametrize("form", ["<h2>{}</h2>", "1. {}", "**{}**"])
def test_a_whole_answer_does_not_stand_beside_sections_whose_headings_were_none(form: str) -> None:
    first = re.sub("(?m)^## (.*)", lambda found: form.format(found[1]), ADR)
    rule = StructureRule(sections=("Kontext", "Entscheidung", "Akzeptanzkriterien"))
    assert second(rule, first, ADR) == (ADR, Accept(2))


def test_a_whole_answer_replaces_a_short_text_under_another_title() -> None:
    rule = StructureRule(sections=("Context", "Decision", "Consequences"))
    assert second(rule, "# Limits: summary\n\nIn short: a limit.\n", NYGARD) == (NYGARD, Accept(2))


RUNBOOK = (
    NOTES.replace(
        "## Operation\n\n",
        """## Operation

- stop the writers
- take the backup on 12. May
- drop the table

```python
try:
    first()
except Missing:
    pass
try:
    second()
except Missing:
    pass
```

""",
    )
    + "\n## Costs\n\nThere are none that matter.\n\n## Risks\n\nThe index may be old.\n"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("## Costs\n\n", ""),
        ("## Costs\n\n", "Costs\n\n"),
        ("12. May", "19. May"),
        ("- drop the table\n", ""),
        ("- stop the writers\n- take the backup on 12. May\n- drop the table", "- drop the table\n- stop the writers"),
        (
            "- stop the writers\n- take the backup on 12. May\n- drop the table",
            "- drop the table\n- stop the writers\n- take the backup on 12. May",
        ),
        ("    second()\nexcept Missing:\n    pass\n", "    second()\n"),
    ],
)
def test_a_whole_answer_that_loses_or_moves_what_nobody_named_gives_only_the_section(before: str, after: str) -> None:
    assert before in RUNBOOK
    whole = RUNBOOK.replace("## Decision\n", f"## Decision\n\n{TEXT}\n")
    answer, _ = second(StructureRule(sections=("Decision",)), RUNBOOK, whole.replace(before, after))
    assert answer.rstrip() == whole.rstrip()


def test_a_section_with_the_words_of_all_the_others_does_not_replace_them() -> None:
    words = " ".join(sorted(set(re.findall(r"\w+", NOTES))))
    assert repair_notes(f"Here it is:\n\n## Decision\n\n{words} {TEXT}").answer == NOTES


@pytest.mark.parametrize(
    "reply",
    [
        "<!-- STEP: what -->",
        "\n<!-- STEP: WHAT -->\n",
        "```html\n<!-- STEP: what -->\n```",
        "Hier ist der Marker: <!-- STEP: what -->",
        "Entschuldigung, hier kommt er.\n\n<!-- STEP: what -->",
        "Der Marker: `<!-- STEP: what -->`",
        "```html\n<!-- STEP: what -->\n```\nFertig.",
    ],
)
def test_a_bare_marker_is_put_under_the_answer_before(reply: str) -> None:
    assert spliced(LONG, reply) == f"{LONG}\n\n<!-- STEP: what -->"


def test_a_bare_marker_replaces_the_wrong_one() -> None:
    assert spliced(f"{LONG}\n<!-- STEP: foo -->\n", "<!-- STEP: why -->") == f"{LONG}\n<!-- STEP: why -->\n"


@pytest.mark.parametrize("reply", ["Erledigt.", "OK", "", "Der Marker ist <!-- STEP: quatsch -->"])
def test_a_fragment_changes_nothing(reply: str) -> None:
    assert spliced(LONG, reply) == LONG


@pytest.mark.parametrize("reply", ["{}", "```markdown\n{}\n```", "{}\n\n<!-- STEP: generate -->"])
def test_a_missing_last_section_goes_before_the_marker(reply: str) -> None:
    head, tail = ADR.split("## Akzeptanzkriterien")
    section = "## Akzeptanzkriterien" + tail.rstrip()
    assert spliced(f"{head}<!-- STEP: done -->", reply.format(section)) == f"{head}{section}\n\n<!-- STEP: done -->"


def test_a_fragment_after_an_incomplete_attempt_is_spliced_into_the_best_complete_one() -> None:
    history = [validate_attempt([], LONG, ALL)]
    history.append(validate_attempt(history, "Das F", ALL, complete=False))
    assert validate_attempt(history, "<!-- STEP: done -->", ALL).answer == f"{LONG}\n\n<!-- STEP: done -->"


def test_an_accepted_answer_before_is_no_base_for_splicing() -> None:
    accepted = Attempt(number=1, text=LONG, answer=LONG)
    assert validate_attempt([accepted], "Neu", ALL).answer == "Neu"
