"""The list of all additional checks of answers."""

from __future__ import annotations

from worker.turns.shadow_check import ShadowCheck
from worker.turns.shadow_rules import ShadowRules

SHADOW_CHECKS: tuple[ShadowCheck, ...] = (ShadowRules(),)
