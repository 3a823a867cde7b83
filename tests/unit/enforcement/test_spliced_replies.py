"""Surgical retry (docs/enforcement.md): a repair is spliced in, a fragment never replaces an answer."""

import re

import pytest

from tests.unit.enforcement.samples import ADR, repair_once
from worker.enforcement import (
    Accept,
    ADRStructureValidator,
    Attempt,
    Retry,
    StepMarkerValidator,
    decide_next,
    validate_attempt,
)
from worker.enforcement.rules import StructureRule

TEXT = "Wir nehmen Redis, weil es schon da ist."
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


@pytest.mark.parametrize(
    "after", ["", "\n\n## Operation\n\nThe writer deletes outdated entries as soon as it saves one."]
)
@pytest.mark.parametrize("frame", [True, False])
def test_a_section_that_ends_with_the_anchor_of_the_next_one_doubles_no_anchor(frame: bool, after: str) -> None:
    anchored = NOTES.replace("## Operation", '<a id="operation"></a>\n\n## Operation')
    rules = [StructureRule(sections=("Decision",))]
    history = [validate_attempt([], anchored, rules)]
    decision = decide_next(history)
    assert isinstance(decision, Retry)
    tag = re.findall("<part id=.*?>", decision.feedback)[-1]
    section = f'## Decision\n\n{TEXT}\n\n<a id="operation"></a>{after}'
    reply = f"{tag}\n{section}\n</part>" if frame else section
    repaired = validate_attempt(history, reply, rules, feedback=decision.feedback).answer
    assert repaired == anchored.replace("## Decision\n", f"## Decision\n\n{TEXT}\n")


@pytest.mark.parametrize("rest", ["", "\n\nTODO", "\n\n<a name='how'>\n\n[...]"])
def test_a_section_of_anchors_and_placeholders_is_none(rest: str) -> None:
    attempt = repair_notes(f'FRAME\n## Decision\n\n<a id="why"></a>{rest}\n</part>')
    assert (attempt.answer, bool(attempt.issues)) == (NOTES, True)


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
    answer, decision = repair_once(StructureRule(sections=(title,)), first, reply.format(section[0].rstrip()))
    assert (answer.rstrip(), decision) == (NYGARD.rstrip(), Accept(2))


def test_a_whole_answer_with_the_same_lines_is_taken_in_its_own_order() -> None:
    whole = NOTES.replace("## Decision\n", f"## Choice of a store\n\n{TEXT}\n")
    first = NOTES.replace("## Decision\n\n", "")
    for reply in (whole, f"{whole}\n<!-- STEP: why -->\n"):
        assert repair_once(StructureRule(sections=("Choice of a store",)), first, reply) == (reply, Accept(2))


@pytest.mark.parametrize("form", ["<h2>{}</h2>", "1. {}", "**{}**"])
def test_a_whole_answer_does_not_stand_beside_sections_whose_headings_were_none(form: str) -> None:
    first = re.sub("(?m)^## (.*)", lambda found: form.format(found[1]), ADR)
    rule = StructureRule(sections=("Kontext", "Entscheidung", "Akzeptanzkriterien"))
    assert repair_once(rule, first, ADR) == (ADR, Accept(2))


def test_a_whole_answer_replaces_a_short_text_under_another_title() -> None:
    rule = StructureRule(sections=("Context", "Decision", "Consequences"))
    assert repair_once(rule, "# Limits: summary\n\nIn short: a limit.\n", NYGARD) == (NYGARD, Accept(2))


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
    answer, _ = repair_once(StructureRule(sections=("Decision",)), RUNBOOK, whole.replace(before, after))
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
