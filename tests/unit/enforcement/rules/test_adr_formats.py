"""The presets of `structure` know the forms in which people write decision records, and miss what is not there."""

import re

import pytest

from worker.enforcement import Accept, Policy, decide_next, validate_attempt
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.splice import Part
from worker.enforcement.rules import StructureRule
from worker.enforcement.rules.adr_formats import PRESETS

TITLE = "# Keep sessions on the worker\n\n"
CONTEXT = "A worker that restarts loses its sessions, and users sign in again.\n\n"
DECISION = "We keep sessions in a table of the store.\n\n"
FOLLOWS = "- Good, because a restart costs nobody a session.\n- Bad, because each request reads the store.\n"
OPTIONS = "* a table of the store\n* a cookie\n\n"
MADR = (
    f"## Context and Problem Statement\n\n{CONTEXT}## Considered Options\n\n{OPTIONS}## Decision Outcome\n\n{DECISION}"
)
NYGARD = f"## Context\n\n{CONTEXT}## Decision\n\n{DECISION}## Consequences\n\n{FOLLOWS}"
DEUTSCH = f"## Kontext\n\n{CONTEXT}## Entscheidung\n\n{DECISION}## Konsequenzen\n\n{FOLLOWS}"
Y_STATEMENT = (
    "In the context of **sessions**, facing **restarts of workers**,\nwe decided for **a table** and neglected "
    "**a cookie**,\nto achieve **sign-ins that last**, accepting that **each request reads the store**.\n"
)
Y_SATZ = (
    "Im Kontext der Sitzungen, angesichts von Neustarts, haben wir uns für eine Tabelle entschieden, um Anmeldungen\n"
    "zu erhalten, und nehmen in Kauf, dass jede Anfrage den Speicher liest.\n"
)
MADR_3 = f"{MADR}### Consequences\n\n{FOLLOWS}"
MADR_DE = (
    f"## Kontext und Problemstellung\n\n{CONTEXT}## Betrachtete Optionen\n\n{OPTIONS}## Entscheidung\n\n{DECISION}"
)
ARC42 = (
    f"### Fragestellung\n\n{CONTEXT}### Einflussfaktoren\n\nZeit.\n\n### Betrachtete Alternativen\n\n{OPTIONS}"
    f"### Getroffene Entscheidung\n\n{DECISION}"
)
LABELS = f"* **Kontext:** {CONTEXT}* **Entscheidung**: {DECISION}* **Konsequenzen**:\n{FOLLOWS}"
SUPERSEDES = "Date: 2026-11-28\n\n## Status\n\nAccepted\n\nSupersedes [3. Cookies](0003-cookies.md)\n\n"
YAML_4 = '---\nstatus: "superseded by ADR-0123"\ndecision-makers: Ann\n---\n\n'
TABLE = "| Field | Value |\n|---|---|\n| **Status** | Draft |\n\n"
LINE = "**Status:** Accepted | **Date:** 2026-11-28 | **Review:** 2027\n\n"

#: Form -> presets that it passes, and its text.
FORMS = {
    "MADR 2": (
        "adr adr-madr",
        f"{TITLE}* Status: accepted\n* Deciders: Ann\n\n{MADR}### Positive Consequences\n\n{FOLLOWS}",
    ),
    "MADR 3": ("adr adr-madr adr-nygard", f"---\nstatus: accepted\ndate: 2026-11-28\n---\n{TITLE}{MADR_3}"),
    "MADR 4": ("adr adr-madr adr-nygard", f"{YAML_4}{TITLE}{MADR_3}\n### Confirmation\n\nBy a test.\n"),
    "MADR 4, bare": ("adr-madr", f"{TITLE}{MADR}"),
    "MADR, German": ("adr adr-madr", f"{TITLE}- **Status:** angenommen\n\n{MADR_DE}"),
    "MADR, log4brains": ("adr adr-madr", f"{TITLE}- Status: draft\n- Tags: sessions\n\n{MADR}## Links\n\n- [x](y)\n"),
    "Nygard": ("adr adr-nygard", f"{TITLE}## Status\n\nProposed\n\n{NYGARD}"),
    "Nygard, inline": ("adr adr-nygard", f"{TITLE}Status: Accepted\n\n{NYGARD}"),
    "Nygard, several facts on a line": ("adr adr-nygard", f"{TITLE}{LINE}{NYGARD}"),
    "Nygard, table": ("adr adr-nygard", f"{TITLE}{TABLE}{NYGARD}"),
    "Nygard, status in its heading": ("adr adr-nygard", f"{TITLE}## Status: Accepted\n\n{NYGARD}"),
    "Nygard, numbered, with emoji": (
        "adr adr-nygard",
        f"{TITLE}## 1. Status\n\nPending\n\n" + NYGARD.replace("## ", "## 📋 2. "),
    ),
    "Nygard, German": ("adr adr-nygard", f"{TITLE}## Status\n\nVorgeschlagen\n\n{DEUTSCH}"),
    "Nygard, one level deeper": (
        "adr adr-nygard",
        f"## 12. A title\n\n### Status\n\nAccepted\n\n{NYGARD.replace('## ', '### ')}",
    ),
    "adr-tools": ("adr adr-nygard", f"# 12. Keep sessions\n\n{SUPERSEDES}{NYGARD}"),
    "Y-statement": ("adr", f"# Sessions\n\nStatus: accepted\n\n{Y_STATEMENT}"),
    "Y-statement below Decision": ("adr", f"# Sessions\n\n## Status\n\nAccepted\n\n## Decision\n\n> {Y_STATEMENT}"),
    "Y-statement, German": ("adr", f"# Sitzungen\n\n* Status: akzeptiert\n\n{Y_SATZ}"),
    "arc42, German": ("adr", f"## Sitzungen\n\nStatus: entschieden\n\n{ARC42}"),
    "list of labels": ("adr adr-nygard", f"# Nr. 1\n\n* **Status**: Akzeptiert\n{LABELS}"),
}


def codes(text: str, preset: str, **options: bool) -> list[tuple[str, str]]:
    issues = StructureRule(preset=preset, locale="en", **options).validate(text, {"locale": "en"})
    return [(issue.code, issue.part) for issue in issues]


@pytest.mark.parametrize(("presets", "text"), FORMS.values(), ids=list(FORMS))
def test_each_form_passes_its_presets(presets: str, text: str) -> None:
    wanted = presets.split()
    assert {preset: codes(text, preset) for preset in wanted} == {preset: [] for preset in wanted}
    assert {preset: codes(text.replace("\n", "\r\n"), preset) for preset in wanted} == {preset: [] for preset in wanted}


@pytest.mark.parametrize("form", [name for name, (presets, _) in FORMS.items() if presets != "adr-madr"])
def test_a_record_without_a_status_lacks_it(form: str) -> None:
    text = re.sub(r"(?im)^(?:## status.*\n\n.*|.*\bstatus\b.*)\n", "", FORMS[form][1])
    assert ("MISSING_SECTION", "## Status") in codes(text, "adr")
    assert ("MISSING_SECTION", "## Status") in codes(f"{text}\n```\nStatus: accepted\n```\n", "adr")


def test_a_missing_status_is_an_error_where_the_form_has_one_and_else_a_warning() -> None:
    for preset, passes in (("adr", True), ("adr-nygard", False)):
        attempt = validate_attempt([], f"{TITLE}{NYGARD}", [StructureRule(preset=preset)])
        assert [(issue.code, issue.is_error) for issue in attempt.issues] == [("MISSING_SECTION", not passes)]
        assert isinstance(decide_next([attempt]), Accept) is passes
        empty = validate_attempt([], f"{TITLE}Status: TBD\n\n{NYGARD}", [StructureRule(preset=preset)])
        assert [issue.code for issue in empty.errors] == ["EMPTY_SECTION"]


@pytest.mark.parametrize(
    ("form", "gone", "missing"),
    [
        ("MADR, log4brains", f"## Considered Options\n\n{OPTIONS}", "## Considered Options"),
        ("MADR, log4brains", f"## Decision Outcome\n\n{DECISION}", "## Decision Outcome"),
        ("MADR, German", f"## Betrachtete Optionen\n\n{OPTIONS}", "## Betrachtete Optionen"),
        ("Nygard", f"## Context\n\n{CONTEXT}", "## Context"),
        ("Nygard, German", f"## Entscheidung\n\n{DECISION}", "## Entscheidung"),
        ("Nygard, one level deeper", f"### Consequences\n\n{FOLLOWS}", "## Consequences"),
        ("Y-statement", "to achieve **sign-ins that last**, ", "## Context"),
        ("Y-statement, German", "angesichts von Neustarts, ", "## Context"),
        ("Nygard, one level deeper", f"### Decision\n\n{DECISION}", "## Decision"),
        ("list of labels", f"* **Entscheidung**: {DECISION}", "## Decision"),
    ],
)
def test_a_part_that_was_cut_out_is_asked_for_and_completes_the_record(form: str, gone: str, missing: str) -> None:
    preset, text = FORMS[form][0].split()[-1], FORMS[form][1]
    assert text.count(gone) == 1
    found = codes(text.replace(gone, ""), preset)
    assert found[0] == ("MISSING_SECTION", missing)
    whole = text.replace(gone, "")
    for _, part in found:
        whole = Part(part).put(whole, DECISION)
    assert codes(whole, preset) == []


@pytest.mark.parametrize(
    "status",
    [
        "TBD",
        "",
        "proposed | accepted | deprecated",
        "{proposed | rejected | accepted}",
        "proposed / accepted / rejected",
        "...",
    ],
)
def test_a_status_that_nobody_chose_is_empty(status: str) -> None:
    for text in (f"## Status\n\n{status}\n\n", f"* Status: {status}\n\n", f"**Status**: {status}\n\n"):
        assert codes(f"{TITLE}{text}{NYGARD}", "adr-nygard") == [("EMPTY_SECTION", "## Status")]
    assert not codes(f"{TITLE}## Status\n\n{status}\n\n{NYGARD}", "adr-nygard", filled=False)


@pytest.mark.parametrize(
    "status",
    ["draft", "Pending", "🟢 Accepted", "Superseded by [3](0003-a/b.md)", "Offen", "`accepted`", "Accepted, 2026"],
)
def test_any_word_is_a_status(status: str) -> None:
    for text in (f"## Status\n\n{status}\n\n", f"- **Status:** {status}\n\n", f"---\nstatus: '{status}'\n---\n"):
        assert codes(f"{text}{TITLE}{NYGARD}", "adr") == []


def test_a_status_of_something_else_below_is_not_the_record_s() -> None:
    assert codes(f"{TITLE}{NYGARD}\n- Status: 200 for each request\n", "adr") == [("MISSING_SECTION", "## Status")]


def test_an_empty_part_is_asked_for_by_its_own_title() -> None:
    text = FORMS["arc42, German"][1].replace(CONTEXT, "TBD\n\n")
    assert codes(text, "adr") == [("EMPTY_SECTION", "## Fragestellung")]
    assert codes(Part("## Fragestellung").put(text, CONTEXT), "adr") == []


def test_the_order_counts_where_it_is_wanted() -> None:
    text = f"{TITLE}## Status\n\nAccepted\n\n## Decision\n\n{DECISION}## Context\n\n{CONTEXT}"
    assert codes(text, "adr") == []
    assert codes(text, "adr", ordered=True) == [("SECTION_ORDER", "")]
    assert codes(FORMS["MADR 3"][1], "adr-madr", ordered=True) == []


def test_a_plain_answer_is_no_record_and_other_rules_leave_it_alone() -> None:
    assert all(codes("The sky is blue.\n", preset) for preset in PRESETS)
    assert decide_next([validate_attempt([], "The sky is blue.\n", [], policy=Policy())]) == Accept(1)


def test_parts_are_found_once_each_line_of_a_long_text() -> None:
    text = "in the context of " * 20_000
    assert codes(text, "adr")[0][0] == "MISSING_SECTION"
    assert parse_document(text).out.headings == []
