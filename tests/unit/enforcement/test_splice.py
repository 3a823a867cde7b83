"""Parts that are put into an answer leave its other bytes where they belong."""

from __future__ import annotations

import pytest

from worker.enforcement.documents.splice import Part, remove_copies

HEAD = '---\nadr_id: "036"\ntitle: T\nstatus: draft\n---\n\n# ADR-036: T\n\n'
ANCHOR = '<a id="decision"></a>'


@pytest.mark.parametrize("head", ["# Notes\n\n", HEAD], ids=["text", "adr"])
@pytest.mark.parametrize(
    "anchors", [f"{ANCHOR}\n", f"{ANCHOR}\n\n", '<a name="d">\n\n', f'<a id="old"></a>\n{ANCHOR}\n']
)
def test_an_anchor_stays_above_its_heading_when_a_section_is_added_or_replaced(head: str, anchors: str) -> None:
    later = f"{anchors}## Decision\n\nWe cache.\n"
    added = f"{head}## Context\n\nLoads are slow.\n\n{later}"
    assert Part.section("Context").put(head + later, "Loads are slow.") == added
    old = f"{head}## Context\n\nOld words.\n\n{later}"
    assert Part.section("Context").put(old, "Loads are slow.") == added
    assert Part.section("Context").text(old) == "Old words."


def test_the_anchor_of_a_second_copy_goes_with_the_copy_and_the_next_one_stays() -> None:
    answer = f'## Context\n\nA.\n\n<a id="again"></a>\n## Context\n\nB.\n\n{ANCHOR}\n## Decision\n'
    assert remove_copies(answer, "Context") == f"## Context\n\nA.\n\n{ANCHOR}\n## Decision\n"


def test_a_section_before_the_first_line_goes_behind_the_byte_order_mark() -> None:
    after = Part.section("Context").put("\ufeff## Decision\n\nWe cache.\n", "Loads are slow.")
    assert after == "\ufeff## Context\n\nLoads are slow.\n\n## Decision\n\nWe cache.\n"
