"""A policy file, read and checked: all of its problems at once, each with its line and column."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from api_client.contract.issues.issue import Severity
from api_client.contract.limits import MAX_ATTEMPTS
from api_client.contract.offered import not_offered, offered_validators
from api_client.contract.policy import DEFAULT_ORDER, VERSION, Action, AppliesTo, OnError, PolicyFile, PolicyRule
from worker.enforcement.documents.frontmatter import HeaderError, Node, read_header
from worker.enforcement.policies.problem import Problem
from worker.enforcement.policies.reading import Reader
from worker.enforcement.policies.rule_file import is_rule_file, name_of, problem_of
from worker.enforcement.rules import RULES
from worker.enforcement.validators.codes import LOCALES

KEYS = ("version", "max_attempts", "locale", "rules")
ENTRY_KEYS = (
    "rule",
    "name",
    "options",
    "severity",
    "reactions",
    "max_attempts",
    "applies_to",
    "on_error",
    "shadow",
    "on_request",
)


class PolicyError(ValueError):
    """The file cannot be used. ``problems`` are all that were found, in the file's order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def read_policy(text: str, offered: Collection[str] | None = None) -> PolicyFile:
    """Read a policy file.

    Args:
        text: the YAML.
        offered: names of validators that entries may use besides the rules; ``offered_validators()`` by default.

    Raises:
        PolicyError: with every problem, its line and its column.
    """
    reader = Reader()
    try:
        root = read_header(text)
    except HeaderError as error:
        raise PolicyError([Problem(error.line + 1, 1, "", str(error))]) from None
    if root is None:
        raise PolicyError([Problem(1, 1, "", "the file is empty; it needs rules")])
    found = reader.mapping(root, "", KEYS)
    if not found and not reader.problems:
        reader.wrong(root, "", "the file needs rules")
    if "version" in found and reader.value(found["version"], "version", int) not in (None, VERSION):
        reader.wrong(found["version"], "version", f"this program reads version {VERSION}")
    attempts = _number(reader, found, "max_attempts", "", 3)
    locale = reader.value(found["locale"], "locale", str) if "locale" in found else ""
    if locale not in ("", None, *LOCALES):
        reader.wrong(found["locale"], "locale", f"must be one of {', '.join(LOCALES)}, not {locale!r}")
    validators = tuple(offered if offered is not None else offered_validators())
    rules = _rules(reader, found, validators)
    if "rules" not in found and found:
        reader.wrong(root, "", "the file needs rules")
    if reader.problems:
        raise PolicyError(sorted(reader.problems))
    others = (*validators, *_without_needs())
    return PolicyFile(rules, attempts, locale or "", text, others)


def _rules(reader: Reader, found: dict[str, Node], offered: tuple[str, ...]) -> tuple[PolicyRule, ...]:
    node = found.get("rules")
    if node is None:
        return ()
    if node.kind != "sequence":
        reader.wrong(node, "rules", "must be a list")
        return ()
    read = [_entry(reader, item, f"rules[{number}]", offered) for number, item in enumerate(node.items)]
    seen: set[str] = set()
    for item, entry in zip(node.items, read, strict=True):
        if entry is not None and entry.name in seen:
            reader.wrong(item, "rules", f"the name {entry.name!r} is there twice; give one of them another name")
        seen.add(entry.name if entry else "")
    return tuple(entry for entry in read if entry is not None)


def _entry(reader: Reader, node: Node, path: str, offered: tuple[str, ...]) -> PolicyRule | None:
    if node.kind == "scalar" and not node.null:  # "- step_marker" is short for "- rule: step_marker"
        known = _known(reader, node, path, node.value, offered)
        return PolicyRule(rule=node.value, name=name_of(node.value), line=node.line + 1) if known else None
    found = reader.mapping(node, path, ENTRY_KEYS)
    if "rule" not in found:
        reader.wrong(node, path, "needs a rule")
        return None
    rule = reader.value(found["rule"], f"{path}.rule", str)
    if not rule or not _known(reader, found["rule"], f"{path}.rule", rule, offered):
        return None
    before = len(reader.problems)
    values: dict[str, Any] = {"rule": rule, "name": name_of(rule), "line": node.line + 1}
    kinds = {"name": str, "severity": Severity, "reactions": tuple[Action, ...], "on_error": OnError, "shadow": bool}
    kinds["on_request"] = bool
    values |= {key: reader.value(found[key], f"{path}.{key}", kind) for key, kind in kinds.items() if key in found}
    values["max_attempts"] = _number(reader, found, "max_attempts", path, 0)
    if "applies_to" in found:
        values["applies_to"] = _made(reader, found["applies_to"], f"{path}.applies_to", AppliesTo)
    values["options"] = _options(reader, found.get("options"), f"{path}.options", rule, node)
    if values.get("reactions", DEFAULT_ORDER) == ():
        reader.wrong(found["reactions"], f"{path}.reactions", "must name at least one reaction")
    return PolicyRule(**values) if len(reader.problems) == before else None


def _known(reader: Reader, node: Node, path: str, rule: str, offered: tuple[str, ...]) -> bool:
    if rule in RULES or rule in offered:
        return True
    if is_rule_file(rule):
        if problem := problem_of(rule):
            reader.wrong(node, path, problem)
        return not problem
    reader.wrong(node, path, not_offered(rule, (*RULES, *offered)))
    return False


def _number(reader: Reader, found: dict[str, Node], key: str, path: str, default: int) -> int:
    if key not in found:
        return default
    where = f"{path}.{key}" if path else key
    value = reader.value(found[key], where, int)
    if value is not None and not 1 <= value <= MAX_ATTEMPTS:
        reader.wrong(found[key], where, f"must be 1 to {MAX_ATTEMPTS}, not {value}")
    return value or default


def _options(reader: Reader, node: Node | None, path: str, rule: str, entry: Node) -> dict[str, Any]:
    if is_rule_file(rule):  # what they are is known where the file is loaded
        return reader.value(node, path, Mapping[str, Any]) or {} if node is not None and not node.null else {}
    if rule not in RULES:
        if node is not None and not node.null:
            reader.wrong(node, path, f"{rule} has no options")
        return {}
    values: dict[str, Any] | None = {}
    if node is not None:
        values = reader.values(node, path, RULES[rule])
    if values is not None:
        try:
            RULES[rule](**values)
        except ValueError as error:
            reader.wrong(node or entry, path, str(error))
    return values or {}


def _made(reader: Reader, node: Node, path: str, kind: type[Any]) -> Any:
    values = reader.values(node, path, kind)
    if values is None:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        reader.wrong(node, path, str(error))
        return None


@cache
def _without_needs() -> tuple[str, ...]:
    """The rules that start no program, ask no model and need no options: a request may name them."""
    return tuple(name for name, rule in RULES.items() if not rule.reaches_out and _is_bare(rule))


def _is_bare(rule: type[Any]) -> bool:
    try:
        rule()
    except ValueError:
        return False
    return True
