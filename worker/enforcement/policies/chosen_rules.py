"""The validators and the policy that a policy file defines for one turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api_client.contract.issue import ValidationIssue
from api_client.contract.policy import AppliesTo, Content, OnError, PolicyFile, PolicyRule, PolicySubject
from worker.enforcement.documents.document import parse_document
from worker.enforcement.documents.function_words import detect_language
from worker.enforcement.documents.step import strip_marker
from worker.enforcement.policies.rule_file import is_rule_file, load_rule
from worker.enforcement.policy import Policy
from worker.enforcement.rules import RULES
from worker.enforcement.rules.adr_formats import is_adr
from worker.enforcement.validators import ResponseValidator
from worker.enforcement.validators.codes import DEFAULT_LOCALE
from worker.enforcement.validators.foreign_code import report_unusable_code
from worker.enforcement.validators.registry import build_validators


@dataclass(frozen=True, slots=True)
class ChosenRules:
    """The validators and the policy that apply to one turn. Findings of ``shadow`` validators decide nothing."""

    validators: tuple[ResponseValidator, ...]
    shadow: tuple[ResponseValidator, ...]
    policy: Policy


def choose_rules(file: PolicyFile, subject: PolicySubject, *, root: Path, locale: str = DEFAULT_LOCALE) -> ChosenRules:
    """Return the validators and the policy that a policy file defines for one turn.

    The file's locale wins over ``locale``. Raises ``ValueError``, ``TypeError`` or ``ImportError`` for an invalid
    validator.
    """
    locale = file.locale or locale
    entries = [entry for entry in file.rules if entry.applies_to.matches(subject)]
    built = [(entry, _build_rule(entry, root, locale)) for entry in entries]
    return ChosenRules(
        validators=tuple(validator for entry, validator in built if not entry.shadow),
        shadow=tuple(validator for entry, validator in built if entry.shadow),
        policy=Policy(
            max_attempts=file.max_attempts,
            locale=locale,
            order={entry.name: entry.order for entry in entries},
            caps={entry.name: entry.max_attempts for entry in entries if entry.max_attempts},
            lenient=frozenset(entry.name for entry in entries if entry.on_error is OnError.WARN),
        ),
    )


def build_rules(file: PolicyFile, names: Sequence[str], *, root: Path, locale: str) -> tuple[ResponseValidator, ...]:
    """Return the validators with the given names, as a policy file or a request defines them.

    Raises as ``choose_rules``.
    """
    entries = {entry.name: entry for entry in file.rules}
    return tuple(_build_rule(entries.get(name) or PolicyRule(rule=name, name=name), root, locale) for name in names)


def _build_rule(entry: PolicyRule, root: Path, locale: str) -> ResponseValidator:
    made: ResponseValidator
    if entry.rule in RULES:
        with report_unusable_code(entry.rule):
            made = RULES[entry.rule](name=entry.name, root=root, locale=locale, **entry.options)
    elif is_rule_file(entry.rule):
        made = load_rule(entry.rule, name=entry.name, root=root, locale=locale, options=entry.options)
    else:
        (made,) = build_validators([entry.rule], root=root, locale=locale)
    if entry.applies_to.content or entry.applies_to.languages or made.name != entry.name:
        return _ConditionalValidator(made, entry.name, entry.applies_to)
    return made


def meets_condition(condition: AppliesTo, answer: str) -> bool:
    """Return True if an answer meets a rule's condition, such as being in a certain language."""
    if condition.languages and detect_language(answer) not in condition.languages:
        return False
    return not condition.content or any(_has_content(answer, what) for what in condition.content)


def _has_content(answer: str, what: Content) -> bool:
    document = parse_document(answer)
    if what is Content.ADR:
        return bool(document.adrs) or is_adr(document)
    bare = strip_marker(answer).strip()
    if what is Content.JSON and (bare[:1], bare[-1:]) in (("{", "}"), ("[", "]")):
        return True
    fences = [fence for fence in document.out.fences if not fence.is_document]
    return any(what is Content.CODE or fence.info.split(" ")[0].lower() == what for fence in fences)


class _ConditionalValidator(ResponseValidator):
    """Wraps a validator so that it checks only answers that meet a condition."""

    name = ""

    def __init__(self, inner: ResponseValidator, name: str, applies_to: AppliesTo) -> None:
        self._inner, self.name, self._applies_to = inner, name, applies_to
        self.mends_files, self.bounded, self.patience = inner.mends_files, inner.bounded, inner.patience  # type: ignore[misc]
        self.needs_services = bool(getattr(inner, "needs_services", False))

    def takes_bounded_time(self, texts: Iterable[str]) -> bool:
        return self._inner.takes_bounded_time(texts)

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        if not meets_condition(self._applies_to, response):
            return []
        return [replace(issue, validator=self.name) for issue in self._inner.validate(response, context)]

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        return self._inner.apply_fallback(response, context) if meets_condition(self._applies_to, response) else None

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        return self._inner.explain_fallback(before, after, context)
