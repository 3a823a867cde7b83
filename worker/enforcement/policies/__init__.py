"""The policy file: which rules judge which turns, and what follows from their errors. docs/policy.md describes it."""

from api_client.contract.policy import AppliesTo, PolicyFile, PolicyRule, Subject
from worker.enforcement.policies.chosen import Chosen, build, choose
from worker.enforcement.policies.comparison import Change, Comparison, Judged, Recorded, Rejects, rejects
from worker.enforcement.policies.policy_file import PolicyError, read_policy
from worker.enforcement.policies.schema import json_schema

__all__ = [
    "AppliesTo",
    "Change",
    "Chosen",
    "Comparison",
    "Judged",
    "PolicyError",
    "PolicyFile",
    "PolicyRule",
    "Recorded",
    "Rejects",
    "Subject",
    "build",
    "choose",
    "json_schema",
    "read_policy",
    "rejects",
]
