"""Reader of policy files. Reports all problems at once, each with line and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from api_client.contract.installed_work import installed_kinds
from api_client.contract.issue import Severity
from api_client.contract.limits import MAX_ATTEMPTS
from api_client.contract.plugins import RULE, why_missing
from api_client.contract.policy import CHAT, RULE_FLAGS, VERSION, Action, AppliesTo, OnError, PolicyFile, PolicyRule
from api_client.contract.tool_calls import ToolRule
from api_client.contract.validator_names import describe_unknown_validator, offered_validators
from api_client.contract.value_kinds import (
    Findings,
    InvalidValue,
    Kind,
    choice_kind,
    dataclass_kind,
    integer_kind,
    kind_of,
    list_kind,
    read_bool,
    read_mapping,
    read_word,
    record_kind,
    suggest_name,
)
from worker.enforcement.documents.yaml_reader import read_yaml
from worker.enforcement.policies.rule_file import default_rule_name, find_name_problem, is_rule_file
from worker.enforcement.rules import RULES
from worker.enforcement.validators.codes import LOCALES
from worker.enforcement.validators.foreign_code import report_unusable_code


class PolicyError(InvalidValue):
    """Raised if a policy file is invalid. ``problems`` lists every problem in the order of the file."""


def read_policy(text: str) -> PolicyFile:
    """Return the policy that a text defines. Raises ``PolicyError`` with the line and column of every problem."""
    validators = offered_validators()
    try:
        found, place = read_yaml(text, _file_kind(validators), "the file is empty; it needs rules")
    except InvalidValue as error:
        raise PolicyError(error.problems) from None
    return PolicyFile(
        rules=tuple(replace(rule, line=place("rules", number)[0]) for number, rule in enumerate(found["rules"])),
        max_attempts=found.get("max_attempts", 3),
        locale=found.get("locale", ""),
        text=text,
        others=(*validators, *_standalone_rules()),
        tools=found.get("tools", ()),
    )


def _read_version(value: Any) -> int:
    if (version := integer_kind()(value)) != VERSION:
        raise ValueError(f"this program reads version {VERSION}")
    return int(version)


def _file_kind(offered: tuple[str, ...]) -> Kind:
    return record_kind(
        {
            "version": _read_version,
            "max_attempts": ATTEMPTS,
            "locale": choice_kind(LOCALES),
            "rules": _rules_kind(offered),
            "tools": list_kind(lambda value: ToolRule(**dataclass_kind(ToolRule)(value))),
        },
        ("rules",),
        "the file",
    )


def _rules_kind(offered: tuple[str, ...]) -> Kind:
    entries = list_kind(lambda value: _read_entry(value, offered))

    def read(value: Any) -> tuple[PolicyRule, ...]:
        rules, found, seen = entries(value), Findings(), set[str]()
        for number, rule in enumerate(rules):
            if rule.name in seen:
                found.add_problem(f"the name {rule.name!r} is there twice; give one of them another name", number)
            seen.add(rule.name)
        found.raise_problems()
        return tuple(rules)

    return read


ATTEMPTS = integer_kind(1, MAX_ATTEMPTS)
#: The keys of a rule entry except ``rule`` and ``options``.
ENTRY: Mapping[str, Kind] = {
    "name": read_word,
    "severity": choice_kind(Severity),
    "reactions": kind_of(tuple[Action, ...]),
    "max_attempts": ATTEMPTS,
    "applies_to": lambda value: _read_applies_to({} if value is None else value),
    "on_error": choice_kind(OnError),
    **dict.fromkeys(RULE_FLAGS, read_bool),
}


def _read_applies_to(value: Any) -> AppliesTo:
    found, kinds = Findings(), [CHAT, *installed_kinds()]
    read = AppliesTo(**dataclass_kind(AppliesTo)(value))
    for number, kind in enumerate(read.kinds):
        if kind not in kinds:
            found.add_problem(
                f"must be one of {', '.join(kinds)}, not {kind[:80]!r}{suggest_name(kind, kinds)}", "kinds", number
            )
    found.raise_problems()
    return read


def _read_entry(value: Any, offered: tuple[str, ...]) -> PolicyRule:
    if isinstance(value, str):  # "- step_marker" is short for "- rule: step_marker"
        value = {"rule": _read_rule_name(value, offered)}
    rule = value.get("rule") if isinstance(value, Mapping) else None
    known = isinstance(rule, str) and (rule in (*RULES, *offered) or is_rule_file(rule))
    options = _options_kind(str(rule)) if known else read_mapping
    kinds = {"rule": lambda name: _read_rule_name(name, offered), **ENTRY, "options": options}
    found = Findings()
    given = found.read_part(record_kind(kinds, ("rule",), "a rule"), value)
    if given is not None and rule in RULES and "options" not in given:
        found.read_part(options, {}, "options")
    if given is not None and given.get("reactions") == ():
        found.add_problem("must name at least one reaction", "reactions")
    found.raise_problems()
    return PolicyRule(**{"name": default_rule_name(given["rule"]), **given})


def _read_rule_name(value: Any, offered: tuple[str, ...]) -> str:
    rule = read_word(value)
    if rule not in (*RULES, *offered):
        missing = why_missing(RULE, rule) or describe_unknown_validator(rule, (*RULES, *offered))
        wrong = find_name_problem(rule) if is_rule_file(rule) else missing
        if wrong:
            raise ValueError(wrong)
    return rule


def _options_kind(rule: str) -> Kind:
    def read(value: Any) -> dict[str, Any]:
        if is_rule_file(rule):  # the options are known once the file is loaded
            return dict(read_mapping({} if value is None else value))
        if rule not in RULES:
            if value is not None:
                raise ValueError(f"{rule} has no options")
            return {}
        values: dict[str, Any] = dataclass_kind(RULES[rule])({} if value is None else value)
        with report_unusable_code(rule, keep=ValueError):  # explains an option
            RULES[rule](**values)
        return values

    return read


@cache
def _standalone_rules() -> tuple[str, ...]:
    """Return the rules that a request may add, because they need no options and no services."""
    return tuple(filter(_is_bare, RULES))


def _is_bare(rule: str) -> bool:
    try:
        with report_unusable_code(rule):
            return not RULES[rule]().needs_services
    except ValueError:
        return False
