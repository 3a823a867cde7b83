"""Rules with options for policy files, each a frozen dataclass. docs/rules/ has a page for each rule."""

from worker.enforcement.rules.citations import Citations as Citations
from worker.enforcement.rules.claims import Claims as Claims
from worker.enforcement.rules.code_blocks import CodeBlocks as CodeBlocks
from worker.enforcement.rules.forbidden import ForbiddenRule as ForbiddenRule
from worker.enforcement.rules.json_schema import JsonSchema as JsonSchema
from worker.enforcement.rules.language import Language as Language
from worker.enforcement.rules.length import Length as Length
from worker.enforcement.rules.links import LinksRule as LinksRule
from worker.enforcement.rules.llm_judge import LlmJudge as LlmJudge
from worker.enforcement.rules.program_rule import CommandRule as CommandRule
from worker.enforcement.rules.pydantic_model import PydanticModel as PydanticModel
from worker.enforcement.rules.regex import Regex as Regex
from worker.enforcement.rules.repetition import RepetitionRule as RepetitionRule
from worker.enforcement.rules.rule import Rule as Rule
from worker.enforcement.rules.rule import option as option
from worker.enforcement.rules.structure import Structure as Structure

RULES: dict[str, type[Rule]] = {
    rule.kind: rule
    for rule in (
        Citations,
        Claims,
        CodeBlocks,
        CommandRule,
        ForbiddenRule,
        JsonSchema,
        Language,
        Length,
        LinksRule,
        LlmJudge,
        PydanticModel,
        Regex,
        RepetitionRule,
        Structure,
    )
}
