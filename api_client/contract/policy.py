"""A policy: the rules that check turns and the reactions to their errors, its hash, and its effect on one turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Any

from api_client.contract.issue import Severity
from api_client.contract.tool_calls import ToolRule
from api_client.contract.turn import TurnRequest

VERSION = 1


class Action(StrEnum):
    """The reactions to errors that a validator finds. A policy lists them in order for each validator."""

    #: Repair the answer by the validator's fallback before anything else is tried.
    REPAIR = "repair"
    #: Run the agent again with feedback, while attempts are left.
    RETRY = "retry"
    #: Repair the best answer with the fallbacks.
    FALLBACK = "fallback"
    #: End the turn as failed, and ask a person.
    ESCALATE = "escalate"
    FAIL = "fail"
    #: Accept the answer and turn the errors into warnings.
    WARN = "warn"


#: ADR-038's order: retry, then repair, then fail.
DEFAULT_ORDER = (Action.RETRY, Action.FALLBACK, Action.FAIL)


#: The kind of work that rules check if they name none.
CHAT = "chat"


class OnError(StrEnum):
    """The treatment of an answer when a validation rule itself fails or takes too long."""

    FAIL = "fail"
    WARN = "warn"


class Content(StrEnum):
    """The kinds of content that a policy can distinguish in an answer."""

    ADR = "adr"
    CODE = "code"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySubject:
    """The facts about a turn that decide which rules of a policy apply to it."""

    model: str = ""
    owner: str = ""
    route: str = ""
    kind: str = CHAT


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliesTo:
    """The conditions under which a policy rule applies to a turn. An empty condition is always met.

    Models and owners may contain ``*``.
    """

    models: tuple[str, ...] = field(default=(), metadata={"what": "Models, such as consultant or claude-*."})
    owners: tuple[str, ...] = field(default=(), metadata={"what": "Owners: names of keys."})
    routes: tuple[str, ...] = field(default=(), metadata={"what": "Routes: chat, responses or turns."})
    kinds: tuple[str, ...] = field(default=(), metadata={"what": "Kinds of work (docs/policy.md); none named: chat."})
    content: tuple[Content, ...] = field(default=(), metadata={"what": "What the answer holds: adr, code or json."})
    languages: tuple[str, ...] = field(default=(), metadata={"what": "Languages of the answer, such as de."})

    def matches(self, subject: PolicySubject) -> bool:
        """Return True if the rule applies to a turn, as far as is known before the answer exists.

        Other kinds of work have their own checks: a rule applies to them only if ``kinds`` names them.
        """
        if subject.kind != CHAT and subject.kind not in self.kinds:
            return False
        wanted = ((self.models, subject.model), (self.owners, subject.owner))
        if not all(not names or any(fnmatchcase(value, name) for name in names) for names, value in wanted):
            return False
        listed = ((self.routes, subject.route), (self.kinds, subject.kind))
        return all(not names or value in names for names, value in listed)

    def to_dict(self) -> dict[str, Any]:
        return {each.name: list(value) for each in fields(self) if (value := getattr(self, each.name))}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """A rule in a policy file: how answers are checked, and what happens if the check finds errors.

    Attributes:
        rule: a rule with options, a built-in validator, or an installed package's validator.
        name: its name in issues, metrics and requests; defaults to the rule's own name.
        severity: ``warning`` turns every error of the rule into a warning.
        reactions: what is tried for its errors, in order (ADR-038: retry, fallback, fail).
        max_attempts: after this many rejections by this rule it causes no further retry; 0 for the policy's bound.
        on_error: what happens if the rule raises or takes too long.
        shadow: findings are shown, and decide nothing.
        on_request: checks only turns whose request names it.
        line: line in the file, from 1.
    """

    rule: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity = Severity.ERROR
    reactions: tuple[Action, ...] = DEFAULT_ORDER
    max_attempts: int = 0
    applies_to: AppliesTo = field(default_factory=AppliesTo)
    on_error: OnError = OnError.FAIL
    shadow: bool = False
    on_request: bool = False
    line: int = field(default=0, compare=False)

    @property
    def decides(self) -> bool:
        """Return True if this rule's findings can reject an answer."""
        return not self.shadow

    @property
    def reaction_words(self) -> str:
        """Describe in words what happens when this rule finds errors."""
        return ", ".join(map(str, self.order)) if self.decides else "shadow"

    @property
    def order(self) -> tuple[Action, ...]:
        """Return the reactions to this rule's errors, in order. A rule with severity warning only warns."""
        return (Action.WARN,) if self.severity is Severity.WARNING else self.reactions

    def to_dict(self) -> dict[str, Any]:
        data = {
            "name": self.name,
            "rule": self.rule,
            "options": dict(self.options),
            "severity": str(self.severity),
            "reactions": list(map(str, self.reactions)),
            "max_attempts": self.max_attempts,
            "applies_to": self.applies_to.to_dict(),
            "on_error": str(self.on_error),
            "shadow": self.shadow,
        }
        return data | ({"on_request": True} if self.on_request else {})


RULE_FLAGS = tuple(each.name for each in fields(PolicyRule) if each.type == "bool")


@dataclass(frozen=True)
class PolicyFile:
    """The parsed content of a policy file, which says how answers and tool calls are checked.

    Attributes:
        max_attempts: most agent runs (ADR-038: three).
        locale: language of feedback and messages; empty for the turn's own.
        text: text of the file, stored under the hash. Files with the same meaning have the same hash.
        others: further rules that a request may name.
        tools: rules for agents' tool calls; the first match decides.
    """

    rules: tuple[PolicyRule, ...]
    max_attempts: int = 3
    locale: str = ""
    text: str = field(default="", compare=False, repr=False)
    others: tuple[str, ...] = field(default=(), compare=False, repr=False)
    tools: tuple[ToolRule, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as a JSON-ready dictionary. Policies with the same meaning give equal dictionaries."""
        data = {
            "version": VERSION,
            "max_attempts": self.max_attempts,
            "locale": self.locale,
            "rules": [each.to_dict() for each in self.rules],
        }
        return data | ({"tools": [each.to_dict() for each in self.tools]} if self.tools else {})

    @cached_property
    def hash(self) -> str:
        """Return a hash of the policy's meaning, with 16 hexadecimal digits."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def requestable(self) -> tuple[str, ...]:
        """Return the names of the rules that a request may select."""
        shadow = {each.name for each in self.rules if each.shadow}
        own = (each.name for each in self.rules if each.decides)
        return tuple(dict.fromkeys((*own, *(name for name in self.others if name not in shadow))))

    def active_rules(self, subject: PolicySubject) -> list[PolicyRule]:
        """Return the rules that check a turn whose request selects no rules, in the order of the file."""
        return [each for each in self.rules if each.applies_to.matches(subject) and not each.on_request]


def settings_policy(
    names: Iterable[str], orders: Mapping[str, Sequence[str]] | None = None, max_attempts: int = 3
) -> PolicyFile:
    """Build the policy used without a policy file, from validator names and the reactions for each validator."""
    ordered = tuple((name, tuple((orders or {}).get(name, DEFAULT_ORDER))) for name in names)
    return _build_settings_policy(ordered, max_attempts)


@lru_cache(maxsize=256)
def _build_settings_policy(ordered: tuple[tuple[str, tuple[str, ...]], ...], max_attempts: int) -> PolicyFile:
    rules = (PolicyRule(rule=name, name=name, reactions=tuple(map(Action, order))) for name, order in ordered)
    return PolicyFile(tuple(rules), max_attempts)


APPLIED = "applied_policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPolicy:
    """The policy that a turn was submitted with. Later changes of the policy file do not affect the turn.

    Attributes:
        hash: names the policy in the store.
        shadow: rules whose findings decide nothing.
        caps: rule -> number of rejections after which the rule causes no further retry.
        lenient: rules that accept an answer when they fail to check it.
    """

    hash: str
    shadow: tuple[str, ...] = ()
    caps: dict[str, int] = field(default_factory=dict)
    lenient: tuple[str, ...] = ()

    @classmethod
    def for_rules(cls, file: PolicyFile, rules: Iterable[PolicyRule], active: Collection[str]) -> AppliedPolicy:
        """Return the policy for the given rules of a file. Only findings of ``active`` rules can reject an answer."""
        shadow = tuple(each.name for each in rules if not each.decides and each.name not in active)
        checking = {*active, *shadow}
        return cls(
            hash=file.hash,
            shadow=shadow,
            caps={each.name: each.max_attempts for each in file.rules if each.max_attempts and each.name in active},
            lenient=tuple(each.name for each in file.rules if each.on_error is OnError.WARN and each.name in checking),
        )

    @classmethod
    def from_request(cls, request: TurnRequest) -> AppliedPolicy | None:
        """Return the policy attached to a request, or None if no policy file was applied."""
        data = request.attached.get(APPLIED)
        return cls.from_dict(data) if data else None

    def attach_to(self, request: TurnRequest, filled: Iterable[str]) -> TurnRequest:
        """Return a copy of the request with this policy attached. ``filled`` names the fields that the policy set."""
        filled = dict.fromkeys((*request.filled, *filled, APPLIED))
        return replace(request.with_attachment(APPLIED, self), filled=tuple(filled))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AppliedPolicy:
        """Create an applied policy from its stored form, ignoring unknown fields."""
        return cls(
            hash=str(data["hash"]),
            shadow=tuple(data.get("shadow", ())),
            caps=dict(data.get("caps", {})),
            lenient=tuple(data.get("lenient", ())),
        )
