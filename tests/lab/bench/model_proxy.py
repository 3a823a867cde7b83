"""``python -m tests.lab.bench.model_proxy``: what the model proxy costs in CPU time of 100 kB streamed, and in waiting.

The same answer streams from a service to a client: directly, through it, and through a relay that makes the
system calls alone (``floor``: a thread that receives and sends). An answer is one event long, or ``_EVENTS``: in bulk
or event by event. CPU time is that of the thread that passes it on. The wait is that of each event, from its sending
to its reading.
"""

import contextlib
import http.client
import json
import multiprocessing
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from tests.support import certificate
from worker.runners.sandbox.call_log import CallLog
from worker.runners.sandbox.destinations import AllowedDestinations, Upstream
from worker.runners.sandbox.model_proxy import ProxyServer

#: Of 250 bytes each: 100 kB.
_EVENTS = 400
#: How an answer comes, and how many of them are asked for.
_WAYS = {"short": 60, "bulk": 60, "each": 4}
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(number: int) -> bytes:
    said = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": f"word {number} and more"},
    }
    at = time.monotonic()
    body = f"event: content_block_delta\ndata: {json.dumps(said)}\n: {at:.9f} {' ' * 90}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(body), body)


def _serve(listener: socket.socket, own: Path | None) -> None:
    """Answer each connection with a stream in the way that its request names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if own:
        context.load_cert_chain(own)
    while True:
        client, _ = listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = context.wrap_socket(client, server_side=True) if own else client
        asked = b""
        while not (way := next((way for way in _WAYS if f'"{way}"'.encode() in asked), "")):
            asked += client.recv(65_536)
        with contextlib.suppress(OSError):
            client.sendall(_HEAD)
            if way == "each":
                for number in range(_EVENTS):
                    client.sendall(_event(number))
                    time.sleep(0.002)
            else:
                client.sendall(b"".join(map(_event, range(1 if way == "short" else _EVENTS))))
            client.sendall(b"0\r\n\r\n")
        client.close()


def _floor(listener: socket.socket, port: int) -> None:
    """Pass connections on, one after the other."""
    buffer = memoryview(bytearray(65_536))
    while True:
        asker, _ = listener.accept()
        with asker, socket.create_connection(("127.0.0.1", port)) as service:
            asked = b""
            while b"max_tokens" not in asked:
                asked += asker.recv(65_536)
            service.sendall(asked)
            while size := service.recv_into(buffer):
                asker.sendall(buffer[:size])


def _ask(url: str, way: str) -> tuple[list[float], int]:
    """One call: the wait of each event in seconds, and the size of the answer."""
    parts = urlsplit(url)
    client = http.client.HTTPConnection(parts.netloc, timeout=60)
    body = {"model": "m", "messages": [{"role": "user", "content": way}], "max_tokens": 1}
    headers = {"content-type": "application/json"}
    client.request("POST", f"{parts.path}/v1/messages", json.dumps(body), headers)
    answer, waits, size = client.getresponse(), [], 0
    assert answer.status == 200, answer.read()
    while line := answer.readline():
        size += len(line)
        if line.startswith(b": "):
            waits.append(time.monotonic() - float(line.split()[1]))
    client.close()
    return waits, size


def _clock(name: str) -> Callable[[], float]:
    """The CPU time of a thread, in seconds."""
    thread = next(thread for thread in threading.enumerate() if thread.name == name)
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    return lambda: time.clock_gettime(clock)


def _measure(name: str, url: str, thread: str, direct: str = "") -> None:
    """Print what each way costs at an address."""
    clock, call = _clock(thread), 0.0
    for way, calls in _WAYS.items():
        _ask(url, way)
        costs, waits, bare, size = list[float](), list[float](), list[float](), 0
        for _ in range(calls):
            began = clock()
            came, size = _ask(url, way)
            costs.append(clock() - began)
            waits += came
            bare += _ask(direct, way)[0] if direct else ()
        cost = statistics.median(costs) * 1000
        if way == "short":
            call = cost
            print(f"{name}: {cost:.2f} ms of CPU time a call", end="")
            continue
        of_100_kb = (cost - call) * 1e5 / size
        print(f"; 100 kB {way}: {of_100_kb:.2f} ms", end="")
        if direct and way == "each":
            print(f", median wait added {(statistics.median(waits) - statistics.median(bare)) * 1000:.2f} ms", end="")
    print()


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        own = certificate(Path(folder))
        proxy_server, record, services = ProxyServer(), CallLog(), list[multiprocessing.Process]()
        for tls in (None, own):
            listener = socket.create_server(("127.0.0.1", 0))
            services.append(multiprocessing.Process(target=_serve, args=(listener, tls), daemon=True))
            services[-1].start()
            port = listener.getsockname()[1]
            url = f"http{'s' * bool(tls)}://127.0.0.1:{port}"
            if not tls:
                relay = socket.create_server(("127.0.0.1", 0))
                threading.Thread(target=_floor, args=(relay, port), name="floor", daemon=True).start()
                _measure("floor", f"http://127.0.0.1:{relay.getsockname()[1]}", "floor")
            upstream = Upstream(url=url, paths=frozenset({"/v1/messages"}))
            with proxy_server.open_loopback_proxy(
                AllowedDestinations(upstream=upstream, ca=str(own)), record
            ) as model_proxy:
                _measure("model proxy, TLS" if tls else "model proxy", model_proxy, "model proxy", "" if tls else url)
        assert {call.end.value for call in record.observed_calls().calls} == {"cut"}, "the stream tells no reason"
        proxy_server.close()
        for service in services:
            service.kill()


if __name__ == "__main__":
    main()
