"""Every ending of the real CLI gets the verdict it deserves: none is taken for complete, none is thrown away."""

from __future__ import annotations

import pytest

from tests.claude.endings import ENDINGS, Ending, mistakes
from tests.claude.running import Agent


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name.replace(" ", "-"))
def test_an_ending_is_seen_for_what_it_is(ending: Ending, agent: Agent) -> None:
    if ending.obstacle:
        pytest.skip(ending.obstacle)
    ran = ending.run(agent)
    assert mistakes(ending, ran) == [], ran.evidence
