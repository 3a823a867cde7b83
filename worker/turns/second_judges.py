"""The list of all additional checks of answers."""

from __future__ import annotations

from worker.turns.second_judge import SecondJudge
from worker.turns.shadow_rules import ShadowRules

SECOND_JUDGES: tuple[SecondJudge, ...] = (ShadowRules(),)
