"""Phases of an installation: submitting those of a file, and the folders they ran in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from api_client.contract.errors import HelixError, IdempotencyConflict
from api_client.contract.phase import Phase
from api_client.contract.phase_work import AFTER
from api_client.store import Store
from api_client.turns.phase_requests import requests_of
from api_client.turns.submitter import Submitter


class Phases:
    """Submits phases. Every method raises ``StoreUnavailable`` when the store does not answer."""

    def __init__(self, store: Store, submitter: Submitter) -> None:
        self._store, self._submitter = store, submitter
        #: Set: folders whose phases were run, relative to HELIX_ROOT.
        self._folders = f"{store.keys.prefix}phase_folders"

    async def submit(
        self, phases: Sequence[Phase], *, directory: str, idempotency_key: str = "", **more: Any
    ) -> list[str]:
        """Store a turn for each phase, to be run in this order; returns their ids. A failed one stops those after it.

        ``directory`` is the folder of their phases.yaml, relative to HELIX_ROOT. With an ``idempotency_key`` a repeat
        finds the turns that are stored already, and stores those that a lost connection left out. ``more``: see
        ``requests_of``. All of them are admitted, or none is stored. Raises as ``Submitter.submit``; the
        error's ``turn_ids`` are those that were stored before it.
        """
        requests = requests_of(phases, self._store.settings, directory=directory, **more)
        new = {self._submitter.new_id(): request for request in requests}
        keys = {each: f"{idempotency_key} {at}" if idempotency_key else "" for at, each in enumerate(new, 1)}
        turns = [await self._submitter.admit(each, request, keys[each]) for each, request in new.items()]
        if requests:  # before the first turn: `turns gc` is to find what its agents write
            await self._store.ask(self._store.redis.sadd(self._folders, requests[0].work_data["directory"]))
        await self._submitter.hold(turns)
        turn_ids: list[str] = []
        try:
            for own_id, request in new.items():
                if turn_ids:
                    request = replace(request, work_data=request.work_data | {AFTER: turn_ids[-1]})
                turn_ids.append(await self._submitter.submit(request, turn_id=own_id, idempotency_key=keys[own_id]))
        except HelixError as error:
            shown = IdempotencyConflict(idempotency_key) if isinstance(error, IdempotencyConflict) else error
            shown.turn_ids = tuple(turn_ids)
            raise shown from error
        return turn_ids

    async def read_folders(self) -> list[str]:
        """Return the folders whose phases were run, relative to HELIX_ROOT."""
        return [raw.decode() for raw in await self._store.ask(self._store.redis.smembers(self._folders))]

    async def forget_folders(self, folders: Sequence[str]) -> None:
        """Drop folders that are gone."""
        await self._store.ask(self._store.redis.srem(self._folders, *folders))
