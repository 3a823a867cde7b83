"""Flow versions (ADR-034, A/B): which version a session has, and which versions were rolled back. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """A version that gets no more turns.

    Attributes:
        at: since when, in seconds since the epoch.
        by: who did it: ``user@host``, or ``guard`` for the bound of the settings file.
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
    weighted = {version: weight for version, weight in versions.items() if weight > 0}
    if len(weighted) == 1:
        return next(iter(weighted))
    return max(weighted, key=lambda version: -weighted[version] / math.log(_place(session_id, version)))


def _place(session_id: str, version: str) -> float:
    """A number between 0 and 1, both excluded, that looks drawn."""
    digest = hashlib.sha256(f"flow {version} {session_id}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:6], "big") + 0.5) / 2**48
