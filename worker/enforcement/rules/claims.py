"""The rule."""

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

#: The key of the context under which the journal of the turn's runs is; missing or None: there is none.
JOURNAL = "journal"


@dataclass(frozen=True, kw_only=True)
class Claims(Rule):
    """Compares; looks at nothing itself. What the journal cannot tell is accepted."""

    kind: ClassVar[str] = "claims"

    tests: tuple[str, ...] = option((), "Beginnings of commands that run tests, besides those with usual names.")

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """One issue for each claim that is untrue; CLAIMS_NOT_CHECKABLE, a warning, where there is no journal."""
        locale, journal = self.words_in(context), context.get(JOURNAL)
        claims = claims_in(response)
        if not isinstance(journal, Journal):
            return [rule_issue("CLAIMS_NOT_CHECKABLE", locale, line=claims[0].line)] if claims else []
        found = [each for claim in claims if (each := contradiction(claim, journal, self.tests))]
        return [
            rule_issue(each.ground, locale, line=each.claim.line, **{"claim": each.claim.said, **each.evidence})
            for each in found
        ]
