"""Errors of the relay in OpenAI's format; one error lists all problems of a request."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api_client.contract import errors
from api_client.contract.clock_time import format_clock_time
from api_client.contract.error_codes import error_sentence
from api_client.contract.session_files import SessionFilesAway, SessionFilesGone
from api_client.turns.turn_files import FileMissing
from api_client.web.sentences import translate

#: Value of ``x-should-retry``, which the official clients obey; without it they repeat every 409 and 5xx.
NO_RETRY = {"x-should-retry": "false"}
STORE_RETRY_SECONDS = 2

_MAX_LISTED = 20

_TYPES = {401: "authentication_error", 403: "permission_error", 408: "timeout_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An error in OpenAI's format for the client, with an HTTP status.

    ``param`` names the invalid field, such as ``messages[0].role``. ``turn_ids`` lists turns that were stored in spite
    of the error. ``lists_several`` says that the message lists several problems.
    """

    turn_ids: tuple[str, ...] = ()
    lists_several: bool = False

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        kind: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind or _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.headers = headers or {}

    def to_body(self) -> dict[str, Any]:
        """Return the error as OpenAI's JSON object, for a response body or a chunk of a stream."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error | ({"turn_ids": self.turn_ids} if self.turn_ids else {})}


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Build an error with the HTTP status 400."""
    return ApiError(400, message, param=param, code=code)


@dataclass(frozen=True, slots=True)
class Problems:
    """Collects the errors of a request. A ``with`` block adds an ``ApiError`` instead of raising it."""

    errors: list[ApiError] = field(default_factory=list)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, ApiError):
            self.add(error)
        return isinstance(error, ApiError)

    def add(self, error: ApiError) -> None:
        self.errors.append(error)

    def raise_problems(self) -> None:
        """Raise the first collected error, if any, with a message that lists all of them."""
        if not self.errors:
            return
        first, messages = self.errors[0], list(dict.fromkeys(each.message for each in self.errors))
        first.message, first.lists_several = _join_problems(messages), len(messages) > 1
        raise first


def _join_problems(messages: list[str]) -> str:
    if len(messages) == 1:
        return messages[0]
    numbered = " ".join(f"({number}) {each}" for number, each in enumerate(messages[:_MAX_LISTED], 1))
    more = f" and {len(messages) - _MAX_LISTED} more" if len(messages) > _MAX_LISTED else ""
    return f"{len(messages)} problems: {numbered}{more}"


def convert_error(error: errors.HelixError, locale: str) -> ApiError:
    """Convert an exception of ``TurnsClient`` to an API error that reveals only what callers may know."""
    match error:
        case errors.BadRequest():
            status = 403 if error.code in {"operators_only", "link_invalid"} else 400
            message = printable_text(_join_problems(str(error).split("\n")), 2_000)
            return ApiError(status, message, param=error.param, code=error.code or "invalid_value")
        case errors.TurnNotFound():
            return ApiError(404, "no such turn", param="turn_id", code="turn_not_found")
        case FileMissing() | SessionFilesGone():
            return ApiError(404, "no such file", param="path", code="file_not_found")
        case errors.IdempotencyConflict():
            message = "this Idempotency-Key was used before with another request"
            return ApiError(409, message, param="Idempotency-Key", code="idempotency_key_reused", headers=NO_RETRY)
        case errors.TurnNotFinished() | errors.TurnNotSuspended():
            return ApiError(409, printable_text(str(error), 400), code=error.code, headers=NO_RETRY)
        case errors.NotAdmitted() if error.resets_at:
            soon = time.time() + error.seconds < error.resets_at - 1  # what running turns have reserved will come back
            resets = format_clock_time(error.resets_at, time.time())
            until = translate("until_others_end", locale) if soon else translate("until", locale, time=resets)
            message = f"{error_sentence(error.code, locale)} ({error.kind},{until})"
            headers = ({} if soon else NO_RETRY) | {"retry-after": str(math.ceil(error.seconds))}
            return ApiError(429, message, code=error.code, headers=headers)
        case errors.NotAdmitted():
            headers = {"retry-after": str(math.ceil(error.seconds))} if error.seconds else NO_RETRY
            status = 429 if error.seconds else 403
            return ApiError(status, printable_text(str(error), 400), code=error.code, headers=headers)
        case errors.IntakeClosed():
            details = printable_text(error.explain(locale), 400)
            message = f"{error_sentence(error.code, locale)} ({details})"
            return ApiError(503, message, code=error.code, headers={"retry-after": str(error.retry_after)})
        case errors.SessionBusy():
            return ApiError(409, error_sentence("session_busy", locale), code="session_busy", headers=NO_RETRY)
        case errors.StoreUnavailable() | errors.SettingsError() | SessionFilesAway():
            code = "files_unavailable" if isinstance(error, SessionFilesAway) else "store_unavailable"
            headers = {"retry-after": str(STORE_RETRY_SECONDS)}
            return ApiError(503, error_sentence(code, locale), code=code, headers=headers)
    return internal_error(locale)


def internal_error(locale: str) -> ApiError:
    """Build the error with status 500 that reports a bug. The details are in the log."""
    return ApiError(500, error_sentence("internal_error", locale), code="internal_error")


def describe_fault(error: BaseException) -> dict[str, Any]:
    """Describe an exception for the log by its type and stack, without values that may contain a user's text."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return {
        "error": type(error).__name__,
        "trace": [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames],
    }


def turn_continues_error(code: str, turn_id: str, locale: str) -> ApiError:
    """Build the error for a client that stops waiting while its turn continues."""
    message = error_sentence(code, locale, turn_id=turn_id)
    return ApiError(503, message, code=code, headers=NO_RETRY | {"x-turn-id": turn_id})


def printable_text(text: str, limit: int = 80) -> str:
    """Replace a text's unprintable characters and truncate it to ``limit`` characters, for use in a message."""
    clean = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:limit])
    return clean if len(text) <= limit else f"{clean}..."


def display_value(value: Any) -> str:
    """Describe a received value in an error message: short values in full, lists and objects by type."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return printable_text(str(value))
        case str():
            return f'"{printable_text(value)}"'
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"
