"""The language of a caller: of its turn, and of the errors it reads before a turn.

What is asked for counts: the field ``locale`` (Open WebUI sends it as a custom parameter of a model, a chat or a user),
else the header ``X-Helix-Locale`` (of one of its connections). Else a turn speaks HELIX_LOCALE; errors before a turn
speak it to Open WebUI, whose users read them, and English to programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

from starlette.datastructures import Headers
from starlette.requests import Request

from api_client.contract.words.error_codes import ERROR_CODES, sentence, words_of
from api_client.web.errors import ApiError
from api_client.web.streaming.words import say

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


def note_locale(request: Request, body: Mapping[str, Any]) -> None:
    """Remember the language that a body asks for, for errors of this request."""
    if (asked := body.get("locale")) in LOCALES:
        request.scope[_ASKED] = asked


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
    if is_open_webui(request.headers) and code in _WHOLE:
        seconds = error.headers.get("retry-after")
        again = say("again_in", locale, seconds=seconds)
        return f"{words_of(code, locale)[0]} {again}" if seconds else sentence(code, locale)
    return error.message if locale == "en" else f"{sentence(code, locale)} ({error.message})"
