"""Policies and session templates in the store, by hash: stored at submission, loaded by workers."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path

from api_client.contract.errors import SettingsError
from api_client.contract.policy import AppliedPolicy, PolicyFile
from api_client.contract.session_paths import NONE
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.policies.flows import FLOW
from api_client.policies.policy_files import parse_policy_file
from api_client.store import Store
from api_client.store.commands import load_plain_script

_RECORD_USE = load_plain_script(Path(__file__).with_name("record_use.lua"))
#: Removes a policy unless a turn was submitted with it meanwhile.
_REMOVE = """
local used = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not used or tonumber(used) > tonumber(ARGV[2]) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
return redis.call('ZREM', KEYS[2], ARGV[1])
"""
#: Redis sorted set of policy hashes by their last submission, in milliseconds.
_USED = "policies:used"
_BATCH = 500
#: Extra lifetime of a policy beyond finished turns, to allow for clock differences.
_MARGIN_SECONDS = 86_400.0
#: Policies cached per process; the oldest policy is dropped first.
_MOST = 64


async def store_policy(store: Store, policy_hash: str, text: str | None) -> bool:
    """Store a policy's text under its hash. Return False if there is neither a given nor a stored text.

    If the process dies in between, ``clear_policies`` removes the policy later. Raises ``StoreUnavailable``.
    """
    keys = store.keys
    there = await store.run_script(
        _RECORD_USE, [keys.policies, keys.key_named(_USED)], [policy_hash, int(time.time() * 1000)]
    )
    if not there and text is not None:
        await store.await_reply(store.redis.hset(keys.policies, policy_hash, text))
    return bool(there) or text is not None


async def clear_policies(store: Store, *, dry_run: bool) -> int:
    """Delete stored policies that no turn needs any more, and return their number.

    A policy is needed by unfinished turns, and by all turns submitted within the retention of finished turns.
    """
    keys = store.keys
    oldest = int((time.time() - store.settings.retention_seconds - _MARGIN_SECONDS) * 1000)
    found = await store.await_reply(store.redis.zrangebyscore(keys.key_named(_USED), "-inf", oldest))
    if not (old := {raw.decode() for raw in found}):
        return 0
    old -= await _find_used(store)
    gone = 0
    for policy_hash in sorted(old):
        command = (_REMOVE, 2, keys.policies, keys.key_named(_USED), policy_hash, str(oldest))
        gone += 1 if dry_run else await store.await_reply(store.redis.eval(*command))
    return gone


async def _find_used(store: Store) -> set[str]:
    """Return the hashes of policies and templates that unfinished turns and dead letters still need."""
    used, keys, names = set[str](), store.keys, list[bytes]()
    for listed in (keys.due, keys.dead, keys.suspended):
        names += await store.await_reply(store.redis.zrange(listed, 0, -1))
    for start in range(0, len(names), _BATCH):
        looks = store.redis.pipeline(transaction=False)
        for name in names[start : start + _BATCH]:
            looks.hmget(keys.turn(name.decode()), "policy", "request")
            looks.hget(keys.texts(name.decode()), "request")  # a long request is stored separately
        found = await store.await_reply(looks.execute())
        for (policy, short), long in zip(found[::2], found[1::2], strict=True):
            used |= {policy.decode() if policy else "", _find_template(short or long or b"{}")} - {""}
    return used


def _find_template(request: bytes) -> str:
    try:
        return str(json.loads(request).get("template", ""))
    except (ValueError, AttributeError):
        return ""


def name_template(turn: Turn, settings: Settings) -> str:
    """Return the session template that the settings name for a turn's current model and flow version."""
    return settings.find_template(
        turn.stage_model or turn.request.model, "" if turn.stage_model else turn.request.labels.get(FLOW, "")
    )


class StoredPolicies:
    """Loads and caches the policies and session templates that turns were submitted with."""

    def __init__(self, text_of: Callable[[str], Awaitable[str]]) -> None:
        """Create an empty cache. ``text_of`` returns the stored text for a hash, or an empty string."""
        self._text_of = text_of
        self._read: OrderedDict[str, PolicyFile | str] = OrderedDict()
        self._templates: OrderedDict[str, str] = OrderedDict()

    async def load_policy(self, turn: Turn) -> None:
        applied = AppliedPolicy.from_request(turn.request)
        if not applied or (policy := applied.hash) in self._read:
            return
        text = await self._text_of(policy)
        if not text:
            return
        try:
            self._read[policy] = parse_policy_file(text, "")
        except SettingsError as error:  # this worker has other packages installed than the relay
            self._read[policy] = error.problems[0].removeprefix(":")
        while len(self._read) > _MOST:
            self._read.popitem(last=False)

    async def load_template(self, turn: Turn) -> None:
        """Load a turn's session template into the cache, if the turn has one."""
        template = turn.request.template
        if template in {"", NONE} or template in self._templates:
            return
        if text := await self._text_of(template):
            self._templates[template] = text
        while len(self._templates) > _MOST:
            self._templates.popitem(last=False)

    def find_template(self, turn: Turn) -> str | None:
        """Return a turn's cached template: an empty string for no template, None if the store lost it."""
        return "" if turn.request.template == NONE else self._templates.get(turn.request.template)

    def find_problem(self, turn: Turn) -> str:
        """Return why this worker cannot read the policy of a turn, or an empty string if it can."""
        applied = AppliedPolicy.from_request(turn.request)
        found = self._read.get(applied.hash) if applied else None
        return found if isinstance(found, str) else ""

    def find_rules(self, turn: Turn) -> set[str]:
        """Return the names of the rules that check a turn, or an empty set if its policy cannot be read."""
        applied = AppliedPolicy.from_request(turn.request)
        names = {*turn.request.validators, *(applied.shadow if applied else ())}
        try:
            file = self.find_policy(turn)
        except ValueError:
            return set()
        called = {entry.name: entry.rule for entry in file.rules} if file else {}
        return {called.get(name, name) for name in names}

    def find_plain_rules(self, turn: Turn) -> tuple[str, ...]:
        """Return the validators of a turn without a policy file, or an empty tuple for other turns."""
        return () if AppliedPolicy.from_request(turn.request) else turn.request.validators

    def find_policy(self, turn: Turn) -> PolicyFile | None:
        """Return a turn's cached policy, or None if the turn has no policy.

        Raises ``ValueError`` if the store lacks the policy, or this worker cannot read it.
        """
        applied = AppliedPolicy.from_request(turn.request)
        if applied is None:
            return None
        policy = applied.hash
        match self._read.get(policy):
            case PolicyFile() as file:
                return file
            case str() as problem:
                raise ValueError(f"policy {policy} cannot be used on this worker: {problem}")
        raise ValueError(f"policy {policy} is not in the store")
