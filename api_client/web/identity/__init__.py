"""The caller: the API key decides, in one place. The owner of a turn is a hash, never a key or a user's name.

Keys come from HELIX_API_KEYS and from the file of ``turns keys``. Without either the relay serves this machine only. A
page in a browser can reach a loopback address under a foreign name, and a proxy brings in strangers; both show in the
headers and are refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import Request

from api_client.api_keys import hash_of, token_hash
from api_client.contract.settings import Settings
from api_client.contract.settings.load import is_loopback
from api_client.contract.turn import LOCAL_OWNER, SlotShare, owner_of_key, owner_of_name, owner_of_user
from api_client.index import find_turn
from api_client.relay_state import OwnerLimits
from api_client.web.bodies.body import OWNER
from api_client.web.errors import ApiError, shown_text
from api_client.web.relay import Relay, relay_of

# The origin of a request: another site's page, or a proxy. SignIns and proxies say so in headers.

_OWN_SITES = frozenset({"same-origin", "none"})
#: Headers that a proxy adds, or a service that signs people in before it: whole names, and beginnings of names.
_PROXY_HEADERS = frozenset(
    {"forwarded", "via", "true-client-ip", "x-client-ip", "x-real-ip", "x-cluster-client-ip", "cdn-loop", "x-user-ip"}
    | {
        "x-original-forwarded-for",
        "x-proxyuser-ip",
        "x-amzn-trace-id",
        "do-connecting-ip",
        "x-remote-user",
        "remote-user",
    }
)
_PROXY_PREFIXES = (
    *(
        "x-forwarded-",
        "cf-",
        "fastly-",
        "fly-",
        "x-envoy-",
        "x-appengine-",
        "x-goog-iap-",
        "x-goog-authenticated-user-",
    ),
    *("tailscale-", "ngrok-", "x-azure-", "x-ms-client-principal", "x-ms-token-", "x-amzn-oidc-", "cloudfront-"),
    *("x-vercel-", "x-nf-", "x-pomerium-", "x-auth-request-", "x-authentik-", "x-akamai-", "akamai-", "teleport-"),
)


def require_own_site(request: Request) -> None:
    """Refuse what a page of another site sent. Programs send none of these headers.

    Raises ``ApiError``: 403 ``cross_site``.
    """
    site = request.headers.get("sec-fetch-site")
    origins = request.headers.getlist("origin")
    if site is not None and site not in _OWN_SITES:
        raise _cross_site(f"Sec-Fetch-Site is {shown_text(site, 20)}")
    for origin in origins if site != "same-origin" else ():
        if not _is_ours(origin, request):
            raise _cross_site(f"Origin is {shown_text(origins[0])}")


def _is_ours(origin: str, request: Request) -> bool:
    """Return whether an ``Origin`` is the address that the request went to, or the pages' public one."""
    public = relay_of(request).settings.public_url
    try:
        host = urlsplit(origin).netloc.lower()
        return bool(host) and host in {request.headers.get("host", "").lower(), urlsplit(public).netloc.lower()}
    except ValueError:
        return False


def _cross_site(why: str) -> ApiError:
    return ApiError(403, f"another site's page sent this ({why}): send it from here", code="cross_site")


def require_local(request: Request) -> None:
    """Let this machine in, and nobody who shows to come from elsewhere.

    Raises ``ApiError``: 403 ``loopback_only``, with what showed it.
    """
    if why := _why_foreign(request.headers, request.client.host if request.client else ""):
        message = (
            f"no API key is configured, so only this machine is served, and {why}: make a key with "
            "`turns keys create NAME` and send it as 'Authorization: Bearer KEY'"
        )
        raise ApiError(403, message, code="loopback_only")


def _why_foreign(headers: Headers, address: str) -> str:
    for name in headers:
        if name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIXES):
            return f"this came through a proxy (header {shown_text(name, 40)})"
    if not is_loopback(address):
        return "this came from another machine"
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        host = ""
    return "" if is_loopback(host) else "this asked for it by another name (header Host)"


# The user that Open WebUI vouches for: a JSON Web Token, signed with a shared secret (HS256, RFC 7515 and 7519).

#: How far two clocks may differ, in seconds.
LEEWAY = 30.0
#: No time is later.
_LATEST = 1e12


def signed_user(token: str, secret: str, now: float) -> str:
    """The token's subject, or '' when it is not valid now. Only HS256 is accepted, whatever the token says."""
    head, _, rest = token.partition(".")
    body, _, signature = rest.partition(".")
    try:
        expected = hmac.new(secret.encode(), f"{head}.{body}".encode(), hashlib.sha256).digest()
        header = _object(head) if hmac.compare_digest(_decoded(signature), expected) else {}
        if header.get("alg") != "HS256" or "crit" in header:  # a critical extension that we do not know
            return ""
        claims = _object(body)
    except ValueError:
        return ""
    user = claims.get("sub")
    fresh = now < _moment(claims.get("exp"), 0.0) + LEEWAY and _moment(claims.get("nbf", 0), math.inf) - LEEWAY <= now
    return user if fresh and isinstance(user, str) else ""


def _moment(value: object, other: float) -> float:
    """A claim's time in seconds since the epoch; ``other`` for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LATEST else other


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part.encode("ascii") + b"=" * (-len(part) % 4))


def _object(part: str) -> dict[str, Any]:
    found = json.loads(_decoded(part))
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


MAX_USER_CHARS = 255
SIGNED_USER = "x-openwebui-user-jwt"
USER_HEADERS = ("x-owui-user-id", "x-openwebui-user-id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller, with its rights.

    Attributes:
        owner: whose turns these are.
        operator: may also see and cancel everybody's.
        metrics: may read figures over all owners; operators may too.
        models: the models they may use; empty: all.
        limits: what they may submit; none where no key is configured.
        forwards_users: speaks for several users; ``owner`` is still the key's.
        share: of the slots, beside other owners.
        holder: what folders of phases are granted to (``HELIX_PHASE_DIRECTORIES``): the key's owner by name.
    """

    owner: str
    operator: bool = False
    metrics: bool = False
    models: tuple[str, ...] = ()
    limits: OwnerLimits = field(default_factory=OwnerLimits)
    forwards_users: bool = False
    holder: str = ""
    share: SlotShare = field(default_factory=SlotShare)

    @property
    def keyless(self) -> bool:
        """Asks where no keys are configured."""
        return self.owner == LOCAL_OWNER

    def settings(self, settings: Settings) -> Settings:
        """The settings as this caller sees them: with its own models only."""
        if not self.models:
            return settings
        return replace(settings, models={name: how for name, how in settings.models.items() if name in self.models})


def require_operator(caller: Caller, does: str) -> None:
    """Let operators through; ``does`` says what only they do, such as ``orders workers``.

    Raises ``ApiError``: 403 ``operators_only``.
    """
    if not caller.operator:
        message = f"only an operator {does}"
        raise needs_token() if caller.keyless else ApiError(403, message, code="operators_only")


def needs_token() -> ApiError:
    """Return what somebody hears who asks without a key for what only an operator may do."""
    message = (
        "without keys this needs the operator's token: it is in HELIX_ROOT/.helix/operator-token; send it as "
        "'Authorization: Bearer TOKEN', or sign in with it at /sign-in"
    )
    return ApiError(403, message, code="operators_only")


def needs_key(relay: Relay) -> bool:
    """True when keys are configured, also when none of them is valid any more."""
    return bool(relay.settings.api_keys or relay.settings.forwarding_keys) or relay.keys.there


async def holder_of(request: Request) -> Caller:
    """The holder of the key, not the user that it speaks for.

    Raises ``ApiError``: 401 ``invalid_api_key``; 429 ``too_many_guesses``; 403 ``loopback_only`` when no key is
    configured and the caller is not local.
    """
    relay = relay_of(request)
    headers = request.headers.getlist("authorization")
    if not needs_key(relay):
        require_local(request)
        return _known(headers, request, relay) or Caller(owner=LOCAL_OWNER) if headers else Caller(owner=LOCAL_OWNER)
    holder = _known(headers, request, relay)
    if holder is None:
        message = "missing or unknown API key: send it as 'Authorization: Bearer KEY'"
        raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
    return holder


async def caller_of(request: Request, holder: Annotated[Caller, Depends(holder_of)]) -> Caller:
    """The caller: the key's owner, or the user the key speaks for.

    Raises ``ApiError``: as ``holder_of``; 403 ``user_required`` from a key for several users that names none.
    """
    return caller_for(holder, request) if holder.forwards_users else holder


def caller_for(holder: Caller, request: Request) -> Caller:
    """The user that the holder of a key speaks for in this request. Raises ``ApiError``: 403 ``user_required``.

    Signed by Open WebUI where we know its secret, else in its plain words.
    """
    headers, secret = request.headers, relay_of(request).settings.user_jwt_secret
    if secret:
        user, wanted = signed_user(headers.get(SIGNED_USER, ""), secret, time.time()), "a valid X-OpenWebUI-User-Jwt"
    else:
        # With two of them, one may be the user's own.
        users = next(filter(None, (headers.getlist(name) for name in USER_HEADERS)), [])
        user, wanted = users[0] if len(users) == 1 else "", "X-Owui-User-Id or X-OpenWebUI-User-Id"
    if not (user and len(user) <= MAX_USER_CHARS):
        message = f"this key speaks for several users, so each request must name its user: {wanted} is missing"
        raise ApiError(403, message, param="X-OpenWebUI-User-Id", code="user_required")
    return replace(holder, owner=owner_of_user(holder.owner, user))


async def reach_of(caller: Annotated[Caller, Depends(caller_of)]) -> str | None:
    """The owner whose turns the caller may see, or None: everybody's. Raises as ``caller_of``."""
    return None if caller.operator else caller.owner


async def require_metrics(request: Request, holder: Annotated[Caller, Depends(holder_of)]) -> None:
    """Let those through who may read figures over all owners' turns; this machine, where no key is configured.

    Raises ``ApiError``: 403 ``operators_only``; else as ``holder_of``.
    """
    if needs_key(relay_of(request)) and not holder.metrics:
        message = "this shows all owners' turns: make a key for it with `turns keys create NAME --right metrics`"
        raise ApiError(403, message, code="operators_only")


def _known(headers: Sequence[str], request: Request, relay: Relay) -> Caller | None:
    """The holder of the key in an ``Authorization`` header; None for anything else."""
    scheme, _, given = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    bearer, offered = scheme.lower() == "bearer", hash_of(given.strip())
    address = request.client.host if request.client else ""
    if bearer:
        relay.guesses.require(address, offered)
    holder = holder_by_hash(offered, relay)
    if bearer:
        relay.guesses.tried(address, offered, wrong=holder is None)
    return holder if bearer else None


def holder_by_hash(offered: str, relay: Relay) -> Caller | None:
    """The holder of the key with this hash (``keys.hash_of``), None when no valid key has it.

    Without keys the operator's token is the only one.

    Every key is compared whatever the result, so that the answer's time tells nothing.
    """
    limits = OwnerLimits(
        per_minute=relay.settings.turns_per_minute,
        unfinished=relay.settings.owner_unfinished,
        stored_bytes=relay.settings.owner_bytes,
        requests=relay.settings.owner_requests,
    )
    plain, forwarding = relay.settings.api_keys, relay.settings.forwarding_keys
    known = [
        (hash_of(key), Caller(owner=owner_of_key(key), limits=limits, forwards_users=forwards, holder=holder))
        for keys, forwards, holder in ((plain, False, "HELIX_API_KEYS"), (forwarding, True, "HELIX_FORWARDING_KEYS"))
        for key in keys
    ]
    known += [
        (
            key.hash,
            Caller(
                owner=owner_of_name(key.owner),
                operator=key.right == "operator",
                metrics=key.right in {"metrics", "operator"},
                models=key.models,
                limits=replace(limits, per_minute=key.per_minute or limits.per_minute),
                forwards_users=key.forwards_users,
                holder=key.owner,
                share=key.share,
            ),
        )
        for key in relay.keys.in_force()
    ]
    if not needs_key(relay):
        known.append((token_hash(relay.settings.token_path), Caller(owner=LOCAL_OWNER, operator=True, metrics=True)))
    matches = [caller for known_hash, caller in known if known_hash and hmac.compare_digest(known_hash, offered)]
    return matches[0] if matches else None


async def in_progress(request: Request, holder: Annotated[Caller, Depends(holder_of)]) -> AsyncIterator[None]:
    """Count a request of a program as its owner's until its answer has been sent; none of another site's page.

    Raises ``ApiError``: 429 ``too_many_requests``; 403 ``cross_site``; as ``caller_of``.
    """
    require_own_site(request)
    owner = holder.owner
    if holder.forwards_users:
        with suppress(ApiError):  # some routes are about no user
            owner = caller_for(holder, request).owner
    if not holder.keyless:
        request.scope[OWNER] = owner
    with relay_of(request).busy.request(owner, holder.limits.requests):
        yield


async def _named(turn_id: str, request: Request, reach: Annotated[str | None, Depends(reach_of)]) -> str:
    """The turn that a path names: by its id, the beginning of it, or ``last``. Raises as ``find_turn``."""
    return await find_turn(relay_of(request).client.lists, turn_id, owner=reach)


#: For all routes of programs. The key's holder, for routes that are about no user; the caller; whose turns it may see.
Holder = Annotated[Caller, Depends(holder_of)]
Asker = Annotated[Caller, Depends(caller_of)]
Reach = Annotated[str | None, Depends(reach_of)]
Named = Annotated[str, Depends(_named)]
InProgress = Depends(in_progress)
MayReadMetrics = Depends(require_metrics)
