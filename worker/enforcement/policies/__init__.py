"""The policy file: which rules validate which turns, and how to react to errors. See docs/policy.md."""

from api_client.contract.policy import AppliesTo as AppliesTo
from api_client.contract.policy import PolicyFile as PolicyFile
from api_client.contract.policy import PolicyRule as PolicyRule
from api_client.contract.policy import PolicySubject as PolicySubject
from worker.enforcement.policies.chosen_rules import ChosenRules as ChosenRules
from worker.enforcement.policies.chosen_rules import build_rules as build_rules
from worker.enforcement.policies.chosen_rules import choose_rules as choose_rules
from worker.enforcement.policies.policy_file import PolicyError as PolicyError
from worker.enforcement.policies.policy_file import read_policy as read_policy
from worker.enforcement.policies.schema import build_json_schema as build_json_schema
