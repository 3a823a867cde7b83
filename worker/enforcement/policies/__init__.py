"""The policy file: which rules judge which turns, and what follows from their errors. docs/policy.md describes it."""

from api_client.contract.policy import AppliesTo, PolicyFile, PolicyRule, Subject
from worker.enforcement.policies.chosen import (
    ChangedJudgement,
    Chosen,
    Comparison,
    Judged,
    RecordedAttempt,
    Rejects,
    build,
    choose,
    rejects,
)
from worker.enforcement.policies.policy_file import PolicyError, json_schema, read_policy

__all__ = [
    "AppliesTo",
    "ChangedJudgement",
    "Chosen",
    "Comparison",
    "Judged",
    "PolicyError",
    "PolicyFile",
    "PolicyRule",
    "RecordedAttempt",
    "Rejects",
    "Subject",
    "build",
    "choose",
    "json_schema",
    "read_policy",
    "rejects",
]
