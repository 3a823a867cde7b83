"""Submits the phases of a phases.yaml and remembers the folders in which phases ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from api_client.contract.admission import Submission
from api_client.contract.errors import HelixError, IdempotencyConflict, NotAdmitted
from api_client.contract.phase import Phase
from api_client.contract.phase_work import AFTER
from api_client.store import Store
from api_client.turns.phase_requests import build_requests
from api_client.turns.submitter import Submitter


class PhaseSubmitter:
    """Submits the phases of a workflow as turns. Methods raise ``StoreUnavailable``."""

    def __init__(self, store: Store, submitter: Submitter) -> None:
        self._store, self._submitter = store, submitter
        #: Redis set of folders whose phases ran, relative to HELIX_ROOT.
        self._folders = f"{store.keys.prefix}phase_folders"

    async def submit_phases(
        self, phases: Sequence[Phase], *, directory: str, idempotency_key: str = "", **more: Any
    ) -> list[str]:
        """Store one turn per phase, to run one after the other, and return the turns' ids.

        A failed phase stops the later phases. Repeating the call with the same ``idempotency_key`` stores only the
        missing turns. Raises the errors of ``Submitter.submit``. ``directory`` is relative to HELIX_ROOT, and ``more``
        holds further arguments of ``build_requests``.
        """
        turns = self._build_turns(phases, directory=directory, idempotency_key=idempotency_key, **more)
        try:
            await self._submitter.hold_resources([await self._submitter.admit_turn(each) for each in turns])
        except NotAdmitted:  # a refusal must not hide turns that were acknowledged before
            if not await self._submitter.find_stored(turns[0]):
                raise
        if turns:  # before the first turn, so that `turns data gc` finds the files of its agents
            folder = turns[0].request.work_data["directory"]
            await self._store.await_reply(self._store.redis.sadd(self._folders, folder))
        turn_ids: list[str] = []
        try:
            for turn in turns:
                request, key = turn.request, turn.idempotency_key
                if turn_ids:
                    request = replace(request, work_data=request.work_data | {AFTER: turn_ids[-1]})
                turn_ids.append(await self._submitter.submit(request, turn_id=turn.turn_id, idempotency_key=key))
        except HelixError as error:
            shown = IdempotencyConflict(idempotency_key) if isinstance(error, IdempotencyConflict) else error
            shown.turn_ids = (*turn_ids, *error.turn_ids)
            raise shown from error
        return turn_ids

    async def is_repeated(self, phases: Sequence[Phase], *, directory: str, idempotency_key: str, **more: Any) -> bool:
        """Return True if the same call of ``submit_phases`` has stored a turn before."""
        turns = self._build_turns(phases, directory=directory, idempotency_key=idempotency_key, **more)
        return bool(idempotency_key and turns and await self._submitter.find_stored(turns[0]))

    def _build_turns(
        self, phases: Sequence[Phase], *, directory: str, idempotency_key: str, **more: Any
    ) -> list[Submission]:
        requests = build_requests(phases, self._store.settings, directory=directory, **more)
        keys = [f"{idempotency_key} {at}" if idempotency_key else "" for at in range(1, len(requests) + 1)]
        return [
            Submission(turn_id=self._submitter.create_turn_id(), request=request, idempotency_key=own)
            for request, own in zip(requests, keys, strict=True)
        ]

    async def read_folders(self) -> list[str]:
        """Return the recorded working folders of phases, relative to HELIX_ROOT."""
        return [raw.decode() for raw in await self._store.await_reply(self._store.redis.smembers(self._folders))]

    async def forget_folders(self, folders: Sequence[str]) -> None:
        """Remove folders that no longer exist from the stored list."""
        await self._store.await_reply(self._store.redis.srem(self._folders, *folders))
