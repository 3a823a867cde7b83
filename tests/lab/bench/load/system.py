"""What the closed loop asks of the system it loads."""

from abc import ABC, abstractmethod
from typing import Any


class System(ABC):
    """A way to submit turns and to understand the messages that say how they go on.

    Attributes:
        pattern: the pub/sub channels of the turns' events; what stands for ``*`` is the turn's id.
    """

    pattern: str

    @abstractmethod
    def new_id(self) -> str:
        """An id for a turn that is to be submitted."""

    @abstractmethod
    async def submit(self, turn: str, kind: str) -> None:
        """Submit a turn."""

    @abstractmethod
    def began(self, event: dict[str, Any]) -> bool:
        """Whether the turn's agent has begun to run."""

    @abstractmethod
    def said(self, event: dict[str, Any]) -> int:
        """How many characters of the answer this event carries, 0 if it is another kind of event."""

    @abstractmethod
    def ended(self, event: dict[str, Any]) -> bool:
        """Whether this is the turn's last event."""

    @abstractmethod
    def right(self, kind: str, last: dict[str, Any]) -> bool:
        """Whether a turn of this kind ended as it must."""

    @abstractmethod
    async def stored(self, turn: str, kind: str) -> bool:
        """Whether the store holds every attempt of the turn and its answer."""

    async def follow(self, turn: str) -> None:
        """Wait for the turn's end by the system's own means; only asked where the row says so."""
        raise NotImplementedError
