"""The caller of a request: the API key decides, in one place."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from api_client.api_keys import hash_of, token_hash
from api_client.contract.owners import LOCAL_OWNER, owner_of_key, owner_of_name, owner_of_user
from api_client.contract.settings import Settings
from api_client.contract.turn import SlotShare
from api_client.index.finding import find_turn
from api_client.relay_state.allowances import OwnerLimits
from api_client.web.bodies.body import OWNER
from api_client.web.errors import ApiError
from api_client.web.identity.origin import require_local, require_own_site
from api_client.web.identity.signed_user import signed_user
from api_client.web.relay.relay import Relay, relay_of

MAX_USER_CHARS = 255
SIGNED_USER = "x-openwebui-user-jwt"
USER_HEADERS = ("x-owui-user-id", "x-openwebui-user-id")
#: The limits of an owner, 0: none. Turns a minute of a key that names no number; turns that have not ended; bytes of
#: requests within HELIX_RETENTION_SECONDS, half of it at once; requests in progress at a relay, streams included.
TURNS_PER_MINUTE = 60
UNFINISHED_TURNS = 100
STORED_BYTES = 256 * 2**20
REQUESTS = 100


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
        holder: what folders are granted to (``HELIX_PHASE_DIRECTORIES``): the key's owner by name.
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
        user, wanted = signed_user(headers.get(SIGNED_USER, ""), secret), "a valid X-OpenWebUI-User-Jwt"
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
        per_minute=TURNS_PER_MINUTE, unfinished=UNFINISHED_TURNS, stored_bytes=STORED_BYTES, requests=REQUESTS
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
