"""Which flow version a new turn gets: by the settings' shares, without versions that were rolled back (ADR-034)."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace

from api_client.contract.errors import BadRequest
from api_client.contract.turn import TurnRequest
from api_client.store import Store
from api_client.store.module_log import ModuleLog

log = ModuleLog(__name__)

#: The label of a turn that names its version of prompts and rules (HELIX_FLOW_VERSION).
FLOW = "flow"


#: So long what was read from the store holds: a rollback reaches every relay within it, in seconds.
FRESH_SECONDS = 1.0


#: Who rolled a version back, where it was no person: a worker, for the bound of the settings file.
GUARD = "guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """A version that gets no more turns.

    Attributes:
        at: since when, in seconds since the epoch.
        by: who did it: ``user@host``, or ``GUARD``.
        why: in a few words, for people.
        resumed: it was taken back at ``at``: what failed before that counts no more.
    """

    at: float
    by: str
    why: str = ""
    resumed: bool = False

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> RolledBack:
        """Read what ``to_json`` wrote. Raises ``ValueError``, ``TypeError``: it is something else."""
        return cls(**json.loads(text))


def active(versions: Mapping[str, int], rolled_back: Collection[str]) -> dict[str, int]:
    """The versions that get turns, with their weights.

    Where nothing with a weight is left, the versions of weight 0 get them: what one goes back to. Where nothing is left
    at all, somebody rolled back everything, and the settings hold.
    """
    left = {version: weight for version, weight in versions.items() if version not in rolled_back}
    if any(left.values()):
        return {version: weight for version, weight in left.items() if weight}
    return dict.fromkeys(left, 1) or {version: weight for version, weight in versions.items() if weight}


def flow_of(session_id: str, versions: Mapping[str, int]) -> str:
    """The version of a session, spread by hash as the weights say. A session keeps its own.

    Weighted rendezvous hashing (Schindelhauer and Schomaker, 2005): when a weight changes or a version goes, only those
    sessions move that have to.
    """
    if len(versions) == 1:
        return next(iter(versions))
    weighted = {version: weight for version, weight in versions.items() if weight > 0}
    return max(weighted, key=lambda version: -weighted[version] / math.log(_place(session_id, version)))


def with_flow(request: TurnRequest, version: str) -> TurnRequest:
    """Return the request with this version; empty: with none."""
    return replace(request, labels={**request.labels, FLOW: version})


def _place(session_id: str, version: str) -> float:
    """A number between 0 and 1, both excluded, that looks drawn."""
    digest = hashlib.sha256(f"flow {version} {session_id}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:6], "big") + 0.5) / 2**48


class Flows:
    """The versions of HELIX_FLOW_VERSION. Each method that asks the store raises ``StoreUnavailable``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Hash: flow versions that were rolled back (JSON, ``RolledBack``).
        self._key = store.keys.named("flows")
        self._versions = store.settings.flow_version
        self._active: Mapping[str, int] = active(self._versions, ())
        self._read_at = -FRESH_SECONDS

    async def active(self) -> Mapping[str, int]:
        """The versions that get turns now, with their weights. With a single version the store is not asked."""
        if len(self._versions) > 1 and time.monotonic() - self._read_at >= FRESH_SECONDS:
            self._active = active(self._versions, await self.rolled_back())
            self._read_at = time.monotonic()
        return self._active

    async def given(self, request: TurnRequest) -> TurnRequest:
        """The request with the version of its session, unless it has one."""
        return request if request.labels.get(FLOW) else with_flow(request, await self.of(request))

    async def of(self, request: TurnRequest) -> str:
        """The version of a request: its own, or its session's."""
        return request.labels.get(FLOW) or flow_of(request.session_id, await self.active())

    async def rolled_back(self) -> dict[str, RolledBack]:
        """The versions of the settings that were rolled back and not resumed since."""
        said = await self.said()
        return {version: note for version, note in said.items() if version in self._versions and not note.resumed}

    async def roll_back(self, version: str, *, by: str, why: str = "") -> Mapping[str, int]:
        """Give a version no more turns, from ``FRESH_SECONDS`` from now on; returns the versions that get them instead.

        Turns that have it keep it. Doing it again changes nothing. Raises ``BadRequest``: the settings name no such
        version, or no other one is left.
        """
        known = {*await self.rolled_back(), self._known(version)}
        if not set(self._versions) - known:
            raise BadRequest(
                f"no other version is left: {', '.join(self._versions)} is all that HELIX_FLOW_VERSION has"
            )
        await self.note(version, RolledBack(at=time.time(), by=by, why=why))
        return active(self._versions, known)

    async def resume(self, version: str, *, by: str) -> Mapping[str, int]:
        """Give a version turns again; returns the versions that get them. Raises ``BadRequest`` as ``roll_back``."""
        known = {*await self.rolled_back()} - {self._known(version)}
        await self.note(version, RolledBack(at=time.time(), by=by, resumed=True))
        return active(self._versions, known)

    async def note(self, version: str, said: RolledBack) -> None:
        """Note that a version was rolled back, or resumed."""
        await self._store.ask(self._store.redis.hset(self._key, version, said.to_json()))
        self._read_at = -FRESH_SECONDS

    def _known(self, version: str) -> str:
        if version not in self._versions:
            there = ", ".join(self._versions)
            raise BadRequest(f"no flow version {version[:80]!r}; HELIX_FLOW_VERSION has: {there}", param="version")
        return version

    async def said(self) -> dict[str, RolledBack]:
        """Return what is noted of versions that were rolled back or resumed, of the settings' and of others."""
        stored: Mapping[bytes, bytes] = await self._store.ask(self._store.redis.hgetall(self._key))
        found = {}
        for version, text in stored.items():
            try:
                found[version.decode()] = RolledBack.from_json(text)
            except (ValueError, TypeError) as error:  # of a later release, or damaged: the settings hold
                log.warning("flow.unreadable", flow=version.decode(errors="replace"), error=str(error)[:200])
        return found
