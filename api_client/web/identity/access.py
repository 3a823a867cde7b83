"""Identifies the caller of a request by its API key."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from api_client.api_keys import hash_key, token_hash
from api_client.contract.owners import LOCAL_OWNER, owner_of_key, owner_of_name, owner_of_user
from api_client.contract.settings import Settings
from api_client.contract.turn import SlotShare
from api_client.index.turn_lookup import find_turn
from api_client.oidc.person import SignedInPerson
from api_client.relay_state.submission_limits import OwnerLimits
from api_client.web.bodies.body import OWNER_SCOPE_KEY
from api_client.web.errors import ApiError
from api_client.web.identity.origin import require_local, require_own_site
from api_client.web.identity.signed_user import verify_user_token
from api_client.web.relay.relay import Relay, get_relay

MAX_USER_CHARS = 255
SIGNED_USER_HEADER = "x-openwebui-user-jwt"
USER_HEADERS = ("x-owui-user-id", "x-openwebui-user-id")
#: Limits of an owner, 0 for none: turns a minute of a key without its own number; unfinished turns; stored bytes;
#: requests in progress at a relay.
TURNS_PER_MINUTE = 60
UNFINISHED_TURNS = 100
STORED_BYTES = 256 * 2**20
REQUESTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request, identified by an API key, with its rights and limits.

    ``models`` is empty for all models. With ``forwards_users`` the key acts for several users, and ``owner`` is still
    the key's owner. Folders are granted to ``key_owner_name`` (HELIX_PHASE_DIRECTORIES). ``person`` is the
    provider's id of a person who signed in without a key.
    """

    owner: str
    is_operator: bool = False
    may_read_metrics: bool = False
    models: tuple[str, ...] = ()
    limits: OwnerLimits = field(default_factory=OwnerLimits)
    forwards_users: bool = False
    key_owner_name: str = ""
    person: str = ""
    slot_share: SlotShare = field(default_factory=SlotShare)

    @property
    def keyless(self) -> bool:
        """Return True if the installation has no API keys, so that callers cannot be distinguished."""
        return self.owner == LOCAL_OWNER

    def visible_settings(self, settings: Settings) -> Settings:
        """Return the settings with only the models that this caller may use."""
        if not self.models:
            return settings
        return replace(settings, models={name: how for name, how in settings.models.items() if name in self.models})


def require_operator(caller: Caller, does: str) -> None:
    """Raise ``ApiError`` (403) unless the caller is an operator. ``does`` completes "only an operator ..."."""
    if not caller.is_operator:
        message = f"only an operator {does}"
        raise token_required_error() if caller.keyless else ApiError(403, message, code="operators_only")


def token_required_error() -> ApiError:
    """Build the error that asks a caller without an API key for the operator's token."""
    message = (
        "without keys this needs the operator's token: it is in HELIX_ROOT/.helix/operator-token; send it as "
        "'Authorization: Bearer TOKEN', or sign in with it at /sign-in"
    )
    return ApiError(403, message, code="operators_only")


def requires_key(relay: Relay) -> bool:
    """Return True if the relay requires API keys or a sign-in, even if all keys have been revoked."""
    settings = relay.settings
    return bool(settings.api_keys or settings.forwarding_keys or settings.oidc_issuer) or relay.keyring.requires_key


async def identify_holder(request: Request) -> Caller:
    """Return the caller to whom a request's API key belongs. Users for whom the key acts are identified later.

    Raises ``ApiError``: 401 ``invalid_api_key``, 429 ``too_many_guesses``, or 403 ``loopback_only`` without keys.
    """
    relay = get_relay(request)
    headers = request.headers.getlist("authorization")
    if not requires_key(relay):
        require_local(request)
        return (
            _read_authorization(headers, request, relay) or Caller(owner=LOCAL_OWNER)
            if headers
            else Caller(owner=LOCAL_OWNER)
        )
    holder = _read_authorization(headers, request, relay)
    if holder is None:
        message = "missing or unknown API key: send it as 'Authorization: Bearer KEY'"
        raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
    return holder


async def identify_caller(request: Request, holder: Annotated[Caller, Depends(identify_holder)]) -> Caller:
    """Return the caller of a request: the key's owner, or the user for whom the key acts.

    Raises ``ApiError`` as ``identify_holder``, or 403 ``user_required`` if a key for several users names no user.
    """
    return identify_user(holder, request) if holder.forwards_users else holder


def identify_user(holder: Caller, request: Request) -> Caller:
    """Return the caller for the user named in a request, for a key that acts for several users.

    If Open WebUI's secret is configured, the user must be signed; otherwise a header names the user.

    Raises ``ApiError``: 403 ``user_required``.
    """
    headers, secret = request.headers, get_relay(request).settings.user_jwt_secret
    if secret:
        user, wanted = verify_user_token(headers.get(SIGNED_USER_HEADER, ""), secret), "a valid X-OpenWebUI-User-Jwt"
    else:
        users = next(filter(None, (headers.getlist(name) for name in USER_HEADERS)), [])
        user, wanted = users[0] if len(users) == 1 else "", "X-Owui-User-Id or X-OpenWebUI-User-Id"
    if not (user and len(user) <= MAX_USER_CHARS):
        message = f"this key speaks for several users, so each request must name its user: {wanted} is missing"
        raise ApiError(403, message, param="X-OpenWebUI-User-Id", code="user_required")
    return replace(holder, owner=owner_of_user(holder.owner, user))


async def visible_owner(caller: Annotated[Caller, Depends(identify_caller)]) -> str | None:
    """Return the owner whose turns the caller may see, or None for an operator, who may see all turns.

    Raises the errors of ``identify_caller``.
    """
    return None if caller.is_operator else caller.owner


async def require_metrics(request: Request, holder: Annotated[Caller, Depends(identify_holder)]) -> None:
    """Raise ``ApiError`` unless the caller may read the statistics of all owners.

    The error is 403 ``operators_only``, or an error of ``identify_holder``.
    """
    if requires_key(get_relay(request)) and not holder.may_read_metrics:
        message = "this shows all owners' turns: make a key for it with `turns keys create NAME --right metrics`"
        raise ApiError(403, message, code="operators_only")


def _read_authorization(headers: Sequence[str], request: Request, relay: Relay) -> Caller | None:
    scheme, _, given = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    bearer, offered = scheme.lower() == "bearer", hash_key(given.strip())
    address = request.client.host if request.client else ""
    if bearer:
        relay.key_guesses.require_attempt(address, offered)
    holder = find_holder(offered, relay)
    if bearer:
        relay.key_guesses.note_attempt(address, offered, wrong=holder is None)
    return holder if bearer else None


def find_holder(offered: str, relay: Relay) -> Caller | None:
    """Return the caller with this API key hash, or None if no valid key matches.

    How long it takes to find a key by its hash tells nothing about the key. Without keys, only the operator's token is
    valid.
    """
    limits, settings = _default_limits(), relay.settings
    if found := _index_keys(settings.api_keys, settings.forwarding_keys).get(offered):
        owner, forwards, holder = found
        return Caller(owner=owner, limits=limits, forwards_users=forwards, key_owner_name=holder)
    if key := relay.keyring.find_key(offered):
        return Caller(
            owner=owner_of_name(key.owner),
            is_operator=key.right == "operator",
            may_read_metrics=key.right in {"metrics", "operator"},
            models=key.models,
            limits=replace(limits, per_minute=key.per_minute or limits.per_minute),
            forwards_users=key.forwards_users,
            key_owner_name=key.owner,
            slot_share=key.share,
        )
    token = "" if requires_key(relay) else token_hash(settings.token_path)
    if token and hmac.compare_digest(token, offered):
        return Caller(owner=LOCAL_OWNER, is_operator=True, may_read_metrics=True)
    return None


@lru_cache(maxsize=2)
def _index_keys(plain: tuple[str, ...], forwarding: tuple[str, ...]) -> dict[str, tuple[str, bool, str]]:
    """Return the owner of each key of the settings, whether the key forwards users, and its setting, by hash."""
    last_first = ((forwarding, True, "HELIX_FORWARDING_KEYS"), (plain, False, "HELIX_API_KEYS"))
    return {
        hash_key(key): (owner_of_key(key), forwards, setting) for keys, forwards, setting in last_first for key in keys
    }


def _default_limits() -> OwnerLimits:
    return OwnerLimits(
        per_minute=TURNS_PER_MINUTE, unfinished=UNFINISHED_TURNS, stored_bytes=STORED_BYTES, requests=REQUESTS
    )


def find_signed_in(identity: str, relay: Relay) -> Caller | None:
    """Return the caller who is signed in as ``identity``: an encoded ``SignedInPerson``, or the hash of an API key.

    Returns None if the person or key has no right any longer.
    """
    person = SignedInPerson.from_text(identity)
    if person is None:
        return find_holder(identity, relay)
    right, owner = person.find_right(relay.settings), owner_of_name(person.owner)
    operator, limits = right == "operator", _default_limits()
    caller = Caller(owner=owner, is_operator=operator, may_read_metrics=operator, limits=limits, person=person.subject)
    return caller if right else None


async def count_in_progress(
    request: Request, holder: Annotated[Caller, Depends(identify_holder)]
) -> AsyncIterator[None]:
    """Count a request as in progress until its response is sent. Refuse requests from other sites' pages.

    Raises ``ApiError``: 429 ``too_many_requests``, 403 ``cross_site``; otherwise the errors of ``identify_holder``.
    """
    require_own_site(request)
    owner = holder.owner
    if holder.forwards_users:
        with suppress(ApiError):  # some routes concern no user
            owner = identify_user(holder, request).owner
    if not holder.keyless:
        request.scope[OWNER_SCOPE_KEY] = owner
    with get_relay(request).requests_in_progress.count_request(owner, holder.limits.requests):
        yield


async def _find_named_turn(turn_id: str, request: Request, reach: Annotated[str | None, Depends(visible_owner)]) -> str:
    return await find_turn(get_relay(request).client.lists, turn_id, owner=reach)


CurrentKeyHolder = Annotated[Caller, Depends(identify_holder)]
CurrentCaller = Annotated[Caller, Depends(identify_caller)]
VisibleOwner = Annotated[str | None, Depends(visible_owner)]
NamedTurnId = Annotated[str, Depends(_find_named_turn)]
CountInProgress = Depends(count_in_progress)
RequireMetricsRight = Depends(require_metrics)
