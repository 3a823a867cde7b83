"""Admissions that a worker asks before each agent run."""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from api_client.contract.admission import Admission
from api_client.contract.catalogue import load_declarations
from api_client.contract.errors import StoreUnavailable
from api_client.contract.plugins import ADMISSION, UnusablePlugin, find_plugins, make_plugin
from api_client.contract.settings import Settings
from api_client.contract.turn import Turn
from api_client.store.store import Store

log = structlog.get_logger()


class RunAdmissions:
    """Asks all built-in and installed checks whether an agent may run."""

    def __init__(self, settings: Settings) -> None:
        made = [make for make in load_declarations("ADMISSIONS").values() if getattr(settings, make.setting)]
        self._store, self._admissions = None, list[Admission]()
        if made or find_plugins(ADMISSION):
            self._store = store = Store(settings)
            admissions = (*(make(store) for make in made), *_make_installed_admissions(store))
            self._admissions = [each for each in admissions if type(each).admit_run is not Admission.admit_run]

    async def admit_run(self, turn: Turn, model: str) -> None:
        """Ask every check whether the turn may run its agent once more. Raises ``NotAdmitted``.

        A check that cannot reach the store allows the run.
        """
        for each in self._admissions:
            try:
                await each.admit_run(turn.turn_id, turn.request, model)
            except StoreUnavailable as error:
                log.warning("run.not_checked", admission=type(each).__name__, error=str(error)[:200])

    async def close(self) -> None:
        if self._store:
            await self._store.close()


def _make_installed_admissions(store: Store) -> Iterator[Admission]:
    for name in find_plugins(ADMISSION):
        try:
            yield make_plugin(ADMISSION, name, store)
        except UnusablePlugin as error:  # an unusable admission refuses every submission as well
            log.error("admission.not_loaded", admission=name, error=str(error)[:200])
