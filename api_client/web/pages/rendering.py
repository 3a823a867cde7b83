"""Renders templates, with the security headers and error pages that all pages share."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from fastapi import APIRouter
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

import api_client
from api_client.contract.clock_time import format_duration
from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.store_refusals import StoreRefusal
from api_client.contract.turn import TurnState
from api_client.contract.work import find_work
from api_client.index.turn_row import describe_status
from api_client.oidc.person import SignInRefused
from api_client.resources.registry import PAGES
from api_client.web.errors import ApiError, convert_error
from api_client.web.pages.visitor import RedirectVisitor, Visitor, set_cookie
from api_client.web.relay.relay import get_relay

log = structlog.get_logger(__name__)

_ASSETS = Path(__file__).with_name("assets")

#: Static files: name -> (media type, content). The files are small and stay in memory.
ASSETS = {
    name: (media_type, (_ASSETS / name).read_bytes())
    for name, media_type in {"pages.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}.items()
}

#: Part of the static files' addresses, so that browsers may cache them for ever.
VERSION = hashlib.sha256(b"".join(content for _, content in ASSETS.values())).hexdigest()[:12]

#: Content security policy: only our own files and forms.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

_CODE = re.compile(r"`([^`\n]{1,200})`")

_TONES = {
    "passed": "good",
    "passed_after_retry": "again",
    "passed_by_fallback": "repaired",
    "passed_by_human": "repaired",
    "cancelled": "quiet",
    "queued": "quiet",
    "suspended": "again",
}

HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def render_page(template: str, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any) -> Response:
    """Render a template to an HTML response with the headers common to all pages."""
    html = _ENVIRONMENT.get_template(template).render({"visitor": None, "refresh": 0, "path": "", **values})
    body = html.encode("utf-8", "replace")  # a lone surrogate in an agent's answer must not break the page
    return Response(body, status, {**HEADERS, **(headers or {})}, media_type="text/html")


def ago(at: float) -> str:
    """Format a time (seconds since the epoch) as the time elapsed since then, such as ``5.0 s ago``."""
    return f"{format_duration(time.time() - at)} ago" if time.time() - at >= 1 else "now"


def moment(at: float) -> str:
    """Format a time (seconds since the epoch) as ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def percent(rate: float | None) -> str:
    """Format a rate between 0 and 1 as a percentage, and None as a dash."""
    return "–" if rate is None else f"{rate:.0%}" if rate in {0, 1} else f"{rate:.1%}"


def number(value: float) -> str:
    """Format a number without decimals, with thin spaces between thousands."""
    return f"{value:,.0f}".replace(",", "\u202f")


def dollars(value: float) -> str:
    """Format an amount in US dollars with two decimals, or with four below one dollar."""
    return f"${value:.2f}" if value >= 1 or not value else f"${value:.4f}"


def cut(text: str, width: int) -> str:
    """Shorten a text to one line of at most ``width`` characters, with an ellipsis at the cut."""
    line = " ".join(text[: width * 4].split())
    return line if len(line) <= width else line[: width - 1] + "…"


def with_code(text: str) -> Markup:
    """Escape a text for HTML, and show its parts in backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def facts(found: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Flatten nested data into rows of name and value for a table, without empty values."""
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        called = f"{before} {name.replace('_', ' ')}".strip()
        match value:
            case dict():
                rows += facts(value, called)
            case list() | tuple():
                rows += [(called, ", ".join(map(_format_item, value)))] if value else []
            case bool():
                rows.append((called, "yes" if value else "no"))
            case None | "":
                pass
            case _:
                rows.append((called, str(value)))
    return rows


def _format_item(fact: object) -> str:
    return " ".join(f"{name} {value}" for name, value in fact.items()) if isinstance(fact, dict) else str(fact)


def tone(status: str) -> str:
    """Return the name of the colour for a state or outcome."""
    return _TONES.get(status, "busy" if status in {*TurnState, "stopping"} else "bad")


def capital(text: str) -> str:
    """Capitalise the first letter of a text and leave the rest unchanged."""
    return text[:1].upper() + text[1:]


def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("api_client.web.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (ago, moment, percent, number, dollars, cut, with_code, facts, tone, capital)
    for filter_ in (*shown, format_duration, describe_status, find_work):
        environment.filters[filter_.__name__] = filter_
    environment.globals.update(asset_version=VERSION, version=api_client.__version__, pages=PAGES)
    return environment


_ENVIRONMENT = _make_environment()


class _PageRoute(APIRoute):
    """A page's route, which renders errors as pages and adds security headers to every response."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            try:
                response: Response = await handle(request)
            except RedirectVisitor as led:
                response = redirect(led.target)
            except SignInRefused as refused:
                log.warning("page.sign_in_refused", why=str(refused))
                response = render_page("sign_in_refused.html", 403, why=str(refused))
            except ApiError as error:
                response = error_page(error)
            except HelixError as error:
                refusal = error.refusal if isinstance(error, StoreUnavailable) else None
                response = error_page(convert_error(error, get_relay(request).settings.locale), refusal)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return handle_request


def page_router() -> APIRouter:
    """Create a router for HTML pages, excluded from the API's OpenAPI document."""
    return APIRouter(route_class=_PageRoute, include_in_schema=False)


def render_for_visitor(template: str, request: Request, visitor: Visitor, **values: Any) -> Response:
    """Render a page for a visitor, setting the sign-in cookie if the visitor has none yet."""
    response = render_page(template, visitor=visitor, path=request.url.path, **values)
    if visitor.needs_cookie:
        set_cookie(request, response, visitor.token)
    return response


def redirect(address: str) -> Response:
    """Return a response that redirects the browser to another address with status 303."""
    return RedirectResponse(address, 303)


def error_page(error: ApiError, refusal: StoreRefusal | None = None) -> Response:
    """Render an error as an HTML page with the error's status."""
    return render_page("error.html", error.status, error.headers, error=error, refusal=refusal)
