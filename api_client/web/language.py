"""The language of a caller: of its turn, and of the errors it reads before a turn.

What is asked for counts: the field ``locale`` (Open WebUI sends it as a custom parameter of a model, a chat or a
user), else the header ``X-Helix-Locale`` (of one of its connections). Else a turn speaks the language of its
question, and where that shows none, HELIX_LOCALE. Errors before a turn do so for Open WebUI, whose users read them;
programs get English.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

from starlette.datastructures import Headers
from starlette.requests import Request

from api_client.contract.error_codes import ERROR_CODES, sentence, words_of
from api_client.contract.question_language import spoken
from api_client.web.errors import ApiError
from api_client.web.words import say

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
