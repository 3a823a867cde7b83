"""Errors that the client and the worker raise. ``code`` names an error's entry in ``error_codes``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from api_client.contract.store_refusals import StoreRefusal


class HelixError(Exception):
    """Base class of all errors that this package raises deliberately.

    ``turn_ids`` lists turns that were stored nevertheless, or may have been.
    """

    code = "operation_failed"
    turn_ids: tuple[str, ...] = ()


class SettingsError(HelixError):
    """Raised when settings are invalid. ``problems`` has one line of text for each problem."""

    code = "invalid_settings"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.problems,)


class BadRequest(HelixError):
    """Raised for a request that can never succeed. ``param`` names the invalid field."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code or "invalid_value"


class TurnNotFound(HelixError):
    """Raised when a turn does not exist or belongs to another owner. Callers cannot tell these cases apart."""

    code = "turn_not_found"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"no turn {turn_id!r}")
        self.turn_id = turn_id


class IdempotencyConflict(HelixError):
    """Raised when an idempotency key was used before with a different request body."""

    code = "idempotency_key_reused"

    def __init__(self, key: str) -> None:
        super().__init__(f"the idempotency key {key!r} was used before with another request body")
        self.key = key


class SessionBusy(HelixError):
    """Raised when a session is still working on another turn and the caller asked not to wait for it."""

    code = "session_busy"

    def __init__(self, session_id: str, turn_id: str) -> None:
        super().__init__(f"session {session_id!r} is still working on turn {turn_id!r}")
        self.session_id = session_id
        self.turn_id = turn_id


class NotAdmitted(HelixError):
    """Raised when an admission check refuses a turn. ``seconds`` is the delay before a retry (0: a retry is useless).

    ``kind`` names what was exhausted, in a word; ``resets_at`` is when there is room again at the latest, in seconds
    since the epoch, 0 if unknown.
    """

    code = "not_admitted"
    kind = ""
    resets_at = 0.0

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class IntakeClosed(HelixError):
    """Raised while no new turns are accepted.

    ``explain`` returns the reason in a given language; ``retry_after`` is in seconds.
    """

    code = "operation_failed"
    retry_after = 60
    explain: Callable[[str], str]


class TurnNotFinished(HelixError):
    """Raised when an action needs a finished turn or a dead letter and the turn is neither."""

    code = "turn_not_finished"

    def __init__(self, turn_id: str, state: str = "is still running") -> None:
        super().__init__(f"turn {turn_id!r} {state}")
        self.turn_id = turn_id


class KeyNotFound(HelixError):
    """Raised when no active API key has the given name."""

    code = "key_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"no active key {name!r}")


class TurnNotSuspended(HelixError):
    """Raised when a decision arrives for a turn that is not waiting for one.

    ``why`` describes the turn's state.
    """

    code = "turn_not_suspended"

    def __init__(self, turn_id: str, why: str) -> None:
        super().__init__(f"turn {turn_id!r} waits for no decision: {why}")
        self.turn_id = turn_id
        self.why = why


class StoreUnavailable(HelixError):
    """Raised when the store does not answer or refuses to write. Repeating the request is safe.

    ``refusal`` is set if the store answered with a refusal.
    """

    code = "store_unavailable"

    def __init__(self, reason: str, refusal: StoreRefusal | None = None) -> None:
        super().__init__(f"{refusal}; {refusal.fix}" if refusal else f"the store does not answer: {reason}")
        self.reason = str(refusal) if refusal else reason
        self.refusal = refusal

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.reason, self.refusal)


class RestoreRefused(HelixError):
    """Raised when a backup is incomplete or the target is not empty."""

    code = "restore_refused"
