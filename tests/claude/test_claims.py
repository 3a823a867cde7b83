"""The rule ``claims`` after real runs of the CLI; all scenes: ``python -m tests.lab.claims``."""

from dataclasses import replace

import pytest

from tests.claude.running import Agent
from tests.lab.claims.scenes import SCENES, Scene
from tests.lab.claims.transcripts import TOOLS, played
from worker.plugins.claims.rule import ClaimsRule

pytestmark = pytest.mark.long


@pytest.mark.parametrize("scene", [SCENES[0], SCENES[1], SCENES[3]], ids=lambda scene: scene.name)
def test_no_untrue_claim_passes_and_no_true_one_is_rejected(agent: Agent, scene: Scene) -> None:
    log, transcripts = played(replace(agent, settings=TOOLS), scene)
    for each in transcripts:
        found = [
            issue
            for issue in ClaimsRule().validate(each.answer, {"evidence": [{"claims": log.to_dict()}]})
            if issue.is_error
        ]
        assert bool(found) is not each.true, each
