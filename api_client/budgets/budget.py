"""Budgets of a day: which ones a turn counts for, and how far each is spent. Pure. Days are days of UTC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from api_client.contract.counters import label
from api_client.contract.owners import owner_named
from api_client.contract.turn import TurnRequest

#: From this part of a budget on it is said to be near.
NEAR = 0.8
DAY_SECONDS = 86_400
MICRO = 1_000_000
#: Every owner, or key, or model has this budget, unless it has its own.
EACH = "*"
#: Before a scope, in the stored day: what of it is set aside (``reserve.lua``).
ASIDE = "aside|"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A budget and what was spent of it today.

    Attributes:
        scope: ``all``, ``owner:HASH``, ``key:NAME`` or ``model:NAME``.
        budget: the entry of HELIX_BUDGETS that it is measured by, such as ``owner:*``.
        limit_usd, spent_usd: US dollars; ``spent_usd`` includes what is set aside for turns that go on.
        set_aside_usd: that part of ``spent_usd``. matches: there may be somebody whose budget it is.
        resets_at: when the next day begins, in seconds since the epoch.
    """

    scope: str
    budget: str
    limit_usd: float
    spent_usd: float
    resets_at: float
    set_aside_usd: float = 0.0
    matches: bool = True

    @property
    def charged_usd(self) -> float:
        """Return what turns that ended have cost."""
        return max(0.0, self.spent_usd - self.set_aside_usd)

    @property
    def share(self) -> float:
        """The part that is spent; what is set aside comes back as far as it is not used."""
        return self.charged_usd / self.limit_usd if self.limit_usd else 1.0

    @property
    def state(self) -> str:
        """``ok``, ``near``, ``spent`` or ``matches nobody``."""
        ok = "ok" if self.matches else "matches nobody"
        return "spent" if self.share >= 1 else "near" if self.share >= NEAR else ok

    def to_dict(self) -> dict[str, Any]:
        """The budget as a JSON-ready mapping."""
        return {**asdict(self), "state": self.state}


def limits_of(request: TurnRequest, budgets: Mapping[str, float]) -> list[tuple[str, int]]:
    """The scopes a turn counts for that have a budget, each with that, in millionths of a US dollar."""
    named = {"owner": request.owner, "key": request.key and label(request.key), "model": label(request.model)}
    own, found = _own(budgets), {"all": "all"} if "all" in budgets else {}
    for kind, name in named.items():
        entry = own.get(f"{kind}:{name}", f"{kind}:{EACH}")
        if name and entry in budgets:
            found[f"{kind}:{name}"] = entry
    return [(scope, int(budgets[entry] * MICRO)) for scope, entry in found.items()]


def _own(budgets: Iterable[str]) -> dict[str, str]:
    """Return for each scope that an entry names the entry; that may name an owner or its hash."""
    split = {entry: entry.partition(":") for entry in budgets}
    return {
        f"owner:{owner_named(name)}" if kind == "owner" and name != EACH else entry: entry
        for entry, (kind, _, name) in split.items()
    }


def day_of(now: float) -> int:
    """The day of a moment (seconds since the epoch), as the second it began."""
    return int(now) // DAY_SECONDS * DAY_SECONDS


def spent_of(stored: Mapping[str, int], budgets: Mapping[str, float], day: int) -> list[Spent]:
    """Return what was spent of each budget on a day, the most used first; also of those nothing was spent of."""
    named = {scope: amount for scope, amount in stored.items() if "|" not in scope}
    own = _own(budgets)
    scopes = {scope: entry for scope, entry in own.items() if not entry.endswith(f":{EACH}")}
    for scope in named:
        entry = own.get(scope, f"{scope.partition(':')[0]}:{EACH}")
        if entry in budgets:
            scopes[scope] = entry
    found = [
        Spent(
            scope=scope,
            budget=entry,
            limit_usd=budgets[entry],
            spent_usd=named.get(scope, 0) / MICRO,
            set_aside_usd=stored.get(f"{ASIDE}{scope}", 0) / MICRO,
            resets_at=day + DAY_SECONDS,
        )
        for scope, entry in scopes.items()
    ]
    return sorted(found, key=lambda each: (-each.share, each.scope))


def highest(spent: Iterable[Spent]) -> dict[str, float]:
    """Entry of HELIX_BUDGETS -> the highest part that anybody has spent of it: few values, however many owners."""
    shares: dict[str, float] = {}
    for each in spent:
        shares[each.budget] = max(shares.get(each.budget, 0.0), each.share)
    return shares
