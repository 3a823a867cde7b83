"""A fast raw connection to the store, with commands in batches and published events beside the replies (RESP3).

Many schedules run side by side, each a generator that yields commands and is sent their replies. Two groups take turns,
so that the server works on one while Python works on the other. A schedule's choices depend on its seed alone, never on
its neighbours.
"""

import socket
from collections.abc import Callable, Generator
from itertools import cycle
from typing import Any

import hiredis

Command = tuple[Any, ...]
Steps = Generator[list[Command], list[Any], None]
#: (channel, payload) of something published.
Hear = Callable[[bytes, bytes], None]


class Wire:
    """One connection to the store's unix socket."""

    def __init__(self, path: str, hear: Hear) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(120)
        self._socket.connect(path)
        self._reader = hiredis.Reader()
        self._hear = hear
        self.ask(("HELLO", 3))

    def close(self) -> None:
        self._socket.close()

    def ask(self, *commands: Command) -> list[Any]:
        """Send commands and return their replies."""
        self.send(commands)
        return self.receive(len(commands))

    def send(self, commands: Any) -> None:
        self._socket.sendall(b"".join([hiredis.pack_command(command) for command in commands]))

    def receive(self, count: int) -> list[Any]:
        """Return the next ``count`` replies; refusals are ``hiredis.ReplyError`` objects among them."""
        replies: list[Any] = []
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(1 << 18))
            elif isinstance(reply, hiredis.PushNotification):
                if reply[0] == b"pmessage":
                    self._hear(reply[2], reply[3])
                elif reply[0] == b"psubscribe":
                    replies.append(reply)
            else:
                replies.append(reply)
        return replies


class Group:
    """Schedules that run side by side on one connection; ``make`` supplies new schedules until there are no more."""

    def __init__(self, wire: Wire, make: Callable[[], Steps | None], size: int) -> None:
        self._wire = wire
        self._make = make
        self.running: list[tuple[Steps, list[Command]]] = []
        for _ in range(size):
            self._admit()

    def _admit(self) -> None:
        steps = self._make()
        if steps is not None:
            self.running.append((steps, next(steps)))

    def send(self) -> None:
        """Send the next commands of every schedule."""
        self._wire.send([command for _, wanted in self.running for command in wanted])

    def go_on(self) -> None:
        """Receive the replies and let every schedule continue."""
        replies = self._wire.receive(sum(len(wanted) for _, wanted in self.running))
        at, before = 0, self.running
        self.running = []
        for steps, wanted in before:
            mine = replies[at : at + len(wanted)]
            at += len(wanted)
            try:
                self.running.append((steps, steps.send(mine)))
            except StopIteration:
                self._admit()


def run_all(groups: list[Group]) -> None:
    """Run every schedule of every group to its end. An exception of a schedule ends the run."""
    for group in groups:
        group.send()
    for group in cycle(groups):
        group.go_on()
        group.send()
        if not any(other.running for other in groups):
            return
