"""Chooses the language of a turn and of errors: field ``locale``, header ``X-Helix-Locale``, question, HELIX_LOCALE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, get_args

from starlette.datastructures import Headers
from starlette.requests import Request

from api_client.contract.error_codes import ERROR_CODES, error_sentence, error_words
from api_client.contract.question_language import detect_language
from api_client.web.errors import ApiError
from api_client.web.sentences import translate

Locale: TypeAlias = Literal["de", "en"]
LOCALES: tuple[str, ...] = get_args(Locale)
LOCALE_HEADER = "x-helix-locale"
_OPEN_WEBUI_PREFIXES = ("x-owui-", "x-openwebui-")
_LOCALE_SCOPE_KEY = "helix.locale"
#: Errors whose words are complete for a user of a chat.
_SELF_EXPLANATORY = frozenset(
    {"image_not_read", "image_unreadable", "empty_message", "content_too_long", "too_many_messages"}
    | {"rate_limited", "too_many_unfinished", "storage_full", "queue_full", "too_many_requests", "request_too_large"}
)


def is_open_webui(headers: Headers) -> bool:
    """Return True if the headers show that Open WebUI sent the request."""
    return any(name.startswith(_OPEN_WEBUI_PREFIXES) for name in headers)


def requested_locale(headers: Headers, default: str) -> str:
    """Return the language named in the request headers, or else ``default``."""
    asked = headers.get(LOCALE_HEADER, "").strip().lower()
    return asked if asked in LOCALES else default


def detect_body_language(body: Mapping[str, Any]) -> str:
    """Return the language of the user's messages in a body, ``de`` or ``en``, or an empty string if unclear."""
    raw = body.get("messages", body.get("input"))
    return detect_language(_user_texts(raw) if isinstance(raw, list) else [raw] if isinstance(raw, str) else [])


def _user_texts(messages: list[Any]) -> Iterator[str]:
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
    """Store the language of a request's body in the request, for error messages."""
    if (asked := body.get("locale")) in LOCALES:
        request.scope[_LOCALE_SCOPE_KEY] = asked
    elif is_open_webui(request.headers) and LOCALE_HEADER not in request.headers:
        request.scope[_LOCALE_SCOPE_KEY] = detect_body_language(body)


def error_language(request: Request, default: str) -> str:
    """Return the language for errors shown to the caller of a request."""
    asked = request.scope.get(_LOCALE_SCOPE_KEY)
    return str(asked or requested_locale(request.headers, default if is_open_webui(request.headers) else "en"))


def localize_error(error: ApiError, request: Request, default: str) -> str:
    """Return the message of an error in the caller's language."""
    locale, code = error_language(request, default), error.code
    if code not in ERROR_CODES or error.message.startswith(error_words(code, locale)[0]):
        return error.message
    if any("{" in words for words in error_words(code, locale)):
        return error.message
    if is_open_webui(request.headers) and code in _SELF_EXPLANATORY and not error.lists_several:
        seconds = error.headers.get("retry-after")
        again = translate("again_in", locale, seconds=seconds)
        return f"{error_words(code, locale)[0]} {again}" if seconds else error_sentence(code, locale)
    return error.message if locale == "en" else f"{error_sentence(code, locale)} ({error.message})"
