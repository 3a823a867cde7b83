"""Flow versions: assigns them to new turns by their configured shares, and rolls them back (ADR-034)."""

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


#: Seconds for which versions read from the store stay valid; a rollback reaches every relay within this time.
FRESH_SECONDS = 1.0


GUARD = "guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A record that a flow version was rolled back, so that it gets no new turns, or was resumed."""

    at: float
    by: str
    why: str = ""
    resumed: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Rollback:
        """Decode a record from JSON. Raises ``ValueError`` or ``TypeError`` for any other text."""
        return cls(**json.loads(text))


def active_versions(versions: Mapping[str, int], rolled_back: Collection[str]) -> dict[str, int]:
    """Return the flow versions that may get new turns, with their weights, without rolled-back versions.

    Versions of weight 0 serve only if no other version is left.
    """
    left = {version: weight for version, weight in versions.items() if version not in rolled_back}
    if any(left.values()):
        return {version: weight for version, weight in left.items() if weight}
    return dict.fromkeys(left, 1) or {version: weight for version, weight in versions.items() if weight}


def choose_flow(session_id: str, versions: Mapping[str, int]) -> str:
    """Choose a session's flow version randomly by weight. A session always gets the same version.

    Weighted rendezvous hashing (Schindelhauer and Schomaker, 2005) moves as few sessions as possible when weights
    change.
    """
    if len(versions) == 1:
        return next(iter(versions))
    weighted = {version: weight for version, weight in versions.items() if weight > 0}
    return max(weighted, key=lambda version: -weighted[version] / math.log(_hash_position(session_id, version)))


def set_flow(request: TurnRequest, version: str) -> TurnRequest:
    """Return a copy of the request with this flow version. An empty string removes the version."""
    return replace(request, labels={**request.labels, FLOW: version})


def _hash_position(session_id: str, version: str) -> float:
    digest = hashlib.sha256(f"flow {version} {session_id}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:6], "big") + 0.5) / 2**48


class FlowVersions:
    """Assigns flow versions to sessions, and stores which versions are rolled back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Redis hash of rolled-back flow versions (JSON of ``Rollback``).
        self._key = store.keys.key_named("flows")
        self._versions = store.settings.flow_version
        self._active: Mapping[str, int] = active_versions(self._versions, ())
        self._read_at = -FRESH_SECONDS

    async def read_active(self) -> Mapping[str, int]:
        """Return the flow versions that get new turns, with their weights."""
        if len(self._versions) > 1 and time.monotonic() - self._read_at >= FRESH_SECONDS:
            self._active = active_versions(self._versions, await self.read_rolled_back())
            self._read_at = time.monotonic()
        return self._active

    async def assign_flow(self, request: TurnRequest) -> TurnRequest:
        """Return the request with a flow version, which is chosen by session if the request has none."""
        return request if request.labels.get(FLOW) else set_flow(request, await self.find_flow(request))

    async def find_flow(self, request: TurnRequest) -> str:
        """Return the request's flow version, or the version chosen for the request's session."""
        return request.labels.get(FLOW) or choose_flow(request.session_id, await self.read_active())

    async def read_rolled_back(self) -> dict[str, Rollback]:
        """Return the configured flow versions that are rolled back, each with its record."""
        said = await self.read_all()
        return {version: note for version, note in said.items() if version in self._versions and not note.resumed}

    async def roll_back_version(self, version: str, *, by: str, why: str = "") -> Mapping[str, int]:
        """Roll a flow version back, so that it gets no new turns. Return the versions that get them instead.

        Turns keep their version. Raises ``BadRequest`` if the version is unknown, or no other version is left.
        """
        known = {*await self.read_rolled_back(), self._require_known(version)}
        if not set(self._versions) - known:
            raise BadRequest(
                f"no other version is left: {', '.join(self._versions)} is all that HELIX_FLOW_VERSION has"
            )
        await self.record_rollback(version, Rollback(at=time.time(), by=by, why=why))
        return active_versions(self._versions, known)

    async def resume_version(self, version: str, *, by: str) -> Mapping[str, int]:
        """Give new turns to a flow version again. Return all versions that get turns, with their weights."""
        known = {*await self.read_rolled_back()} - {self._require_known(version)}
        await self.record_rollback(version, Rollback(at=time.time(), by=by, resumed=True))
        return active_versions(self._versions, known)

    async def record_rollback(self, version: str, said: Rollback) -> None:
        await self._store.await_reply(self._store.redis.hset(self._key, version, said.to_json()))
        self._read_at = -FRESH_SECONDS

    def _require_known(self, version: str) -> str:
        if version not in self._versions:
            there = ", ".join(self._versions)
            raise BadRequest(f"no flow version {version[:80]!r}; HELIX_FLOW_VERSION has: {there}", param="version")
        return version

    async def read_all(self) -> dict[str, Rollback]:
        """Return all stored rollbacks by flow version, including resumed and removed versions."""
        stored: Mapping[bytes, bytes] = await self._store.await_reply(self._store.redis.hgetall(self._key))
        found = {}
        for version, text in stored.items():
            try:
                found[version.decode()] = Rollback.from_json(text)
            except (ValueError, TypeError) as error:  # written by a later release, or damaged: the settings apply
                log.warning("flow.unreadable", flow=version.decode(errors="replace"), error=str(error)[:200])
        return found
