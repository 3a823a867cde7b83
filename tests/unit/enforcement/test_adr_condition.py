"""``applies_to: content: [adr]`` covers ADRs of every common form, and no ordinary answer."""

import pytest

from api_client.contract.policy import Content
from tests.unit.enforcement.samples import ADR
from worker.enforcement.policies import AppliesTo
from worker.enforcement.policies.chosen_rules import meets_condition

CHOICE = "## Context and Problem Statement\n\nSlow.\n\n## Decision Outcome\n\nChosen: a cache.\n"
NYGARD = "## Status\n\nAccepted\n\n## Context\n\nSlow.\n\n## Decision\n\nA cache.\n"


@pytest.mark.parametrize(
    ("answer", "covered"),
    [
        (ADR, True),
        (f"# Use a cache\n\n{CHOICE}", True),
        (f"---\nstatus: accepted\ndate: 2026-01-01\n---\n\n# Use a cache\n\n{CHOICE}", True),
        (f"# 1. Use a cache\n\nDate: 2026-01-01\n\n{NYGARD}", True),
        ("# 1. Cache\n\n* Status: accepted\n\n## Entscheidung\n\nEin Cache.\n", True),
        ("In the context of search, facing load, we decided for a cache to achieve speed, accepting memory.", True),
        ("Nimm einen Cache. Das ist eine gute Entscheidung.", False),
        ("## Context\n\nSlow.\n\n## Next steps\n\nMeasure it.", False),
        ("Status: done\n\n## Summary\n\nAll tests pass.", False),
    ],
)
def test_a_rule_for_adrs_covers_their_common_forms_and_no_ordinary_answer(answer: str, covered: bool) -> None:
    assert meets_condition(AppliesTo(content=(Content.ADR,)), answer) is covered
