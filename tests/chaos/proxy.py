"""A proxy between the parts that delays, throttles, cuts and deafens connections. A process of its own.

``python -m tests.chaos.proxy CONTROL LINKS`` with LINKS as JSON: ``{name: [listen, upstream]}``, addresses as
``unix:PATH`` or ``HOST:PORT``. Orders are lines of JSON on the unix socket CONTROL, see ``_obey``.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

_PIECE = 65_536


@dataclass
class Wire:
    """One link and what is wrong with it at the moment.

    Attributes:
        delay: seconds every piece waits. rate: bytes a second at most; 0 is no limit.
        deaf: what the far end answers is lost.
    """

    listen: str
    upstream: str
    delay: float = 0.0
    rate: float = 0.0
    deaf: bool = False
    connections: set[asyncio.StreamWriter] = field(default_factory=set)
    _passing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._passing.set()

    def heal(self) -> None:
        """All is well again. Connections that lost something are cut: their ends must not wait for it."""
        if self.deaf:
            self.cut()
        self.delay = self.rate = 0.0
        self.deaf = False
        self._passing.set()

    def stall(self) -> None:
        """Nothing passes, in either direction; the connections stay."""
        self._passing.clear()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in list(self.connections):
            writer.transport.abort()

    async def serve(self) -> None:
        """Listen and pass on."""
        if self.listen.startswith("unix:"):
            await asyncio.start_unix_server(self._pass_on, self.listen.removeprefix("unix:"))
        else:
            host, _, port = self.listen.rpartition(":")
            await asyncio.start_server(self._pass_on, host, int(port))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self.connections |= both
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer, answers=False)),
            asyncio.create_task(self._pump(far_reader, writer, answers=True)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        self.connections -= both
        for side in both:
            side.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.upstream.startswith("unix:"):
            return await asyncio.open_unix_connection(self.upstream.removeprefix("unix:"))
        host, _, port = self.upstream.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE):
                await self._passing.wait()
                if self.delay or self.rate:
                    await asyncio.sleep(self.delay + (len(piece) / self.rate if self.rate else 0.0))
                if answers and self.deaf:
                    continue
                writer.write(piece)
                await writer.drain()


async def _obey(wires: dict[str, Wire], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry out orders: ``{"link": name or "*", "do": a key of _ORDERS, "by": number}``."""
    while line := await reader.readline():
        order = json.loads(line)
        for name, wire in wires.items():
            if order["link"] in {name, "*"}:
                _ORDERS[order["do"]](wire, order.get("by", 0.0))
        writer.write(b"ok\n")
        await writer.drain()
    writer.close()


def _deafen(wire: Wire, _: float) -> None:
    wire.deaf = True


def _delay(wire: Wire, by: float) -> None:
    wire.delay = by


def _throttle(wire: Wire, by: float) -> None:
    wire.rate = by


_ORDERS: dict[str, Callable[[Wire, float], None]] = {
    "heal": lambda wire, _: wire.heal(),
    "cut": lambda wire, _: wire.cut(),
    "stall": lambda wire, _: wire.stall(),
    "deafen": _deafen,
    "delay": _delay,
    "throttle": _throttle,
}


async def tell(control: str, link: str, do: str, by: float = 0.0) -> None:
    """Give the proxy whose orders come over the socket ``control`` an order.

    Raises:
        OSError: it does not answer.
    """
    reader, writer = await asyncio.open_unix_connection(control)
    writer.write(json.dumps({"link": link, "do": do, "by": by}).encode() + b"\n")
    answer = await asyncio.wait_for(reader.readline(), 60.0)
    writer.close()
    if answer != b"ok\n":
        raise OSError(f"the proxy did not obey: {do} {link}")


async def _main(control: str, links: dict[str, list[str]]) -> None:
    wires = {name: Wire(listen, upstream) for name, (listen, upstream) in links.items()}
    for wire in wires.values():
        await wire.serve()

    def on_order(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Awaitable[None]:
        return _obey(wires, reader, writer)

    server = await asyncio.start_unix_server(on_order, control)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], json.loads(sys.argv[2])))
