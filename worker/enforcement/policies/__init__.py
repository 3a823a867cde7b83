"""The policy file: which rules validate which turns, and how to react to errors. See docs/policy.md."""

from api_client.contract.policy import AppliesTo as AppliesTo
from api_client.contract.policy import PolicyFile as PolicyFile
from api_client.contract.policy import PolicyRule as PolicyRule
from api_client.contract.policy import Subject as Subject
from worker.enforcement.policies.chosen import ChosenRules as ChosenRules
from worker.enforcement.policies.chosen import build as build
from worker.enforcement.policies.chosen import choose as choose
from worker.enforcement.policies.comparison import ChangedJudgement as ChangedJudgement
from worker.enforcement.policies.comparison import Comparison as Comparison
from worker.enforcement.policies.comparison import JudgedTurn as JudgedTurn
from worker.enforcement.policies.comparison import RecordedAttempt as RecordedAttempt
from worker.enforcement.policies.comparison import Rejects as Rejects
from worker.enforcement.policies.comparison import rejects as rejects
from worker.enforcement.policies.policy_file import PolicyError as PolicyError
from worker.enforcement.policies.policy_file import read_policy as read_policy
from worker.enforcement.policies.schema import json_schema as json_schema
