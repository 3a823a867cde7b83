"""The errors both sides raise.

Each message says what happened and, where somebody can act, what to do. ``code`` is the error's entry in
``error_codes``, for programs and for `turns explain`.
"""

from __future__ import annotations

from typing import Self

from api_client.contract.store_refusals import StoreRefusal


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


class NotAdmitted(HelixError):
    """An admission refuses a turn, in words for its caller. ``seconds``: when to come again; 0: not as it is.

    ``kind``: what the turn was refused for, in a word; empty where the code says it all. ``resets_at``: when there is
    room again at the latest, in seconds since the epoch; 0: not known.
    """

    code = "not_admitted"
    kind = ""
    resets_at = 0.0

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


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


class NotSuspended(HelixError):
    """A decision on a turn that waits for none; ``why`` says what became of it."""

    code = "turn_not_suspended"

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
