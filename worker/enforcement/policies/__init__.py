"""The policy file: which rules judge which turns, and what follows from their errors. docs/policy.md describes it."""

from api_client.contract.policy import AppliesTo, PolicyFile, PolicyRule, Subject
from worker.enforcement.policies.chosen import Chosen, build, choose
from worker.enforcement.policies.comparison import (
    ChangedJudgement,
    Comparison,
    Judged,
    RecordedAttempt,
    Rejects,
    rejects,
)
from worker.enforcement.policies.policy_file import PolicyError, read_policy
from worker.enforcement.policies.schema import json_schema

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
