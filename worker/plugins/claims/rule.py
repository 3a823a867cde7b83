"""The rule ``claims``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.rules import EVIDENCE, ObservedRun, Rule, option
from worker.enforcement.rules.codes import rule_issue
from worker.enforcement.tool_call_log import ToolCallLog
from worker.plugins.claims.contradiction import find_contradiction
from worker.plugins.claims.files_on_disk import MOST_FILES, find_files
from worker.plugins.claims.statements import find_named_paths, find_statements


@dataclass(frozen=True, kw_only=True)
class ClaimsRule(Rule):
    """Rejects answers with statements about the agent's work that the log of tool calls disproves."""

    kind: ClassVar[str] = "claims"
    collects: ClassVar[bool] = True

    tests: tuple[str, ...] = option((), "Beginnings of commands that run tests, besides those with usual names.")

    @classmethod
    def collect(cls, run: ObservedRun) -> dict[str, Any]:
        """Return the log of a run's tool calls, with the states of the files that the agent wrote or named."""
        log, earlier = run.tool_calls, None if run.earlier is None else ToolCallLog.read(run.earlier)
        if log is None or (run.earlier is not None and earlier is None):
            return {}
        written = [call.what for call in log.calls if call.kind == "write"]
        files = find_files(run, [*find_named_paths(run.text), *written])
        log = replace(log, files=files, whole=log.whole and len(files) < MOST_FILES)
        return (earlier + log if earlier else log).to_dict(run.redact)

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue for each false statement, or a warning if there is no log to check against."""
        locale, log = self.find_locale(context), join_logs(context)
        statements = find_statements(response)
        if log is None:
            return [rule_issue("CLAIMS_NOT_CHECKABLE", locale, line=statements[0].line)] if statements else []
        found = [each for statement in statements if (each := find_contradiction(statement, log, self.tests))]
        return [
            rule_issue(each.ground, locale, line=each.statement.line, **{"claim": each.statement.said, **each.evidence})
            for each in found
        ]


def join_logs(context: Mapping[str, Any]) -> ToolCallLog | None:
    """Join the tool call logs of all runs that the answer may describe. Return None if any run has no log."""
    joined: ToolCallLog | None = None
    for evidence in context.get(EVIDENCE) or ():
        log = ToolCallLog.read(evidence.get(ClaimsRule.kind, {}))
        if log is None:
            return None
        joined = joined + log if joined else log
    return joined
