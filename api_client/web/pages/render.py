"""Templates, what every page is sent with, and what the addresses of pages have in common: errors are pages too.

Whatever is in a page is escaped, and a page loads nothing from elsewhere.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from api_client.contract.error_codes import StoreRefusal
from api_client.contract.issues import HelixError, StoreUnavailable
from api_client.contract.turn import Turn, TurnState
from api_client.figures import RuleRow, Slice
from api_client.figures.metrics import SPANS
from api_client.nouns import SHEETS
from api_client.overview import overview
from api_client.web.errors import ApiError, from_contract
from api_client.web.identity import needs_key, require_local
from api_client.web.pages.visitor import (
    COOKIE,
    Form,
    LedElsewhere,
    OverseerOf,
    Visitor,
    VisitorOf,
    form_of,
    own_path,
    set_cookie,
    sign_in,
)
from api_client.web.relay import Relay, RelayOf, relay_of

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
    "parked": "again",
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
    for filter_ in (*shown, capital):
        environment.filters[filter_.__name__] = filter_
    environment.globals.update(asset_version=VERSION, version=api_client.__version__, sheets=SHEETS)
    return environment


_ENVIRONMENT = _environment()


class _PageRoute(APIRoute):
    """A route whose errors are pages too, and whose every answer has the pages' headers."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """The handler, with errors answered."""
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


# Figures over time as rectangles, in per cent of the picture: the templates only write them down. Pure.

#: How turns end, from below to above: the tone of the layer (``render.tone``) -> its outcomes.
LAYERS = {
    "good": ("passed",),
    "again": ("passed_after_retry",),
    "repaired": ("passed_by_fallback", "passed_by_human"),
    "bad": ("failed", "incomplete", "refused", "error", "expired", "dead"),
    "quiet": ("cancelled",),
}
_TONE_WORDS = {
    "good": "passed at once",
    "again": "passed after retry",
    "repaired": "repaired by code, or accepted by a person",
    "bad": "not passed",
    "quiet": "cancelled",
}
#: Share of a slot's width that is its bar.
_FILLED = 0.78


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, in per cent. ``layer`` names its colour, ``title`` is what it tells when asked."""

    x: str
    y: str
    width: str
    height: str
    layer: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """Bars over time, and the value the full height represents."""

    boxes: tuple[Box, ...]
    top: float


def outcome_columns(pieces: Sequence[Slice]) -> Columns:
    """Finished turns over time, stacked by how they ended."""
    counts = [
        {tone: sum(piece.stats.outcomes.get(o, 0) for o in outcomes) for tone, outcomes in LAYERS.items()}
        for piece in pieces
    ]
    top = _round_up(max((sum(count.values()) for count in counts), default=0))
    boxes = []
    for place, count in enumerate(counts):
        below = 0
        for tone, number in count.items():
            if number:
                boxes.append(_box(place, len(pieces), below / top, number / top, tone, f"{number} {_TONE_WORDS[tone]}"))
            below += number
    return Columns(tuple(boxes), top)


def rate_columns(pieces: Sequence[Slice], validator: str) -> Columns:
    """Rejected ÷ judged answers over time, for one rule. The full height is 100 %."""
    boxes = []
    for place, piece in enumerate(pieces):
        row = next((r for r in piece.stats.rows if isinstance(r, RuleRow) and r.name == validator), None)
        if row and row.judged:
            height = max(min(1.0, row.rejected / row.judged), 0.04)
            tone = "rate" if row.rejected else "none"
            boxes.append(_box(place, len(pieces), 0, height, tone, f"{row.rejected} of {row.judged}"))
    return Columns(tuple(boxes), 1.0)


def _box(place: int, places: int, bottom: float, height: float, layer: str, title: str) -> Box:
    width = 100 / places
    return Box(
        x=f"{(place + (1 - _FILLED) / 2) * width:.3f}%",
        y=f"{100 * (1 - bottom - height):.2f}%",
        width=f"{width * _FILLED:.3f}%",
        height=f"{100 * height:.2f}%",
        layer=layer,
        title=title,
    )


def _round_up(value: float) -> float:
    """The next of 4, 8, 10, 20, 40, 80, 100 ...: tops whose quarters read well."""
    if value <= 4:
        return 4
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 8, 10) if step * power >= value)


# The first page, the overview, signing in and out, and the files that all pages load.

#: Rows of the overview's lists.
_ROWS = 8
_REFRESH_SECONDS = 5

router = page_router()


@router.get("/")
async def first_page(visitor: VisitorOf) -> Response:
    """Operators see the overview, others their turns."""
    return see_other("/turns" if visitor.owner else "/overview")


@router.get("/overview")
async def show_overview(request: Request, relay: RelayOf, visitor: OverseerOf, span: str = "24h") -> Response:
    """An installation at a glance, for operators; everybody else is redirected to their turns."""
    if span not in SPANS:
        raise ApiError(404, f"there is no such span; choose one of {', '.join(SPANS)}", code="not_found")
    seen = await overview(relay.client, span, rows=_ROWS)
    pieces = seen.figures.pieces
    return visited(
        "overview.html",
        request,
        visitor,
        seen=seen,
        figures=seen.figures,
        total=seen.figures.whole.total,
        spans=SPANS,
        columns=outcome_columns(pieces),
        rules=[(row, rate_columns(pieces, row.name)) for row in seen.figures.rules],
        refresh=_REFRESH_SECONDS,
    )


@router.get("/favicon.ico")
async def icon() -> Response:
    """For browsers that ask for it without having read a page."""
    return see_other(f"/assets/{VERSION}/icon.svg")


@router.get("/assets/{version}/{name}")
async def asset(version: str, name: str) -> Response:
    """A file the pages load. Its address changes with its content."""
    if name not in ASSETS:
        raise ApiError(404, "there is nothing at this address", code="not_found")
    media_type, content = ASSETS[name]
    return Response(content, media_type=media_type, headers={"cache-control": "public, max-age=31536000, immutable"})


log = structlog.get_logger(__name__)


@router.get("/sign-in")
async def sign_in_page(request: Request, relay: RelayOf, next: str = "") -> Response:  # noqa: A002 the field's name
    """The form for the key, or where no keys are configured for the operator's token."""
    return _sign_in_form(request, relay, own_path(next))


@router.post("/sign-in")
async def take_key(request: Request, relay: RelayOf) -> Response:
    """Exchange a key for a cookie. Who was wrong too often has to wait, whatever the key."""
    if not needs_key(relay):
        require_local(request)
    fields = await form_of(request)
    back, address = own_path(fields.get("next", "")), request.client.host if request.client else ""
    relay.guesses.require(address)
    token = await sign_in(relay, fields.get("key", "").strip())
    if token is None:
        relay.guesses.wrong(address)
        log.warning("page.sign_in_refused")
        return _sign_in_form(request, relay, back, wrong=True)
    log.info("page.signed_in")
    response = see_other(back)
    set_cookie(request, response, token)
    return response


def _sign_in_form(request: Request, relay: Relay, back: str, *, wrong: bool = False) -> Response:
    status, keyless = 403 if wrong else 200, not needs_key(relay)
    return page("sign_in.html", status, back=back, wrong=wrong, keyless=keyless, path=request.url.path)


@router.post("/sign-out")
async def sign_out(relay: RelayOf, visitor: VisitorOf, _form: Form) -> Response:
    """Forget the browser."""
    await relay.client.sign_ins.forget(visitor.token)
    response = see_other("/sign-in")
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response
