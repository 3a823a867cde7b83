"""A tool call of an agent, as recorded in the tool gateway's call log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class CallState(StrEnum):
    """The states of a tool call in the call log."""

    #: It left for the server, and no result is known.
    BEGUN = "begun"
    #: Its result is known; errors of the tool are results.
    DONE = "done"
    #: The server refused it or could not be reached, so nothing was changed.
    FAILED = "failed"
    #: The agent got the result of an earlier delivery's call.
    RECORDED = "recorded"
    #: It was under way when a process died or the server fell silent: nobody knows whether it was executed.
    UNKNOWN = "unknown"
    #: A person is asked.
    ASKED = "asked"
    #: The policy or a person denied it.
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """A tool call as recorded in the call log.

    Attributes:
        number: of the call within its delivery, from 1.
        gateway: nonce of the gateway process that served it.
        digest: hash of server, tool and arguments.
        earlier: row of the earlier call that answers for this one; empty for none.
        at, took_ms: when it came (epoch seconds), and how long the server took.
        cost_usd: the call's cost as the server states it.
        approved: a person approved it.
        names: identifiers in arguments and result of a call that is not read-only.
        unseen: the agent was gone, or was being ended, when the result came.
        continues: delivery whose agent session the run continued; 0 for a fresh one.
    """

    number: int
    attempt: int
    delivery: int
    gateway: str
    server: str
    tool: str
    digest: str
    read_only: bool = False
    state: CallState = CallState.BEGUN
    earlier: str = ""
    at: float = 0.0
    took_ms: int = 0
    result_bytes: int = 0
    cost_usd: float = 0.0
    is_error: bool = False
    approved: bool = False
    unseen: bool = False
    continues: int = 0
    arguments: str = ""
    names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the row's name within its turn. Names sort in the order of the calls."""
        return f"{self.delivery:05d}-{self.number:05d}"

    @property
    def outcome(self) -> str:
        """Return the state of the call, or ``error`` if its result is an error."""
        return "error" if self.is_error and self.state is CallState.DONE else self.state.value

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CallRow:
        """Create a row from its dictionary, ignoring fields of later versions."""
        row = cls(**{name: value for name, value in data.items() if name in cls.__slots__})
        return replace(row, state=CallState(row.state), names=tuple(row.names))
