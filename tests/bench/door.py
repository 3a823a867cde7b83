"""``python -m tests.bench.door``: the cost of the door, in CPU time of 100 kB streamed and in the wait that it adds.

The same answer streams from a service to a client, directly and through the door, in pieces of one event and in bulk.
CPU time is that of the door's thread alone. The wait is that of each event, from its sending to its reading.
"""

import contextlib
import http.client
import json
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from worker.runners.guard.forwarder import Forwarder
from worker.runners.guard.outbound import Outbound, Upstream
from worker.runners.guard.witness import Record

_EVENTS = 400


def _event(number: int) -> bytes:
    said = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": f"word {number} and more"},
    }
    at = time.monotonic()
    body = f"event: content_block_delta\ndata: {json.dumps(said)}\n: {at:.9f} {' ' * 90}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(body), body)


def _serve(listener: socket.socket) -> None:
    """Answer each connection with a stream: in bulk where the body asks for it, else event by event."""
    while True:
        client, _ = listener.accept()
        asked = client.recv(65_536)
        while b"bulk" not in asked and b"each" not in asked:
            asked += client.recv(65_536)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            if b"bulk" in asked:
                client.sendall(b"".join(map(_event, range(_EVENTS))))
            else:
                for number in range(_EVENTS):
                    client.sendall(_event(number))
                    time.sleep(0.002)
            client.sendall(b"0\r\n\r\n")
        client.close()


def _ask(url: str, how: str) -> tuple[list[float], int]:
    """One call: the wait of each event in seconds, and the size of the answer."""
    parts = urlsplit(url)
    client = http.client.HTTPConnection(parts.netloc, timeout=60)
    client.request("POST", f"{parts.path}/v1/messages", json.dumps({"model": "m", "how": how}))
    answer, waits, size = client.getresponse(), [], 0
    while line := answer.readline():
        size += len(line)
        if line.startswith(b": "):
            waits.append(time.monotonic() - float(line.split()[1]))
    client.close()
    return waits, size


def _clock() -> Callable[[], float]:
    """The CPU time of the thread that answers at the doors, in seconds."""
    thread = next(thread for thread in threading.enumerate() if thread.name == "forwarder")
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    return lambda: time.clock_gettime(clock)


def main() -> None:
    """Print the figures."""
    listener = socket.create_server(("127.0.0.1", 0))
    service = multiprocessing.Process(target=_serve, args=(listener,), daemon=True)
    service.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    doors, record = Forwarder(), Record()
    clock = _clock()
    upstream = Upstream(url=url, paths=frozenset({"/v1/messages"}))
    with doors.loopback(Outbound(upstream=upstream), record) as door:
        for how, calls in (("bulk", 40), ("each", 5)):
            _ask(door, how)
            began, size, through, direct = clock(), 0, list[float](), list[float]()
            for _ in range(calls):
                waits, came = _ask(door, how)
                through += waits
                size += came
            cpu = (clock() - began) * 1e8 / size
            for _ in range(calls):
                direct += _ask(url, how)[0]
            added = (statistics.median(through) - statistics.median(direct)) * 1000
            print(f"{how}: {cpu:.2f} ms of CPU time per 100 kB, median wait added {added:.2f} ms")
    ended = {call.end.value for call in record.seen().calls}
    assert ended == {"cut"}, "the stream tells no reason"
    doors.close()
    service.kill()


if __name__ == "__main__":
    main()
