"""Problems: of an answer, and of a turn that ended without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from api_client.contract.declared import READ
from api_client.contract.error_codes import StoreRefusal

# The errors both sides raise. Each message says what happened and, where somebody can act, what to do. ``code`` is the
# error's entry in ``error_codes``, for programs and for `turns explain`.


class HelixError(Exception):
    """Base of every error helix-turns raises on purpose. ``turn_ids``: turns that were stored all the same."""

    code = "operation_failed"
    turn_ids: tuple[str, ...] = ()


class SettingsError(HelixError):
    """One or more settings are wrong; ``problems`` lists them all, one line each."""

    code = "invalid_settings"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.problems,)


class BadRequest(HelixError):
    """A request that can never work; ``param`` names the field that is wrong."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code or "invalid_value"


class TurnNotFound(HelixError):
    """No such turn, or not one of this owner's: the two look the same to a caller on purpose."""

    code = "turn_not_found"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"no turn {turn_id!r}")
        self.turn_id = turn_id


class IdempotencyConflict(HelixError):
    """The idempotency key was used before with another body."""

    code = "idempotency_key_reused"

    def __init__(self, key: str) -> None:
        super().__init__(f"the idempotency key {key!r} was used before with another request body")
        self.key = key


class SessionBusy(HelixError):
    """``reject`` was asked for and the session still works on another turn."""

    code = "session_busy"

    def __init__(self, session_id: str, turn_id: str) -> None:
        super().__init__(f"session {session_id!r} is still working on turn {turn_id!r}")
        self.session_id = session_id
        self.turn_id = turn_id


class IntakePaused(HelixError):
    """An operator paused the intake: no new turns are taken. ``until``: seconds since the epoch; 0: not known."""

    code = "intake_paused"

    def __init__(self, reason: str, until: float) -> None:
        super().__init__(f"no new turns are taken: {reason or 'the intake is paused'}")
        self.reason = reason
        self.until = until


class BudgetExceeded(HelixError):
    """A day's budget has no room. ``scope``: whose (``owner:HASH``); US dollars; ``seconds``: when to come again."""

    code = "budget_exceeded"

    def __init__(
        self, scope: str, spent_usd: float, aside_usd: float, limit_usd: float, resets_at: float, seconds: float
    ) -> None:
        kind = scope.partition(":")[0]
        aside = f", {aside_usd:.4f} set aside for turns at work" if aside_usd else ""
        super().__init__(
            f"today's budget ({kind}) has no room: {spent_usd:.4f} of {limit_usd:.4f} dollars spent{aside}"
        )
        self.kind = kind
        self.spent_usd = spent_usd
        self.limit_usd = limit_usd
        self.resets_at = resets_at
        self.seconds = max(1.0, seconds)


class NotFinished(HelixError):
    """The request needs a turn that has ended, or that is a dead letter."""

    code = "turn_not_finished"

    def __init__(self, turn_id: str, state: str = "is still going on") -> None:
        super().__init__(f"turn {turn_id!r} {state}")
        self.turn_id = turn_id


class KeyNotFound(HelixError):
    """No API key of this name is active."""

    code = "key_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"no active key {name!r}")


class NotParked(HelixError):
    """A decision on a turn that waits for none; ``why`` says what became of it."""

    code = "turn_not_parked"

    def __init__(self, turn_id: str, why: str) -> None:
        super().__init__(f"turn {turn_id!r} waits for no decision: {why}")
        self.turn_id = turn_id
        self.why = why


class StoreUnavailable(HelixError):
    """The store does not answer, or refuses to write; nothing was changed that a repeat would double.

    ``refusal`` is there when it answered, and refused.
    """

    code = "store_unavailable"

    def __init__(self, reason: str, refusal: StoreRefusal | None = None) -> None:
        super().__init__(f"{refusal}; {refusal.fix}" if refusal else f"the store does not answer: {reason}")
        self.reason = str(refusal) if refusal else reason
        self.refusal = refusal

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.reason, self.refusal)


class RestoreRefused(HelixError):
    """The archive is not whole, or the installation is not empty; the message says which, and what to do."""

    code = "restore_refused"


# The finding of a validator, a gate or the verifier: an issue, and its wire form. Source: ADR-038, section 1 "Base
# Validator Interface"; severities as in docs/enforcement.md.


class Severity(StrEnum):
    """The weight of an issue."""

    #: The answer cannot be accepted as it is; causes a retry.
    ERROR = "error"
    #: Reported, never a reason to ask again.
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class ValidationIssue:
    """One thing that is wrong with an answer.

    Attributes:
        code: name of the rule, such as ``MISSING_STEP_MARKER`` (``worker.enforcement.validators.codes``).
        message: the faults, for people, in the turn's language.
        fix_hint: what to do about it, for the agent.
        severity: ``error`` or ``warning``; only errors cause a retry.
        validator: name of the validator that found it; set by ``examine``.
        file: name of the file it is in, empty for the answer itself.
        line: line in the answer or file, from 1; 0 when the issue is about no line.
        part: the wrong or missing part (a ``Part`` or its name), when sending it alone repairs the answer; an error
            without one is about the whole answer.
        adr: name of the ADR it is in, where a text holds several; else empty.
        shortens: the repair is to make the answer shorter, so that sections may go (no CONTENT_LOST).

    Raises:
        ValueError: the severity is neither ``error`` nor ``warning``.
    """

    code: str
    message: str
    fix_hint: str
    severity: Severity | str = Severity.ERROR
    validator: str = ""
    file: str = ""
    line: int = 0
    part: str = ""
    shortens: bool = False
    adr: str = ""

    def __post_init__(self) -> None:
        if type(self.severity) is not Severity:
            object.__setattr__(self, "severity", Severity(self.severity))
        if type(self.part) is not str:  # a ``Part``
            object.__setattr__(self, "part", str(self.part))

    @property
    def is_error(self) -> bool:
        """True when the answer cannot be accepted because of this."""
        return self.severity == Severity.ERROR

    def to_dict(self) -> dict[str, Any]:
        """The issue as a JSON-ready mapping."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}  # all of them plain values
        return data | {"severity": str(self.severity)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ValidationIssue:
        """Read an issue from the wire; keys of a newer version are left alone.

        A key that is missing, or of another type, gets its field's default or an empty text; a severity that is not
        known means an error.
        """
        values: Any = {name: read(data[name]) if name in data else default for name, read, default in _WIRE}
        return cls(**values)


def _severity(value: Any) -> Severity:
    return Severity.WARNING if value == Severity.WARNING else Severity.ERROR


#: Of each field: its name, how it is read, and what it is when it is missing.
_WIRE: list[tuple[str, Callable[[Any], Any], Any]] = [
    (each.name, READ.get(str(each.type), _severity), "" if each.default is MISSING else each.default)
    for each in fields(ValidationIssue)
]


def read_issues(value: Any) -> tuple[ValidationIssue, ...]:
    """The issues in a JSON list; whatever is not an object is passed over."""
    listed = value if isinstance(value, list | tuple) else ()
    return tuple(ValidationIssue.from_dict(each) for each in listed if isinstance(each, Mapping))


def issues_data(issues: Iterable[ValidationIssue]) -> list[dict[str, Any]]:
    """The wire form of issues: a JSON-ready list."""
    return [issue.to_dict() for issue in issues]


def error_codes(issues: Iterable[ValidationIssue]) -> tuple[str, ...]:
    """The codes of the errors among issues, each once, in the order they were found."""
    return tuple(dict.fromkeys(issue.code for issue in issues if issue.is_error))


# The reason why a turn ended without an answer, as its record, its last event, the HTTP API and ``--json`` have it.


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnError:
    """The error of a turn.

    Attributes:
        code: stable code (docs/errors.md).
        message: for the user, in the turn's language.
        reason: for operators, in English; may be empty.
        issues: what was found in the answer that was best.
    """

    code: str = ""
    message: str = ""
    reason: str = ""
    issues: tuple[ValidationIssue, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The error as a JSON-ready mapping. ``reason`` is left out when it is empty."""
        reason = {"reason": self.reason} if self.reason else {}
        return {"code": self.code, "message": self.message, **reason, "issues": issues_data(self.issues)}

    @classmethod
    def from_dict(cls, data: Any) -> TurnError | None:
        """Read one from the wire; None for an empty object and for what is not an object.

        What is missing, or of another type, is empty: another version may have written it.
        """
        if not data or not isinstance(data, dict):
            return None
        code, message, reason = (READ["str"](data.get(name)) for name in ("code", "message", "reason"))
        return cls(code=code, message=message, reason=reason, issues=read_issues(data.get("issues")))

    @classmethod
    def from_json(cls, text: str) -> TurnError | None:
        """As ``from_dict``, from the text in a turn's record; None for an empty one.

        Raises ``ValueError``: the text is not JSON.
        """
        return cls.from_dict(json.loads(text or "{}"))


def error_data(error: TurnError | None) -> dict[str, Any]:
    """The wire form of a turn's error; of none: an empty object."""
    return error.to_dict() if error else {}
