"""Rule: an answer's statements about the agent's work agree with the tool call log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.claims.journal import Journal
from worker.enforcement.claims.statements import claims_in
from worker.enforcement.rules.claim_check import contradiction
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.rules.rule import Rule, option

#: Context key of the tool call log of the turn's runs; missing or None if there is no log.
JOURNAL = "journal"


@dataclass(frozen=True, kw_only=True)
class Claims(Rule):
    """Rule that rejects statements about the agent's work if the tool call log refutes them."""

    kind: ClassVar[str] = "claims"

    tests: tuple[str, ...] = option((), "Beginnings of commands that run tests, besides those with usual names.")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Report each untrue statement; warn with CLAIMS_NOT_CHECKABLE if there is no tool call log."""
        locale, journal = self.words_in(context), context.get(JOURNAL)
        claims = claims_in(response)
        if not isinstance(journal, Journal):
            return [rule_issue("CLAIMS_NOT_CHECKABLE", locale, line=claims[0].line)] if claims else []
        found = [each for claim in claims if (each := contradiction(claim, journal, self.tests))]
        return [
            rule_issue(each.ground, locale, line=each.claim.line, **{"claim": each.claim.said, **each.evidence})
            for each in found
        ]
