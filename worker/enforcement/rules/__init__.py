"""Rules with options, as a policy file names them. Each is one frozen dataclass: its fields are its options.

docs/rules/ has a page for each. ``worker.enforcement.policies`` reads the file that names them.
"""

from worker.enforcement.rules.claims import Claims as Claims
from worker.enforcement.rules.external import CommandRule as CommandRule
from worker.enforcement.rules.external import LlmJudge as LlmJudge
from worker.enforcement.rules.markdown import Citations as Citations
from worker.enforcement.rules.markdown import CodeBlocks as CodeBlocks
from worker.enforcement.rules.markdown import Language as Language
from worker.enforcement.rules.markdown import LinksRule as LinksRule
from worker.enforcement.rules.markdown import Structure as Structure
from worker.enforcement.rules.rule import Rule as Rule
from worker.enforcement.rules.rule import option as option
from worker.enforcement.rules.texts import Forbidden as Forbidden
from worker.enforcement.rules.texts import JsonSchema as JsonSchema
from worker.enforcement.rules.texts import Length as Length
from worker.enforcement.rules.texts import PydanticModel as PydanticModel
from worker.enforcement.rules.texts import Regex as Regex

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
