"""The figures as a part of the client: counters, rates and spans, read from a store that may be away."""

from __future__ import annotations

from collections.abc import Mapping

from api_client.figures import metrics
from api_client.figures.figures import Figures, read_figures
from api_client.figures.stats import RetryRate, Stats
from api_client.store import Store


class FigureReader:
    """Reads what was counted. Every method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def retry_rate(self, since_seconds: float, by: str = "", every: str = "", model: str = "") -> RetryRate:
        """How often agents were asked again in the last ``since_seconds``. As ``metrics.retry_rate``."""
        found = metrics.retry_rate(self._store, since_seconds, by, every, model)
        rate: RetryRate = await self._store.ask(found)
        return rate

    async def stats(self, since_seconds: float, by: str = "", *, ago_seconds: float = 0) -> Stats:
        """The figures of a span of ``since_seconds`` that ended ``ago_seconds`` ago, whole or broken down.

        Raises:
            ValueError: ``by`` is not in ``stats.BREAKDOWNS``.
        """
        found: Stats = await self._store.ask(metrics.stats(self._store, since_seconds, by, ago_seconds))
        return found

    async def totals(self) -> Mapping[str, int]:
        """Every counter since the beginning (``contract/counters.py``)."""
        found: Mapping[str, int] = await self._store.ask(metrics.totals(self._store))
        return found

    async def account(self) -> metrics.Account:
        """What became of every turn that was ever acknowledged."""
        found: metrics.Account = await self._store.ask(metrics.account(self._store))
        return found

    async def over(self, span: str) -> Figures:
        """The figures of a span of ``figures.SPANS``, whole and over time."""
        found: Figures = await self._store.ask(read_figures(self._store, span))
        return found
