"""A policy: which rules judge which turns, and what follows from their errors; its hash, and what it gives one turn.

``worker.enforcement.policies`` reads the file that docs/policy.md describes and makes the validators of its rules.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from api_client.contract.declared import OpenEnum, nearest
from api_client.contract.issues import BadRequest, Severity
from api_client.contract.tool_calls import ToolRule

VERSION = 1


class Action(StrEnum):
    """Reactions to a validator's errors. A policy orders these per validator."""

    #: Repair the answer by the validator's fallback before anything else is tried.
    REPAIR = "repair"
    #: Run the agent again with feedback, while attempts are left.
    RETRY = "retry"
    #: Repair the best answer by the fallbacks.
    FALLBACK = "fallback"
    #: End the turn as failed, and hand it to a person.
    ESCALATE = "escalate"
    #: End the turn as failed.
    FAIL = "fail"
    #: Accept the answer; the validator's errors become warnings.
    WARN = "warn"


#: ADR-038's order: ask again, then repair, then fail.
DEFAULT_ORDER = (Action.RETRY, Action.FALLBACK, Action.FAIL)


class OnError(StrEnum):
    """All that a rule that raises or takes too long does to the answer."""

    #: It counts as an error of the rule.
    FAIL = "fail"
    #: It counts as a warning.
    WARN = "warn"


class Kind(StrEnum):
    """All that a turn is."""

    CHAT = "chat"
    PHASE = "phase"


class Content(StrEnum):
    """All that an answer can hold."""

    ADR = "adr"
    CODE = "code"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Facts about a turn before its answer. ``route``: chat, responses or turns."""

    model: str = ""
    owner: str = ""
    route: str = ""
    kind: str = Kind.CHAT


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliesTo:
    """All conditions must hold; one that is empty always does. Models and owners may have ``*`` in them."""

    models: tuple[str, ...] = field(default=(), metadata={"what": "Models, such as consultant or claude-*."})
    owners: tuple[str, ...] = field(default=(), metadata={"what": "Owners: names of keys."})
    routes: tuple[str, ...] = field(default=(), metadata={"what": "Routes: chat, responses or turns."})
    kinds: tuple[Kind, ...] = field(default=(), metadata={"what": "Kinds of turns: chat or phase; none named: chat."})
    content: tuple[Content, ...] = field(default=(), metadata={"what": "What the answer holds: adr, code or json."})
    languages: tuple[str, ...] = field(default=(), metadata={"what": "Languages of the answer, such as de."})

    def judges(self, subject: Subject) -> bool:
        """Return whether the turn is one of these, as far as it can be said before there is an answer.

        Phases have their own gates: a rule judges one only where ``kinds`` names them.
        """
        if subject.kind == Kind.PHASE and Kind.PHASE not in self.kinds:
            return False
        wanted = ((self.models, subject.model), (self.owners, subject.owner))
        if not all(not names or any(fnmatchcase(value, name) for name in names) for names, value in wanted):
            return False
        listed = ((self.routes, subject.route), (self.kinds, subject.kind))
        return all(not names or value in names for names, value in listed)

    def to_dict(self) -> dict[str, Any]:
        """The conditions that are set, JSON-ready."""
        return {each.name: list(value) for each in fields(self) if (value := getattr(self, each.name))}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """One entry of ``rules``.

    Attributes:
        rule: a rule with options, one of the three built-in validators, or an installed package's validator.
        name: how issues, metrics and requests name it; the rule's own name when the file gives none.
        options: the rule's options, as the file has them.
        severity: ``warning`` makes every error of the rule a warning.
        reactions: what is tried for its errors, one after the other (ADR-038: retry, fallback, fail).
        max_attempts: after this many rejections by this rule the agent is not asked again because of it; 0 for the
            policy's own bound.
        applies_to: which turns it judges.
        on_error: what a rule that raises or takes too long does to the answer.
        shadow: it judges and is shown, and decides nothing.
        on_request: it judges only turns whose request names it.
        line: where it is in the file, from 1.
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
    def order(self) -> tuple[Action, ...]:
        """The reactions as ``Policy.order`` wants them."""
        return (Action.WARN,) if self.severity is Severity.WARNING else self.reactions

    def to_dict(self) -> dict[str, Any]:
        """The entry, JSON-ready and complete: what is a default is named too, but for what later versions added."""
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


@dataclass(frozen=True)
class PolicyFile:
    """The content of a policy file.

    Attributes:
        rules: in the file's order.
        max_attempts: how often the agent is run at most (ADR-038: three).
        locale: language of feedback and messages; empty for the turn's own.
        text: the file, which is stored under the hash; any file of the same meaning has the same hash.
        others: rules beside those of the file that a request may name.
        tools: what may become of agents' tool calls; the first one that fits decides.
    """

    rules: tuple[PolicyRule, ...]
    max_attempts: int = 3
    locale: str = ""
    text: str = field(default="", compare=False, repr=False)
    others: tuple[str, ...] = field(default=(), compare=False, repr=False)
    tools: tuple[ToolRule, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The policy, JSON-ready and complete. Two files of one meaning have one form."""
        data = {
            "version": VERSION,
            "max_attempts": self.max_attempts,
            "locale": self.locale,
            "rules": [each.to_dict() for each in self.rules],
        }
        return data | ({"tools": [each.to_dict() for each in self.tools]} if self.tools else {})

    @cached_property
    def hash(self) -> str:
        """The policy's name on turns, in metrics and pages: 16 hexadecimal digits of its meaning, not of its layout."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def askable(self) -> tuple[str, ...]:
        """The rules that a request may name."""
        shadow = {each.name for each in self.rules if each.shadow}
        own = (each.name for each in self.rules if not each.shadow)
        return tuple(dict.fromkeys((*own, *(name for name in self.others if name not in shadow))))

    def judging(self, subject: Subject) -> list[PolicyRule]:
        """The rules that judge a turn whose request names none, in the file's order; those in shadow too."""
        return [each for each in self.rules if each.applies_to.judges(subject) and not each.on_request]


def plain_policy(
    names: Iterable[str], orders: Mapping[str, Sequence[str]] | None = None, max_attempts: int = 3
) -> PolicyFile:
    """The policy of settings that name no file: these validators, each with its order or retry, fallback, fail."""
    ordered = tuple((name, tuple((orders or {}).get(name, DEFAULT_ORDER))) for name in names)
    return _plain_policy(ordered, max_attempts)


@lru_cache(maxsize=256)  # the settings are the same for each turn
def _plain_policy(ordered: tuple[tuple[str, tuple[str, ...]], ...], max_attempts: int) -> PolicyFile:
    rules = (PolicyRule(rule=name, name=name, reactions=tuple(map(Action, order))) for name, order in ordered)
    return PolicyFile(tuple(rules), max_attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The policy of a turn as it was when it was submitted. It stays the turn's own, whatever becomes of the file.

    Attributes:
        hash: names the policy in the store.
        shadow: rules that judge and decide nothing.
        caps: rule -> after how many rejected answers the agent is not asked again because of it.
        lenient: rules that accept an answer they could not judge.
        filled: fields of the request that the policy filled in, because the request did not name them.
    """

    hash: str
    shadow: tuple[str, ...] = ()
    caps: dict[str, int] = field(default_factory=dict)
    lenient: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Applied:
        """Read what ``dataclasses.asdict`` made; unknown fields are left alone."""
        return cls(
            hash=str(data["hash"]),
            shadow=tuple(data.get("shadow", ())),
            caps=dict(data.get("caps", {})),
            lenient=tuple(data.get("lenient", ())),
            filled=tuple(data.get("filled", ())),
        )


# Escalation after all attempts have failed: another model on its own, then a person (ADR-025, decision 3). Stored with
# the turn, so that any worker does what was asked for, whatever its own settings are.

MAX_RUNS = 10
#: Longest time a turn can wait in the inbox, in seconds: thirty days.
MAX_TIMEOUT_SECONDS = 2_592_000.0
#: Longest note and longest edited answer, in characters.
MAX_NOTE, MAX_TEXT = 10_000, 1_000_000
#: Longest id of a decision; the ids of a turn's decisions are kept in one text, with spaces between them.
MAX_ID = 64
_ID = re.compile(rf"[A-Za-z0-9._@:-]{{1,{MAX_ID}}}", re.ASCII)


class DecisionKind(OpenEnum):
    """The decisions on a parked turn."""

    #: The last good result counts as it is.
    APPROVE = "approve"
    #: The given text counts; of a phase, its files as they are now.
    EDIT = "edit"
    #: The agent is asked again, with the note.
    RETRY = "retry"
    #: The turn fails.
    REJECT = "reject"


#: What a time-out may decide: only what needs no text from a person.
DEFAULTS = (DecisionKind.REJECT.value, DecisionKind.APPROVE.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """The two stages.

    Attributes:
        model: stage 1, the model of HELIX_MODELS that is asked on its own; empty leaves the stage out.
        runs: how often it is run at most; 0 leaves the stage out too.
        human: stage 2, whether the turn is then parked for a person to decide.
        timeout_seconds: how long it lies there before ``default`` is decided: reject or approve.
    """

    model: str = ""
    runs: int = 1
    human: bool = True
    timeout_seconds: float = 86_400.0
    default: str = DecisionKind.REJECT.value

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Escalation:
        """Read a stored escalation; fields of a newer version are left alone."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxDecision:
    """The decision on a parked turn.

    Attributes:
        by: who decided: ``key:...``, user@host, or ``timeout``.
        for_: the name they gave; on the wire ``for``.
        text: of an edit, the answer that counts.
        at: when, in seconds since the epoch.
    """

    kind: DecisionKind
    by: str = ""
    for_: str = ""
    note: str = ""
    text: str = ""
    at: float = 0.0

    @property
    def who(self) -> str:
        """Return who decided, for people: ``key:1a2b for alice``, or the time-out."""
        return " for ".join(filter(None, ["the time-out" if self.timed_out else self.by, self.for_]))

    @property
    def timed_out(self) -> bool:
        """True when nobody decided in time."""
        return self.by in {"", "timeout"}

    def to_dict(self) -> dict[str, Any]:
        """The decision as a JSON-ready mapping."""
        data = {"kind": self.kind.value, "by": self.by, "for": self.for_, "note": self.note, "text": self.text}
        return {**data, "at": self.at}

    @classmethod
    def from_json(cls, text: str) -> InboxDecision | None:
        """Read a stored one, which ``turn.lua`` wrote; None for an empty text or object.

        Raises ``ValueError``: the text is not JSON.
        """
        data = json.loads(text or "{}")
        if not data:
            return None
        texts = {name: str(data.get(wire, "")) for name, wire in _TEXTS.items()}
        return cls(kind=DecisionKind(data.get("kind", "")), at=float(data.get("at", 0)), **texts)


#: Fields of a decision that are texts, and their names on the wire.
_TEXTS = {"by": "by", "for_": "for", "note": "note", "text": "text"}


def check_escalation(escalation: Escalation, models: Mapping[str, str]) -> None:
    """Refuse what can never work. Raises ``BadRequest``: names the field."""
    if escalation.model and escalation.model not in models:
        known = ", ".join(models)
        message = f"escalation: unknown model {escalation.model[:80]!r}; known: {known}"
        raise BadRequest(message, param="escalation.model", code="model_not_found")
    if not 0 <= escalation.runs <= MAX_RUNS:
        message = f"escalation: runs must be from 0 (no stage 1) to {MAX_RUNS}, not {escalation.runs}"
        raise BadRequest(message, param="escalation.runs")
    if not 1 <= escalation.timeout_seconds <= MAX_TIMEOUT_SECONDS:
        message = f"escalation: timeout_seconds must be from 1 to {MAX_TIMEOUT_SECONDS:g}"
        raise BadRequest(message, param="escalation.timeout_seconds")
    if escalation.default not in DEFAULTS:
        message = f"escalation: default must be one of {', '.join(DEFAULTS)}, not {escalation.default[:80]!r}"
        raise BadRequest(message, param="escalation.default")


def check_decision(
    kind: str, note: str, text: str, *, phase: bool, decision_id: str = "", question: bool = False
) -> DecisionKind:
    """The kind of a decision that makes sense; ``question``: a person is asked whether a tool call may run.

    Raises ``BadRequest``: names the field.
    """
    if kind not in list(DecisionKind):
        known = ", ".join(DecisionKind)
        raise BadRequest(f"decision must be one of {known}, not {kind[:80]!r}", param="decision")
    if question and kind not in DEFAULTS:
        raise BadRequest("a tool call is answered by approve or reject", param="decision")
    if decision_id and not _ID.fullmatch(decision_id):
        message = f"decision_id must be 1 to {MAX_ID} letters, digits or . _ @ : -, not {decision_id[:80]!r}"
        raise BadRequest(message, param="decision_id")
    if len(note) > MAX_NOTE:
        raise BadRequest(f"the note must have at most {MAX_NOTE} characters", param="note")
    if kind == DecisionKind.RETRY and not note.strip():
        raise BadRequest("retry needs a note: the agent gets it as its prompt", param="note")
    if kind != DecisionKind.EDIT and text:
        raise BadRequest("only edit takes a text", param="text")
    if kind == DecisionKind.EDIT and phase and text:
        raise BadRequest("a phase is edited in its files, not by a text", param="text")
    if kind == DecisionKind.EDIT and not phase and not text.strip():
        raise BadRequest("edit needs the text of the answer", param="text")
    if len(text) > MAX_TEXT:
        raise BadRequest(f"the text must have at most {MAX_TEXT} characters", param="text")
    return DecisionKind(kind)


# The limits of one turn: settings, requests, policies and phases all have them.

#: Runs of its agent, ADR-038's max_retries plus one.
MAX_ATTEMPTS = 20
#: Wall time over all attempts, in seconds: a week.
MAX_DEADLINE_SECONDS = 604_800
MAX_TOKENS = 10**9
#: In US dollars.
MAX_COST_USD = 10**6


# Which validators are offered here: the built-in ones, and those of installed packages. *Offered* is what can be asked
# for; *active* is what judges: by HELIX_VALIDATORS, or by the request. The names of the offered ones come from the
# metadata of installed packages. Their code is not imported, so the relay may ask too.

#: The group of entry points in which packages name their validators (docs/validators.md).
GROUP = "helix_turns.validators"
#: Ours: ADR-038's three.
BUILT_IN = ("step_marker", "adr_structure", "file_existence")


def installed_validators() -> Mapping[str, EntryPoint]:
    """The entry points of installed packages, by name; another package never replaces a built-in name."""
    return _installed(tuple(sys.path))


@lru_cache(maxsize=8)
def _installed(_path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP)) if entry.name not in BUILT_IN}


def offered_validators() -> tuple[str, ...]:
    """The names that can be asked for: ours first, then those of installed packages, sorted."""
    return (*BUILT_IN, *installed_validators())


def askable(active: Collection[str]) -> tuple[str, ...]:
    """The names a request may have: what is offered here, and what the settings have made active.

    An operator who activates a validator on a relay without its package says that the workers offer it.
    """
    return tuple(dict.fromkeys((*offered_validators(), *active)))


def not_offered(name: str, offered: Sequence[str]) -> str:
    """The message about a name nobody offers: the likely one, and all there are."""
    return f"unknown validator {name[:80]!r}{nearest(name, offered)} (offered: {', '.join(offered) or 'none'})"
