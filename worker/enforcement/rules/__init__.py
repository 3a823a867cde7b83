"""Rules with options, as a policy file names them. Each is one frozen dataclass: its fields are its options.

docs/rules/ has a page for each. ``worker.enforcement.policies`` reads the file that names them.
"""

from worker.enforcement.rules.claims import Claims
from worker.enforcement.rules.external import CommandRule, LlmJudge
from worker.enforcement.rules.markdown import Citations, CodeBlocks, Language, LinksRule, Structure
from worker.enforcement.rules.rule import Rule, option
from worker.enforcement.rules.texts import Forbidden, JsonSchema, Length, PydanticModel, Regex

#: The rules by the names that a policy file gives them.
RULES: dict[str, type[Rule]] = {
    rule.kind: rule
    for rule in (
        Citations,
        Claims,
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
    "Claims",
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
