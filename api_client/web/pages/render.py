"""Templates, what every page is sent with, and what the addresses of pages have in common: errors are pages too.

Whatever is in a page is escaped, and a page loads nothing from elsewhere.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

import api_client
from api_client.contract.errors import HelixError, StoreUnavailable
from api_client.contract.store_refusals import StoreRefusal
from api_client.contract.turn import Turn, TurnState
from api_client.contract.work import find_work
from api_client.resources.registry import PAGES
from api_client.web.errors import ApiError, from_contract
from api_client.web.pages.visitor import LedElsewhere, Visitor, set_cookie
from api_client.web.relay.relay import relay_of

_ASSETS = Path(__file__).with_name("assets")

#: Files pages load: name -> (media type, content). They are small and stay in memory.
ASSETS = {
    name: (media_type, (_ASSETS / name).read_bytes())
    for name, media_type in {"pages.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}.items()
}

#: Part of the files' addresses, so that browsers may keep them for ever.
VERSION = hashlib.sha256(b"".join(content for _, content in ASSETS.values())).hexdigest()[:12]

#: Only what we serve ourselves, no inline script or style, in no frame, and forms only go to us.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

_CODE = re.compile(r"`([^`\n]{1,200})`")

#: Statuses that are neither at work nor bad.
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


def page(template: str, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any) -> Response:
    """A page; without a visitor and a time to refresh, unless the values say so."""
    html = _ENVIRONMENT.get_template(template).render({"visitor": None, "refresh": 0, "path": "", **values})
    body = html.encode("utf-8", "replace")  # a lone surrogate in an agent's answer must not hide the page
    return Response(body, status, {**HEADERS, **(headers or {})}, media_type="text/html")


def seconds(value: float) -> str:
    """A duration as people read it: 0.34 s, 12.5 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if value < 10:
        return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"
    for size, unit, part, part_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if value >= size:
            rest = int(value % size // part)
            return f"{int(value // size)} {unit}" + (f" {rest} {part_unit}" if rest else "")
    return f"{value:.0f} s"


def ago(at: float) -> str:
    """Return how long ago a moment was."""
    return f"{seconds(max(0.0, time.time() - at))} ago" if time.time() - at >= 1 else "now"


def moment(at: float) -> str:
    """A moment, exactly: ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def percent(rate: float | None) -> str:
    """A share as people read it."""
    return "–" if rate is None else f"{rate:.0%}" if rate in {0, 1} else f"{rate:.1%}"


def number(value: float) -> str:
    """A count with thin spaces between the thousands."""
    return f"{value:,.0f}".replace(",", "\u202f")


def dollars(value: float) -> str:
    """Money: cents where there are any, more digits below a cent."""
    return f"${value:.2f}" if value >= 1 or not value else f"${value:.4f}"


def cut(text: str, width: int) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: width * 4].split())
    return line if len(line) <= width else line[: width - 1] + "…"


def with_code(text: str) -> Markup:
    """One of our sentences, with what is in backticks set as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def facts(found: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Facts of any depth as names and values; without those that say nothing."""
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        called = f"{before} {name.replace('_', ' ')}".strip()
        match value:
            case dict():
                rows += facts(value, called)
            case list() | tuple():
                rows += [(called, ", ".join(map(_in_line, value)))] if value else []
            case bool():
                rows.append((called, "yes" if value else "no"))
            case None | "":
                pass
            case _:
                rows.append((called, str(value)))
    return rows


def _in_line(fact: object) -> str:
    """One of many facts: of a mapping its names and values."""
    return " ".join(f"{name} {value}" for name, value in fact.items()) if isinstance(fact, dict) else str(fact)


def tone(status: str) -> str:
    """The colour of a state or outcome: good, again, repaired, bad, quiet or busy."""
    return _TONES.get(status, "busy" if status in {*TurnState, "stopping"} else "bad")


def status_of(turn: Turn) -> str:
    """The one word for a turn: how it ended, or what it is doing."""
    if turn.outcome:
        return turn.outcome.value
    return "stopping" if turn.stop else turn.state.value


def capital(text: str) -> str:
    """A text with a capital letter in front; the rest stays."""
    return text[:1].upper() + text[1:]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("api_client.web.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (seconds, ago, moment, percent, number, dollars, cut, with_code, facts, tone, status_of)
    for filter_ in (*shown, capital, find_work):
        environment.filters[filter_.__name__] = filter_
    environment.globals.update(asset_version=VERSION, version=api_client.__version__, pages=PAGES)
    return environment


_ENVIRONMENT = _environment()


class _PageRoute(APIRoute):
    """A route whose errors are pages too, and whose every answer has the pages' headers."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                response: Response = await handle(request)
            except LedElsewhere as led:
                response = see_other(led.address)
            except ApiError as error:
                response = error_page(error)
            except HelixError as error:
                refusal = error.refusal if isinstance(error, StoreUnavailable) else None
                response = error_page(from_contract(error, relay_of(request).settings.locale), refusal)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return answer


def page_router() -> APIRouter:
    """A router for pages. They are not part of the API's description."""
    return APIRouter(route_class=_PageRoute, include_in_schema=False)


def visited(template: str, request: Request, visitor: Visitor, **values: Any) -> Response:
    """A page for a visitor, with the cookie for a new one."""
    response = page(template, visitor=visitor, path=request.url.path, **values)
    if visitor.new:
        set_cookie(request, response, visitor.token)
    return response


def see_other(address: str) -> Response:
    """Lead the browser to another address."""
    return RedirectResponse(address, 303)


def error_page(error: ApiError, refusal: StoreRefusal | None = None) -> Response:
    """An error as a page."""
    return page("error.html", error.status, error.headers, error=error, refusal=refusal)
