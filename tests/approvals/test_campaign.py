"""Nothing runs that nobody allowed, whatever an agent tries at its hook."""

import pytest

from tests.approvals.__main__ import played
from tests.approvals.stages import AGENTS

pytestmark = pytest.mark.long


@pytest.mark.parametrize("agent", AGENTS)
def test_nothing_runs_that_nobody_allowed(agent: str) -> None:
    found = [(case.kind, case.name, ran) for case, ran in played(agent, every=20)]
    assert [each for each in found if each[2]] == []
    assert len(found) >= 150
