"""Reader of policy files. Reports all problems at once, each with line and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from api_client.contract.declared import (
    Findings,
    Invalid,
    Kind,
    each,
    fields_of,
    kind_of,
    mapping,
    nearest,
    one_of,
    record,
    whole,
    word,
    yes,
)
from api_client.contract.installed_work import installed_kinds
from api_client.contract.issue import Severity
from api_client.contract.limits import MAX_ATTEMPTS
from api_client.contract.offered import not_offered, offered_validators
from api_client.contract.plugins import RULE, why_missing
from api_client.contract.policy import CHAT, VERSION, Action, AppliesTo, OnError, PolicyFile, PolicyRule
from api_client.contract.tool_calls import ToolRule
from worker.enforcement.documents.written import read_yaml
from worker.enforcement.policies.rule_file import default_rule_name, find_name_problem, is_rule_file
from worker.enforcement.rules import RULES
from worker.enforcement.validators.codes import LOCALES


class PolicyError(Invalid):
    """Raised if a policy file is invalid. ``problems`` lists every problem in the order of the file."""


def read_policy(text: str) -> PolicyFile:
    """Return the policy that a text defines. Raises ``PolicyError`` with the line and column of every problem."""
    validators = offered_validators()
    try:
        found, place = read_yaml(text, _file_kind(validators), "the file is empty; it needs rules")
    except Invalid as error:
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
    if (version := whole()(value)) != VERSION:
        raise ValueError(f"this program reads version {VERSION}")
    return int(version)


def _file_kind(offered: tuple[str, ...]) -> Kind:
    return record(
        {
            "version": _read_version,
            "max_attempts": ATTEMPTS,
            "locale": one_of(LOCALES),
            "rules": _rules_kind(offered),
            "tools": each(lambda value: ToolRule(**fields_of(ToolRule)(value))),
        },
        ("rules",),
        "the file",
    )


def _rules_kind(offered: tuple[str, ...]) -> Kind:
    entries = each(lambda value: _read_entry(value, offered))

    def read(value: Any) -> tuple[PolicyRule, ...]:
        rules, found, seen = entries(value), Findings(), set[str]()
        for number, rule in enumerate(rules):
            if rule.name in seen:
                found.wrong(f"the name {rule.name!r} is there twice; give one of them another name", number)
            seen.add(rule.name)
        found.end()
        return tuple(rules)

    return read


ATTEMPTS = whole(1, MAX_ATTEMPTS)
#: The keys of a rule entry except ``rule`` and ``options``.
ENTRY: Mapping[str, Kind] = {
    "name": word,
    "severity": one_of(Severity),
    "reactions": kind_of(tuple[Action, ...]),
    "max_attempts": ATTEMPTS,
    "applies_to": lambda value: _read_applies_to({} if value is None else value),
    "on_error": one_of(OnError),
    "shadow": yes,
    "on_request": yes,
}


def _read_applies_to(value: Any) -> AppliesTo:
    found, kinds = Findings(), [CHAT, *installed_kinds()]
    read = AppliesTo(**fields_of(AppliesTo)(value))
    for number, kind in enumerate(read.kinds):
        if kind not in kinds:
            found.wrong(f"must be one of {', '.join(kinds)}, not {kind[:80]!r}{nearest(kind, kinds)}", "kinds", number)
    found.end()
    return read


def _read_entry(value: Any, offered: tuple[str, ...]) -> PolicyRule:
    if isinstance(value, str):  # "- step_marker" is short for "- rule: step_marker"
        return PolicyRule(rule=_read_rule_name(value, offered), name=default_rule_name(value))
    rule = value.get("rule") if isinstance(value, Mapping) else None
    known = isinstance(rule, str) and (rule in (*RULES, *offered) or is_rule_file(rule))
    options = _options_kind(str(rule)) if known else mapping
    kinds = {"rule": lambda name: _read_rule_name(name, offered), **ENTRY, "options": options}
    found = Findings()
    given = found.read(record(kinds, ("rule",), "a rule"), value)
    if given is not None and rule in RULES and "options" not in given:
        found.read(options, {}, "options")
    if given is not None and given.get("reactions") == ():
        found.wrong("must name at least one reaction", "reactions")
    found.end()
    return PolicyRule(**{"name": default_rule_name(given["rule"]), **given})


def _read_rule_name(value: Any, offered: tuple[str, ...]) -> str:
    rule = word(value)
    if rule not in (*RULES, *offered):
        missing = why_missing(RULE, rule) or not_offered(rule, (*RULES, *offered))
        wrong = find_name_problem(rule) if is_rule_file(rule) else missing
        if wrong:
            raise ValueError(wrong)
    return rule


def _options_kind(rule: str) -> Kind:
    def read(value: Any) -> dict[str, Any]:
        if is_rule_file(rule):  # the options are known once the file is loaded
            return dict(mapping({} if value is None else value))
        if rule not in RULES:
            if value is not None:
                raise ValueError(f"{rule} has no options")
            return {}
        values: dict[str, Any] = fields_of(RULES[rule])({} if value is None else value)
        RULES[rule](**values)  # raises ValueError
        return values

    return read


@cache
def _standalone_rules() -> tuple[str, ...]:
    """Return the names of the rules that a request may add, because they need no options and no services.

    A request may add these rules.
    """
    return tuple(filter(_is_bare, RULES))


def _is_bare(rule: str) -> bool:
    try:
        return not RULES[rule]().reaches_out
    except ValueError:
        return False
