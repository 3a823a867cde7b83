"""Policies and session templates in the store, by hash: put there by a submit, read by workers, removed when old."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path

from api_client.contract.errors import SettingsError
from api_client.contract.policy import AppliedPolicy, PolicyFile
from api_client.contract.session_paths import NONE
from api_client.contract.turn import Turn
from api_client.policies import read_named
from api_client.store import Store
from api_client.store.commands import plain_script

_KEEP = plain_script(Path(__file__).with_name("keep.lua"))
#: Removes a policy, unless a submit came meanwhile.
_REMOVE = """
local used = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not used or tonumber(used) > tonumber(ARGV[2]) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
return redis.call('ZREM', KEYS[2], ARGV[1])
"""
#: Sorted set: hashes of policies by their last submit, in milliseconds.
_USED = "policies:used"
#: Of unfinished turns, this many records are asked at once.
_BATCH = 500
#: A policy stays this much longer than a finished turn, so that clocks may differ.
_MARGIN_SECONDS = 86_400.0
#: This many policies stay in a process; one more, and the one that was not needed for longest goes.
_MOST = 64


async def keep(store: Store, policy_hash: str, text: str | None) -> bool:
    """Make sure that a policy is in the store before a turn of it is; False: it is not, and its ``text`` is not known.

    A process that dies in between leaves a policy without a turn, which ``clear_policies`` removes. Raises as
    ``Store.ask``.
    """
    keys = store.keys
    there = await store.run(_KEEP, [keys.policies, keys.named(_USED)], [policy_hash, int(time.time() * 1000)])
    if not there and text is not None:
        await store.ask(store.redis.hset(keys.policies, policy_hash, text))
    return bool(there) or text is not None


async def clear_policies(store: Store, *, dry_run: bool) -> int:
    """Remove the policies that nobody needs; returns how many.

    They go when no turn was submitted with them for as long as finished turns are kept, and no unfinished one has them.
    Raises as ``Store.ask``.
    """
    keys = store.keys
    oldest = int((time.time() - store.settings.retention_seconds - _MARGIN_SECONDS) * 1000)
    found = await store.ask(store.redis.zrangebyscore(keys.named(_USED), "-inf", oldest))
    if not (old := {raw.decode() for raw in found}):
        return 0
    old -= await _in_use(store)
    gone = 0
    for policy_hash in sorted(old):
        command = (_REMOVE, 2, keys.policies, keys.named(_USED), policy_hash, str(oldest))
        gone += 1 if dry_run else await store.ask(store.redis.eval(*command))
    return gone


async def _in_use(store: Store) -> set[str]:
    """Return what turns that have not ended have, and dead letters, which stay until somebody drops them."""
    used, keys, names = set[str](), store.keys, list[bytes]()
    for listed in (keys.due, keys.dead, keys.suspended):
        names += await store.ask(store.redis.zrange(listed, 0, -1))
    for start in range(0, len(names), _BATCH):
        looks = store.redis.pipeline(transaction=False)
        for name in names[start : start + _BATCH]:
            looks.hmget(keys.turn(name.decode()), "policy", "request")
            looks.hget(keys.texts(name.decode()), "request")  # a long one lies apart
        found = await store.ask(looks.execute())
        for (policy, short), long in zip(found[::2], found[1::2], strict=True):
            used |= {policy.decode() if policy else "", _template_of(short or long or b"{}")} - {""}
    return used


def _template_of(request: bytes) -> str:
    """The template that a stored request names; empty without one, or for a damaged request."""
    try:
        return str(json.loads(request).get("template", ""))
    except (ValueError, AttributeError):
        return ""


class StoredPolicies:
    """Policies and templates as they were at the submit. Belongs to one loop; threads may ask ``known``."""

    def __init__(self, text_of: Callable[[str], Awaitable[str]]) -> None:
        """``text_of`` gives what the store has under a hash, empty for nothing; waits while the store is away."""
        self._text_of = text_of
        self._read: OrderedDict[str, PolicyFile | str] = OrderedDict()
        self._templates: OrderedDict[str, str] = OrderedDict()

    async def load(self, turn: Turn) -> None:
        """Make the turn's policy known, if it has one. Waits while the store is away."""
        applied = AppliedPolicy.of(turn.request)
        if not applied or (policy := applied.hash) in self._read:
            return
        text = await self._text_of(policy)
        if not text:
            return
        try:
            self._read[policy] = read_named(text, "")
        except SettingsError as error:  # what is installed here is not what the relay has
            self._read[policy] = error.problems[0].removeprefix(":")
        while len(self._read) > _MOST:
            self._read.popitem(last=False)

    async def load_template(self, turn: Turn) -> None:
        """Make the turn's session template known, if it has one. Waits while the store is away."""
        template = turn.request.template
        if template in {"", NONE} or template in self._templates:
            return
        if text := await self._text_of(template):
            self._templates[template] = text
        while len(self._templates) > _MOST:
            self._templates.popitem(last=False)

    def template(self, turn: Turn) -> str | None:
        """The text of the turn's session template that was loaded, empty for none; None: the store has it no more."""
        return "" if turn.request.template == NONE else self._templates.get(turn.request.template)

    def problem(self, turn: Turn) -> str:
        """Return why a policy that was loaded for a turn cannot be read here; empty where it can, or was not loaded."""
        applied = AppliedPolicy.of(turn.request)
        found = self._read.get(applied.hash) if applied else None
        return found if isinstance(found, str) else ""

    def rules(self, turn: Turn) -> set[str]:
        """Return the rules that judge a turn whose policy was loaded; none where it cannot be read."""
        applied = AppliedPolicy.of(turn.request)
        names = {*turn.request.validators, *(applied.shadow if applied else ())}
        try:
            file = self.known(turn)
        except ValueError:
            return set()
        called = {entry.name: entry.rule for entry in file.rules} if file else {}
        return {called.get(name, name) for name in names}

    def plain_rules(self, turn: Turn) -> tuple[str, ...]:
        """Return the validators of a turn that no policy file defines."""
        return () if AppliedPolicy.of(turn.request) else turn.request.validators

    def known(self, turn: Turn) -> PolicyFile | None:
        """The policy of a turn that was loaded; None for a turn without one.

        Raises ``ValueError``: the store has none of this hash, or this worker cannot read it.
        """
        applied = AppliedPolicy.of(turn.request)
        if applied is None:
            return None
        policy = applied.hash
        match self._read.get(policy):
            case PolicyFile() as file:
                return file
            case str() as problem:
                raise ValueError(f"policy {policy} cannot be used on this worker: {problem}")
        raise ValueError(f"policy {policy} is not in the store")
