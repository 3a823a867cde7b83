"""The facts about a run that its tool gateway gets from the worker, and the interface to that worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from api_client.contract.tool_call_row import CallRow
from worker.plugins.tools.tool_servers import ToolServer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The facts about a run that its tool gateway needs.

    Attributes:
        token: the lease's fencing token.
        continues: delivery of this attempt whose agent session the run continues; 0 for none.
        fresh: whether the agent has no session at all.
        folder: the delivery's folder, whose name does not count in arguments.
        asks: whether a person can be asked.
        approved, rejected: digest of the call that a person decided on; empty for none.
        declined: server to which the person did not sign in; empty for none.
        secrets: the installation's secrets, masked wherever a call is shown.
    """

    turn_id: str
    attempt: int
    delivery: int
    token: str = field(repr=False)
    owner: str
    locale: str
    folder: str
    continues: int = 0
    fresh: bool = True
    asks: bool = True
    approved: str = ""
    rejected: str = ""
    declined: str = ""
    servers: tuple[ToolServer, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        servers = tuple(map(ToolServer.from_dict, data["servers"]))
        return cls(**{**data, "servers": servers, "secrets": tuple(data["secrets"])})


class RunOwner(Protocol):
    """Interface to the worker that owns a run."""

    async def use_up_approval(self) -> bool:
        """Mark the person's approval as used, and return True if the call may be executed."""
        ...

    async def suspend_run(self, question: Mapping[str, Any]) -> None:
        """End the run and ask a person the given question (``Interruption.to_dict``)."""
        ...

    def report_call(self, row: CallRow) -> None: ...
