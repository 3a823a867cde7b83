"""Rules with options for policy files, each a frozen dataclass with a page in docs/rules/."""

from collections.abc import Iterator, Mapping

from api_client.contract.plugins import PACKAGES, RULE, UnusablePlugin, find_plugins, load_plugin
from worker.enforcement.rules.citations import CitationsRule as CitationsRule
from worker.enforcement.rules.code_blocks import CodeBlocksRule as CodeBlocksRule
from worker.enforcement.rules.forbidden import ForbiddenRule as ForbiddenRule
from worker.enforcement.rules.json_schema import JsonSchemaRule as JsonSchemaRule
from worker.enforcement.rules.language import LanguageRule as LanguageRule
from worker.enforcement.rules.length import LengthRule as LengthRule
from worker.enforcement.rules.links import LinksRule as LinksRule
from worker.enforcement.rules.llm_judge import LlmJudgeRule as LlmJudgeRule
from worker.enforcement.rules.program_rule import CommandRule as CommandRule
from worker.enforcement.rules.pydantic_model import PydanticModelRule as PydanticModelRule
from worker.enforcement.rules.regex import RegexRule as RegexRule
from worker.enforcement.rules.repetition import RepetitionRule as RepetitionRule
from worker.enforcement.rules.rule import EVIDENCE as EVIDENCE
from worker.enforcement.rules.rule import ObservedRun as ObservedRun
from worker.enforcement.rules.rule import Rule as Rule
from worker.enforcement.rules.rule import option as option
from worker.enforcement.rules.structure import StructureRule as StructureRule

_BUILT_IN: dict[str, type[Rule]] = {
    rule.kind: rule
    for rule in (
        CitationsRule,
        CodeBlocksRule,
        CommandRule,
        ForbiddenRule,
        JsonSchemaRule,
        LanguageRule,
        LengthRule,
        LinksRule,
        LlmJudgeRule,
        PydanticModelRule,
        RegexRule,
        RepetitionRule,
        StructureRule,
    )
}
#: Our own rules and those of our plug-ins, which may run in the worker's own process.
OUR_RULES = frozenset({*_BUILT_IN, *PACKAGES[RULE]})


class RuleTable(Mapping[str, type[Rule]]):
    """A mapping of rule names to classes, with built-in rules and rules installed as plug-ins."""

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*_BUILT_IN, *sorted(find_plugins(RULE)))))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in _BUILT_IN or name in find_plugins(RULE)

    def __getitem__(self, name: str) -> type[Rule]:
        """Return the class of a rule. Raises ``ValueError`` if the plug-in cannot be imported or is no ``Rule``."""
        if name in _BUILT_IN or name not in self:
            return _BUILT_IN[name]
        try:
            rule = load_plugin(RULE, name)
        except UnusablePlugin as error:
            raise ValueError(str(error)) from error
        if not (isinstance(rule, type) and issubclass(rule, Rule)):
            raise ValueError(f"the rule {name!r} ({find_plugins(RULE)[name].value}) is no class derived from Rule")
        return rule


RULES = RuleTable()
