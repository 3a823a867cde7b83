"""Rules of daily budgets: which budgets a turn counts towards, and how much of each is spent. Days are UTC days."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from api_client.contract.counters import clean_label
from api_client.contract.owners import parse_owner
from api_client.contract.turn import TurnRequest

NEAR = 0.8
DAY_SECONDS = 86_400
MICRO = 1_000_000
#: The name of a budget that every owner, key or model without its own budget has.
EACH = "*"
#: Prefix of a scope's reserved amount in the stored day (``reserve.lua``).
ASIDE = "aside|"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpending:
    """A daily budget together with the amount spent and reserved today.

    ``scope`` is ``all``, ``owner:HASH``, ``key:NAME`` or ``model:NAME``; ``budget`` is the entry of HELIX_BUDGETS, such
    as ``owner:*``. ``spent_usd`` includes the reservations in ``set_aside_usd``. ``resets_at`` is in seconds since the
    epoch.
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
        """Return the cost of today's finished turns in US dollars, without reserved amounts."""
        return max(0.0, self.spent_usd - self.set_aside_usd)

    @property
    def share(self) -> float:
        """Return the spent share of the limit, where 1.0 is the whole limit. Reserved amounts do not count."""
        return self.charged_usd / self.limit_usd if self.limit_usd else 1.0

    @property
    def state(self) -> str:
        """Return the budget's state: ``ok``, ``near``, ``spent`` or ``matches nobody``."""
        ok = "ok" if self.matches else "matches nobody"
        return "spent" if self.share >= 1 else "near" if self.share >= NEAR else ok

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state}


def find_limits(request: TurnRequest, budgets: Mapping[str, float]) -> list[tuple[str, int]]:
    """Return each budget that a turn counts towards, with its limit in millionths of a US dollar."""
    named = {
        "owner": request.owner,
        "key": request.key and clean_label(request.key),
        "model": clean_label(request.model),
    }
    own, found = _own_budgets(budgets), {"all": "all"} if "all" in budgets else {}
    for kind, name in named.items():
        entry = own.get(f"{kind}:{name}", f"{kind}:{EACH}")
        if name and entry in budgets:
            found[f"{kind}:{name}"] = entry
    return [(scope, int(budgets[entry] * MICRO)) for scope, entry in found.items()]


def _own_budgets(budgets: Iterable[str]) -> dict[str, str]:
    split = {entry: entry.partition(":") for entry in budgets}
    return {
        f"owner:{parse_owner(name)}" if kind == "owner" and name != EACH else entry: entry
        for entry, (kind, _, name) in split.items()
    }


def find_day(now: float) -> int:
    """Return the start of the UTC day that contains ``now``, both in seconds since the epoch."""
    return int(now) // DAY_SECONDS * DAY_SECONDS


def list_spending(stored: Mapping[str, int], budgets: Mapping[str, float], day: int) -> list[BudgetSpending]:
    """Return the spending of one day for every budget, the most used budget first."""
    named = {scope: amount for scope, amount in stored.items() if "|" not in scope}
    own = _own_budgets(budgets)
    scopes = {scope: entry for scope, entry in own.items() if not entry.endswith(f":{EACH}")}
    for scope in named:
        entry = own.get(scope, f"{scope.partition(':')[0]}:{EACH}")
        if entry in budgets:
            scopes[scope] = entry
    found = [
        BudgetSpending(
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


def highest_shares(spent: Iterable[BudgetSpending]) -> dict[str, float]:
    """Return how much of its limit is spent, for each budget in the settings, as a share (1.0: all of it).

    A budget such as ``owner:*`` holds for several owners; the owner with the highest share counts.
    """
    shares: dict[str, float] = {}
    for each in spent:
        shares[each.budget] = max(shares.get(each.budget, 0.0), each.share)
    return shares
