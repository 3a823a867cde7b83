"""Rules with options, as a policy file names them. Each is one frozen dataclass: its fields are its options.

docs/rules/ has a page for each. ``worker.enforcement.policies`` reads the file that names them.
"""

from worker.enforcement.rules.citations import Citations
from worker.enforcement.rules.code_blocks import CodeBlocks
from worker.enforcement.rules.command import CommandRule
from worker.enforcement.rules.forbidden import Forbidden
from worker.enforcement.rules.json_schema import JsonSchema
from worker.enforcement.rules.language import Language
from worker.enforcement.rules.length import Length
from worker.enforcement.rules.links import LinksRule
from worker.enforcement.rules.llm_judge import LlmJudge
from worker.enforcement.rules.pydantic_model import PydanticModel
from worker.enforcement.rules.regex import Regex
from worker.enforcement.rules.rule import Rule, option
from worker.enforcement.rules.structure import Structure

#: The rules by the names that a policy file gives them.
RULES: dict[str, type[Rule]] = {
    rule.kind: rule
    for rule in (
        Citations,
        CodeBlocks,
        CommandRule,
        Forbidden,
        JsonSchema,
        Language,
        Length,
        LinksRule,
        LlmJudge,
        PydanticModel,
        Regex,
        Structure,
    )
}

__all__ = [
    "RULES",
    "Citations",
    "CodeBlocks",
    "CommandRule",
    "Forbidden",
    "JsonSchema",
    "Language",
    "Length",
    "LinksRule",
    "LlmJudge",
    "PydanticModel",
    "Regex",
    "Rule",
    "Structure",
    "option",
]
