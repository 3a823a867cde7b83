"""Pages for the sign-in to an MCP server: it begins at a turn's question, and ends with the provider's redirect.

A cookie binds the redirect to the browser that began the sign-in. ``ToolSignIn`` checks the redirect.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import Response

from api_client.contract.errors import BadRequest, SettingsError, TurnNotSuspended
from api_client.contract.interruption import Answerer
from api_client.contract.order_log import LINK_HOLDER
from api_client.contract.owners import format_owner
from api_client.contract.tool_sign_in import TOOL_SIGN_IN
from api_client.contract.turn import Turn, TurnState
from api_client.interruptions.tool_sign_in_question import BEGIN_PAGE
from api_client.oidc.person import SignInRefused
from api_client.sign_in_decision import approve_sign_ins
from api_client.tools.sign_in_server import find_sign_in_server
from api_client.tools.tool_grants import GrantEnded, ToolGrants
from api_client.tools.tool_sign_in import PENDING_SECONDS, ToolSignIn
from api_client.web.identity.access import requires_key, token_required_error
from api_client.web.identity.origin import require_local
from api_client.web.pages.rendering import page_router, render_page
from api_client.web.pages.visitor import CheckedForm, CurrentVisitor, read_form
from api_client.web.relay.file_links import parse_integer
from api_client.web.relay.question_links import read_question_link
from api_client.web.relay.relay import CurrentRelay, Relay
from api_client.web.sentences import translate

log = structlog.get_logger(__name__)

CALLBACK_PATH = "/tools/signed-in"
COOKIE = "helix-tool-sign-in"
_COOKIE_OPTIONS: Any = {"httponly": True, "samesite": "lax"}

router = page_router()


@router.post(f"/turns/{{turn_id}}/{BEGIN_PAGE}")
async def begin_on_page(
    request: Request, turn_id: str, relay: CurrentRelay, visitor: CurrentVisitor, form: CheckedForm
) -> Response:
    """Start the sign-in to an MCP server for which a turn waits, for a visitor to the turn's page."""
    if visitor.keyless:
        raise token_required_error()
    turn = await relay.client.reader.read_turn(turn_id, owner=visitor.changeable_owner)
    own = visitor.caller.owner == turn.request.owner
    warning = "tool_sign_in_warns" if own else "tool_sign_in_warns_others"
    return await _begin(request, relay, turn, parse_integer(form.get("suspended", "")), visitor.actor_name, warning)


@router.post(f"/answer/{{turn_id}}/{BEGIN_PAGE}")
async def begin_with_link(
    request: Request, turn_id: str, relay: CurrentRelay, suspended: str = "", until: str = "", signature: str = ""
) -> Response:
    """Start the sign-in to an MCP server for which a turn waits, for whoever opened the signed link in the chat."""
    if not requires_key(relay):
        require_local(request)
    await read_form(request)
    asked = await read_question_link(relay, turn_id, suspended, until, signature)
    if not asked.is_open:
        raise TurnNotSuspended(turn_id, "the question waits for no answer any more")
    return await _begin(request, relay, asked.turn, asked.suspended_ms, LINK_HOLDER, "tool_sign_in_warns")


@router.get(f"{CALLBACK_PATH}/{{server}}")
async def finish_tool_sign_in(request: Request, server: str, relay: CurrentRelay) -> Response:
    """Handle the redirect after a sign-in to an MCP server: store the tokens, and let the waiting turn continue."""
    if not requires_key(relay):
        require_local(request)
    try:
        cookie, sign_in = request.cookies.get(COOKIE, ""), ToolSignIn(relay.client.store)
        done = await sign_in.finish_sign_in(server, cookie, request.query_params)
    except (SignInRefused, SettingsError) as error:
        return _render_refusal(relay, error)
    log.info("page.tool_signed_in", server=done.server, by=done.by)
    more: Any = {"turn_id": done.turn_id, "suspended_ms": done.suspended_ms, "by": done.by, "with_link": done.with_link}
    response = await _continue_turns(relay, done.server, done.owner, **more)
    response.delete_cookie(COOKIE, path=f"{CALLBACK_PATH}/{done.server}", **_COOKIE_OPTIONS)
    return response


async def _begin(request: Request, relay: Relay, turn: Turn, suspended_ms: int, by: str, warning: str) -> Response:
    asked, locale, settings = turn.interruption, turn.request.locale, relay.settings
    waits = turn.state is TurnState.SUSPENDED and round(turn.suspended_at * 1000) == suspended_ms
    if not waits or asked is None or asked.kind != TOOL_SIGN_IN:
        raise TurnNotSuspended(turn.turn_id, "it waits for no sign-in")
    server = find_sign_in_server(settings, str(asked.asked.get("server", "")))
    if server is None:
        raise BadRequest("nobody signs in to this server any more", param="server", code="unknown_tool_server")
    if by == LINK_HOLDER and {asked.who, server.who} != {Answerer.OWNER.value}:
        raise BadRequest("who signs in here has to be signed in to these pages", code="operators_only")
    more: Any = {"turn_id": turn.turn_id, "suspended_ms": suspended_ms, "by": by, "with_link": by == LINK_HOLDER}
    back = f"{settings.public_url.rstrip('/')}{CALLBACK_PATH}/{server.name}"
    opened, public = _find_host(request), urlsplit(settings.public_url).hostname
    try:
        with suppress(GrantEnded):
            await ToolGrants(relay.client.store).find_grant(server, turn.request.owner)
            return await _continue_turns(relay, server.name, turn.request.owner, **more)
        if public and opened != public:
            raise SignInRefused(translate("tool_sign_in_elsewhere", locale, opened=opened, public=public))
        address, cookie = await ToolSignIn(relay.client.store).begin_sign_in(server, turn.request.owner, back, **more)
    except (SignInRefused, SettingsError) as error:
        return _render_refusal(relay, error, locale)
    names = {
        "server": server.name,
        "host": server.issuer_host,
        "owner": format_owner(turn.request.owner, turn.request.key),
    }
    response = render_page(
        "tool_sign_in.html",
        locale=locale,
        title=translate("tool_sign_in_title", locale, **names),
        texts=[translate("tool_sign_in_leads", locale, **names), translate(warning, locale, **names)],
        address=address,
        label=translate("tool_sign_in_go", locale, **names),
    )
    secure = request.url.scheme == "https"
    path = f"{CALLBACK_PATH}/{server.name}"  # of this server alone, so that two sign-ins at once do not meet
    response.set_cookie(COOKIE, cookie, max_age=PENDING_SECONDS, secure=secure, path=path, **_COOKIE_OPTIONS)
    return response


async def _continue_turns(
    relay: Relay, server: str, owner: str, *, turn_id: str, suspended_ms: int, by: str, with_link: bool
) -> Response:
    turn = await approve_sign_ins(relay.client, server, owner, turn_id=turn_id, suspended_ms=suspended_ms, by=by)
    locale = turn.request.locale if turn else relay.settings.locale
    said = "tool_signed_in_on" if turn else "tool_signed_in_later"
    return render_page(
        "tool_sign_in.html",
        locale=locale,
        title=translate("tool_signed_in", locale, server=server),
        texts=[translate(said, locale)],
        address="" if with_link else f"/turns/{turn_id}",
        label=translate("tool_signed_in_back", locale),
    )


def _find_host(request: Request) -> str:
    """Return the host under which the browser has opened the page, also behind a proxy."""
    return urlsplit(request.headers.get("origin", "")).hostname or request.url.hostname or ""


def _render_refusal(relay: Relay, error: SignInRefused | SettingsError, locale: str = "") -> Response:
    locale = locale or relay.settings.locale
    log.warning("page.tool_sign_in_refused", why=str(error))
    why = str(error) if isinstance(error, SignInRefused) else translate("tool_sign_in_keys", locale)
    title = translate("tool_sign_in_refused", locale)
    return render_page("tool_sign_in.html", 403, locale=locale, title=title, texts=[why], address="", label="")
