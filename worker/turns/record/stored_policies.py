"""The policy files and session templates of turns, as they were at the submit: in the store, by their hash."""

from __future__ import annotations

from collections import OrderedDict

from api_client.contract.turn import Turn
from api_client.contract.values.prompts import NONE
from worker.enforcement.policies import PolicyError, PolicyFile, read_policy
from worker.turns.record.async_ledger import AsyncLedger

#: So many policies stay in a process; one more, and the one that was not needed for longest goes.
_MOST = 64


class Policies:
    """Reads policies from the store, each once. Belongs to one loop; threads may ask ``known``."""

    def __init__(self, ledger: AsyncLedger) -> None:
        self._ledger = ledger
        self._read: OrderedDict[str, PolicyFile | str] = OrderedDict()
        self._templates: OrderedDict[str, str] = OrderedDict()

    async def load(self, turn: Turn) -> None:
        """Make the turn's policy known, if it has one. Waits while the store is away."""
        if not turn.request.applied or (policy := turn.request.applied.hash) in self._read:
            return
        text = await self._ledger.policy(policy)
        if not text:
            return
        try:
            self._read[policy] = read_policy(text)
        except PolicyError as error:  # what is installed here is not what the relay has
            self._read[policy] = str(error.problems[0])
        while len(self._read) > _MOST:
            self._read.popitem(last=False)

    async def load_template(self, turn: Turn) -> None:
        """Make the turn's session template known, if it has one. Waits while the store is away."""
        template = turn.request.template
        if template in {"", NONE} or template in self._templates:
            return
        if text := await self._ledger.policy(template):
            self._templates[template] = text
        while len(self._templates) > _MOST:
            self._templates.popitem(last=False)

    def template(self, turn: Turn) -> str | None:
        """The text of the turn's session template that was loaded, empty for none; None: the store has it no more."""
        return "" if turn.request.template == NONE else self._templates.get(turn.request.template)

    def known(self, turn: Turn) -> PolicyFile | None:
        """The policy of a turn that was loaded; None for a turn without one.

        Raises:
            ValueError: the store has none of this hash, or this worker cannot read it.
        """
        if turn.request.applied is None:
            return None
        policy = turn.request.applied.hash
        match self._read.get(policy):
            case PolicyFile() as file:
                return file
            case str() as problem:
                raise ValueError(f"policy {policy} cannot be used on this worker: {problem}")
        raise ValueError(f"policy {policy} is not in the store")
