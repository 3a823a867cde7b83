"""Every error the relay answers with has one shape, OpenAI's: ``{"error": {message, type, param, code}}``.

A message names the field, what came (80 printable characters of it at most) and what is allowed. It never holds the
body, a path, an address or a stack.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from starlette.datastructures import Headers
from starlette.requests import Request

from api_client.contract import issues as contract
from api_client.contract.declared import table_beside
from api_client.contract.error_codes import ERROR_CODES, sentence, words_of
from api_client.contract.messages import spoken
from api_client.contract.phases import PhaseError
from api_client.pauses import clock_time
from api_client.snapshots import FilesLost, FilesUnavailable
from api_client.turns.turn_files import FileMissing

# Every sentence of the relay that a user may read while a turn goes on: one table, ``words.toml``. Errors have another
# table (``contract/error_codes.toml``), which all sides share.

_WORDS = table_beside(__file__)


def say(name: str, locale: str, **values: object) -> str:
    """The sentence ``name`` in the language ``locale`` (``de`` or ``en``; any other is English)."""
    texts = _WORDS[name]
    return str(texts.get(locale, texts["en"])).format(**values)


#: Content of ``x-should-retry``: the official clients obey it and otherwise repeat every 409 and 5xx by themselves.
NO_RETRY = {"x-should-retry": "false"}
STORE_RETRY_SECONDS = 2
#: When to come again while the intake is paused and nobody said until when.
PAUSED_RETRY_SECONDS = 60

#: Problems of a body that its error lists.
_MOST_LISTED = 20

_TYPES = {401: "authentication_error", 403: "permission_error", 408: "timeout_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: the HTTP status.
        param: the field that is wrong, such as ``messages[0].role``; None when no field is at fault.
        code: a stable word for programs.
        headers: further response headers.
        turn_ids: turns that were stored all the same.
        several: the message lists several problems; the rest is the first one's.
    """

    turn_ids: tuple[str, ...] = ()
    several: bool = False

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

    def body(self) -> dict[str, Any]:
        """The error object, as a response's body or as a chunk of a stream that has begun."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error | ({"turn_ids": self.turn_ids} if self.turn_ids else {})}


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A 400."""
    return ApiError(400, message, param=param, code=code)


@dataclass(frozen=True, slots=True)
class Problems:
    """The problems of one request. A ``with`` block that raises an ``ApiError`` adds it, and reading goes on behind."""

    found: list[ApiError] = field(default_factory=list)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, ApiError):
            self.add(error)
        return isinstance(error, ApiError)

    def add(self, error: ApiError) -> None:
        """Add one."""
        self.found.append(error)

    def end(self) -> None:
        """Raise what was found, if anything was: the first problem, whose message lists the others too."""
        if not self.found:
            return
        first = self.found[0]
        if lines := list(dict.fromkeys(each.message for each in self.found))[1:]:
            listed = [first.message, *lines[: _MOST_LISTED - 1]]
            more = f" and {len(lines) + 1 - _MOST_LISTED} more" if len(lines) >= _MOST_LISTED else ""
            numbered = " ".join(f"({number}) {each}" for number, each in enumerate(listed, 1))
            first.message, first.several = f"{len(lines) + 1} problems: {numbered}{more}", True
        raise first


def from_contract(error: contract.HelixError, locale: str) -> ApiError:
    """The answer to an error of the client. Only what a caller may know is copied out of it."""
    match error:
        case contract.BadRequest():
            status = 403 if error.code in {"operators_only", "link_invalid"} else 400
            return ApiError(status, shown_text(str(error), 400), param=error.param, code=error.code or "invalid_value")
        case contract.TurnNotFound():
            return ApiError(404, "no such turn", param="turn_id", code="turn_not_found")
        case FileMissing() | FilesLost():
            return ApiError(404, "no such file", param="path", code="file_not_found")
        case contract.IdempotencyConflict():
            message = "this Idempotency-Key was used before with another request"
            return ApiError(409, message, param="Idempotency-Key", code="idempotency_key_reused", headers=NO_RETRY)
        case PhaseError():
            return bad_request(shown_text(str(error), 2_000), param="phases", code="invalid_phases")
        case contract.NotFinished() | contract.NotParked():
            return ApiError(409, shown_text(str(error), 400), code=error.code, headers=NO_RETRY)
        case contract.BudgetExceeded():
            soon = time.time() + error.seconds < error.resets_at - 1  # what turns at work set aside comes back
            resets = clock_time(error.resets_at, time.time())
            until = say("until_others_end", locale) if soon else say("until", locale, time=resets)
            message = f"{sentence('budget_exceeded', locale)} ({error.kind},{until})"
            headers = ({} if soon else NO_RETRY) | {"retry-after": str(math.ceil(error.seconds))}
            return ApiError(429, message, code="budget_exceeded", headers=headers)
        case contract.IntakePaused():
            now = time.time()
            seconds = max(1, math.ceil(error.until - now)) if error.until else PAUSED_RETRY_SECONDS
            until = say("until", locale, time=clock_time(error.until, now)) if error.until else ""
            reason = shown_text(error.reason, 200)
            details = say("paused", locale, until=until, reason=f": {reason}" if reason else "")
            message = f"{sentence('intake_paused', locale)} ({details})"
            return ApiError(503, message, code="intake_paused", headers={"retry-after": str(seconds)})
        case contract.SessionBusy():
            return ApiError(409, sentence("session_busy", locale), code="session_busy", headers=NO_RETRY)
        case contract.StoreUnavailable() | contract.SettingsError() | FilesUnavailable():
            code = "files_unavailable" if isinstance(error, FilesUnavailable) else "store_unavailable"
            headers = {"retry-after": str(STORE_RETRY_SECONDS)}
            return ApiError(503, sentence(code, locale), code=code, headers=headers)
    return internal_error(locale)


def internal_error(locale: str) -> ApiError:
    """A fault in our code; the log has the details under the request's id."""
    return ApiError(500, sentence("internal_error", locale), code="internal_error")


def where(error: BaseException) -> dict[str, Any]:
    """A fault for the log: its type and place, but no values, because these may be what a user wrote."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return {
        "error": type(error).__name__,
        "trace": [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames],
    }


def goes_on(code: str, turn_id: str, locale: str) -> ApiError:
    """The turn goes on without its caller, who cannot follow it (``stream_lost``), or not as long (``turn_parked``).

    A repeat would be another turn.
    """
    message = sentence(code, locale, turn_id=turn_id)
    return ApiError(503, message, code=code, headers=NO_RETRY | {"x-turn-id": turn_id})


def shown_text(text: str, limit: int = 80) -> str:
    """A text fit for a message: printable, and cut at ``limit`` characters."""
    clean = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:limit])
    return clean if len(text) <= limit else f"{clean}..."


def shown(value: Any) -> str:
    """Return what came, fit for a message: short values as they are, of lists and objects only that they are such."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return shown_text(str(value))
        case str():
            return f'"{shown_text(value)}"'
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"


# The language of a caller: of its turn, and of the errors it reads before a turn. What is asked for counts: the field
# ``locale`` (Open WebUI sends it as a custom parameter of a model, a chat or a user), else the header
# ``X-Helix-Locale`` (of one of its connections). Else a turn speaks the language of its question, and where that shows
# none, HELIX_LOCALE. Errors before a turn do so for Open WebUI, whose users read them; programs get English.

Locale: TypeAlias = Literal["de", "en"]
LOCALES: tuple[str, ...] = get_args(Locale)
HEADER = "x-helix-locale"
_OPEN_WEBUI_PREFIXES = ("x-owui-", "x-openwebui-")
#: Where a request's scope keeps what its body asks for.
_ASKED = "helix.locale"
#: Errors whose words say all that a user of a chat needs.
_WHOLE = frozenset(
    {"image_not_read", "image_unreadable", "empty_message", "content_too_long", "too_many_messages"}
    | {"rate_limited", "too_many_unfinished", "storage_full", "queue_full", "too_many_requests", "request_too_large"}
)


def is_open_webui(headers: Headers) -> bool:
    """True when Open WebUI sent the request."""
    return any(name.startswith(_OPEN_WEBUI_PREFIXES) for name in headers)


def locale_of(headers: Headers, default: str) -> str:
    """The language that the headers ask for, else ``default``."""
    asked = headers.get(HEADER, "").strip().lower()
    return asked if asked in LOCALES else default


def spoken_in(body: Mapping[str, Any]) -> str:
    """Name the language that the user of a conversation writes, ``de`` or ``en``; empty where it shows none.

    The body is as it came: it may be anything.
    """
    raw = body.get("messages", body.get("input"))
    return spoken(_said_in(raw) if isinstance(raw, list) else [raw] if isinstance(raw, str) else [])


def _said_in(messages: list[Any]) -> Iterator[str]:
    """The user's texts, newest first."""
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            match message.get("content"):
                case str(text):
                    yield text
                case [*parts]:
                    texts = (part.get("text") for part in parts if isinstance(part, dict))
                    yield " ".join(text for text in texts if isinstance(text, str))
                case _:
                    yield ""


def note_locale(request: Request, body: Mapping[str, Any]) -> None:
    """Remember the language that a body asks for, or that a chat's user writes, for errors of this request."""
    if (asked := body.get("locale")) in LOCALES:
        request.scope[_ASKED] = asked
    elif is_open_webui(request.headers) and HEADER not in request.headers:
        request.scope[_ASKED] = spoken_in(body)


def language_of(request: Request, default: str) -> str:
    """The language of an error to this caller; ``default`` is HELIX_LOCALE."""
    asked = request.scope.get(_ASKED)
    return str(asked or locale_of(request.headers, default if is_open_webui(request.headers) else "en"))


def readable(error: ApiError, request: Request, default: str) -> str:
    """The error's message in its caller's language: words of the table, with the details behind them."""
    locale, code = language_of(request, default), error.code
    if code not in ERROR_CODES or error.message.startswith(words_of(code, locale)[0]):
        return error.message
    if any("{" in words for words in words_of(code, locale)):  # filled in by who raised it, in the turn's language
        return error.message
    if is_open_webui(request.headers) and code in _WHOLE and not error.several:
        seconds = error.headers.get("retry-after")
        again = say("again_in", locale, seconds=seconds)
        return f"{words_of(code, locale)[0]} {again}" if seconds else sentence(code, locale)
    return error.message if locale == "en" else f"{sentence(code, locale)} ({error.message})"
