"""One rule of a policy file: which validator, with which options, and what follows from its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.enforcement.issue import Severity
from worker.enforcement.policies.applies_to import AppliesTo
from worker.enforcement.policy import DEFAULT_ORDER, Action

ON_ERROR = ("fail", "warn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of ``rules``.

    Attributes:
        rule: a rule with options, one of the three built-in validators, or an installed package's validator.
        name: how issues, metrics and requests name it; the rule's own name when the file gives none.
        options: the rule's options, as the file has them.
        severity: ``warning`` makes every error of the rule a warning.
        reactions: what is tried for its errors, one after the other (ADR-038: retry, fallback, fail).
        max_attempts: after so many rejections by this rule the agent is not asked again because of it; 0 for the
            policy's own bound.
        applies_to: which turns it judges.
        on_error: what a rule that raises or takes too long does to the answer: ``fail`` counts as an error of the rule,
            ``warn`` as a warning.
        shadow: it judges and is shown, and decides nothing.
        on_request: it judges only turns whose request names it.
        line: where it is in the file, from 1.
    """

    rule: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity = Severity.ERROR
    reactions: tuple[Action, ...] = DEFAULT_ORDER
    max_attempts: int = 0
    applies_to: AppliesTo = field(default_factory=AppliesTo)
    on_error: str = "fail"
    shadow: bool = False
    on_request: bool = False
    line: int = field(default=0, compare=False)

    @property
    def order(self) -> tuple[Action, ...]:
        """The reactions as ``Policy.order`` wants them."""
        return (Action.WARN,) if self.severity is Severity.WARNING else self.reactions

    def to_dict(self) -> dict[str, Any]:
        """The entry, JSON-ready and complete: what is a default is named too, but for what later versions added."""
        data = {
            "name": self.name,
            "rule": self.rule,
            "options": dict(self.options),
            "severity": str(self.severity),
            "reactions": [str(action) for action in self.reactions],
            "max_attempts": self.max_attempts,
            "applies_to": self.applies_to.to_dict(),
            "on_error": self.on_error,
            "shadow": self.shadow,
        }
        return data | ({"on_request": True} if self.on_request else {})
