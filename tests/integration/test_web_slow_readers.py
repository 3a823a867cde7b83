"""A reader that stops reading: it costs no memory, is dropped, and misses nothing when it comes back."""

import json
import re
import socket
from pathlib import Path

import httpx2

from api_client.client import TurnsClient
from api_client.contract.events import Event
from api_client.contract.keys import keys_for_turn
from tests.installation import Installation, RelayProcess, asked
from tests.support import wait_until

PIECES, PIECE = 320, "x" * 65_536
ASKED = asked("viel", "s")


async def long_log(client: TurnsClient) -> str:
    """A turn whose log is far longer than all buffers between two sockets: 20 MiB."""
    turn_id = await client.submitter.submit(ASKED)
    turn, keys = await client.reader.read_turn(turn_id), keys_for_turn(client.settings.namespace, turn_id)
    for seq in range(2, PIECES + 2):
        data = {"attempt": 1, "text": PIECE}
        wire = Event(seq=seq, epoch=turn.epoch, at=1.0, kind="attempt.output", data=data).to_dict()
        await client.store.redis.xadd(keys.log(turn_id), {"e": json.dumps(wire)}, id=f"{seq}-0")
    await client.store.redis.hset(keys.turn(turn_id), "seq", PIECES + 1)  # type: ignore[misc]
    return turn_id


def memory(pid: int) -> int:
    """What a process has in memory, in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) // 1024


def stuck(relay: RelayProcess, turn_id: str) -> socket.socket:
    """Somebody who asks for the turn's events and reads none."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", relay.port))
    host = f"Host: 127.0.0.1:{relay.port}"
    connection.sendall(f"GET /v1/turns/{turn_id}/events HTTP/1.1\r\n{host}\r\n\r\n".encode())
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """What had come before the connection was reset."""
    received = b""
    connection.settimeout(60)
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        return received
    raise AssertionError("the connection was closed as if all had been sent")


async def test_a_reader_that_stops_reading_is_dropped_costs_little_and_can_come_back(
    installation: Installation,
) -> None:
    relay, client = installation.relay(stuck_reader_seconds=4.0), installation.client
    turn_id = await long_log(client)
    assert relay.process
    before = memory(relay.process.pid)
    connections = [stuck(relay, turn_id) for _ in range(4)]

    async def readers(count: int) -> bool:
        return await client.reader.count_followers(turn_id) == count

    await wait_until(lambda: readers(1))  # the relay has one subscription for all of them
    await wait_until(lambda: readers(0))  # dropped: nobody listens any more
    assert memory(relay.process.pid) - before < 60  # they would have been sent 80 MiB
    received = rest_of(connections[0])
    ids = re.findall(rb"\nid: (\d+-\w+)\n(?=event: [^\n]*\ndata: [^\n]*\n\n)", received)
    assert 0 <= len(ids) < PIECES
    after = ids[-1].decode() if ids else ""
    seen = [int(name.partition(b"-")[0]) for name in ids]
    pings = 0
    url = f"{relay.url}/v1/turns/{turn_id}/events"
    with httpx2.stream("GET", url, headers={"last-event-id": after} if after else {}, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("id: "):
                seen.append(int(line[4:].partition("-")[0]))
            elif line.startswith(": ping") and (pings := pings + 1) == 2:
                break  # the first opens the stream; after the second everything there is has been sent
    assert seen == list(range(1, PIECES + 2))
    for connection in connections:
        connection.close()
