"""The way out of a sandbox leads to one service, with a key that the sandbox does not hold, and to named hosts."""

import contextlib
import http.client
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import certificate, wait_for
from worker.runners.sandbox import model_proxy
from worker.runners.sandbox.call_log import CallLog
from worker.runners.sandbox.destinations import MAX_HEAD, AllowedDestinations, Upstream
from worker.runners.sandbox.model_proxy import MAX_CONNECTIONS, ProxyServer

KEY = "sk-the-real-key"
OURS = {b"x-api-key": KEY, b"authorization": ""}
BODY = b'{"model": "m", "messages": []}'
QUERIES = ("forever", "more", "closes")
JSON = {"content-type": "application/json"}


class Service:
    """A service on loopback that remembers what it is asked; ``go`` lets it finish a streamed answer."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections: set[Any] = set()
        self.go, self.left = threading.Event(), threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                while "transfer-encoding" in self.headers and (size := int(self.rfile.readline(), 16)):
                    body += self.rfile.read(size + 2)[:size]
                headers = {name.lower(): value for name, value in self.headers.items()}
                service.asked.append((self.command, self.path, headers, body))
                service.connections.add(self.client_address)
                self.send_response(200)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(b"6\r\nfirst \r\n")
                    self.wfile.flush()
                    service.go.wait(120)
                    while not service.go.is_set() or self.path.endswith("?forever"):
                        self.wfile.write(b"1\r\n.\r\n")
                    self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n" + b"surplus" * self.path.endswith("?more"))
                    self.close_connection |= self.path.endswith("?closes")
                service.left.set()

            do_GET = do_POST  # noqa: N815 - the server looks for this name

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads, self.server.block_on_close = True, False
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.go.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


@pytest.fixture
def proxy_server() -> Iterator[ProxyServer]:
    made = ProxyServer()
    yield made
    made.close()


def outbound(service: Service, **more: Any) -> AllowedDestinations:
    url = f"http://127.0.0.1:{service.port}/base"
    return AllowedDestinations(
        upstream=Upstream(url=url, paths=frozenset({"/v1/messages"}), ours=OURS, allows=QUERIES), **more
    )


class At(http.client.HTTPConnection):
    """HTTP at a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("proxy", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str = "POST", target: str = "/v1/messages?beta=true", **more: Any) -> tuple[int, bytes]:
    with contextlib.closing(At(path)) as http:
        http.request(method, target, **{"headers": JSON, **more})
        answer = http.getresponse()
        return answer.status, answer.read()


def raw(path: Path, sent: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(path))
        with contextlib.suppress(OSError):
            client.sendall(sent)
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(65_536):
                found += piece
        return found


def test_a_request_gets_our_key_in_place_of_its_own_and_the_answer_comes_back(
    proxy_server: ProxyServer, service: Service
) -> None:
    service.go.set()
    with proxy_server.open_socket_proxy(outbound(service)) as path:
        mine = {
            **JSON,
            "x-api-key": "placeholder",
            "Authorization": "Bearer mine",
            "anthropic-beta": "x",
            "Host": "elsewhere",
        }
        assert ask(path, body=BODY, headers=mine) == (200, b"first last")
    [(method, target, headers, body)] = service.asked
    assert (method, target, body) == ("POST", "/base/v1/messages?beta=true", BODY)
    assert (headers["x-api-key"], headers["anthropic-beta"]) == (KEY, "x")
    assert headers["host"] == f"127.0.0.1:{service.port}"
    assert "authorization" not in headers


def test_what_the_service_sends_is_there_before_it_sends_more(proxy_server: ProxyServer, service: Service) -> None:
    with proxy_server.open_socket_proxy(outbound(service)) as path, contextlib.closing(At(path)) as http:
        http.request("POST", "/v1/messages", body=BODY, headers=JSON)
        answer = http.getresponse()
        assert answer.read(6) == b"first "
        service.go.set()
        assert answer.read() == b"last"


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/files"),
        ("GET", "/v1/messages"),
        ("POST", "/v1/messages/../files"),
        ("POST", "/v1/messages%2f..%2ffiles"),
        ("POST", "/V1/messages"),
        ("POST", "http://169.254.169.254/latest/meta-data"),
        ("POST", "//127.0.0.1/v1/messages"),
    ],
)
def test_nothing_else_of_the_service_and_no_other_service_is_reached(
    proxy_server: ProxyServer, service: Service, method: str, target: str
) -> None:
    with proxy_server.open_socket_proxy(outbound(service)) as path:
        status, body = ask(path, method, target, body=BODY)
    assert (status, service.asked) == (403, [])
    assert b"the sandbox leads to its model alone" in body


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY),
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    ],
    ids=["length", "chunks"],
)
def test_a_request_hidden_behind_another_never_leaves(
    proxy_server: ProxyServer, service: Service, framing: bytes
) -> None:
    service.go.set()
    first = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + framing
    hidden = b"GET /base/v1/files HTTP/1.1\r\nHost: x\r\n\r\n"
    with proxy_server.open_socket_proxy(outbound(service)) as path:
        answer = raw(path, first + hidden)
    assert answer.startswith(b"HTTP/1.1 200")
    assert [target for _, target, _, _ in service.asked] == ["/base/v1/messages"]


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 2 * MAX_HEAD + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
    ],
    ids=["two lengths", "no length", "head too large", "not HTTP"],
)
def test_what_is_no_request_is_refused(proxy_server: ProxyServer, service: Service, sent: bytes) -> None:
    with proxy_server.open_socket_proxy(outbound(service)) as path:
        answer = raw(path, sent)
    assert (answer[:10], service.asked) == (b"HTTP/1.1 4", [])


def asks_on_a_kept_connection(path: Path, service: Service) -> bool:
    before = len(service.connections)
    return ask(path, body=BODY)[0] == 200 and len(service.connections) == before


@pytest.mark.parametrize(("first", "connections"), [("", 1), ("?closes", 2), ("?more", 2)])
def test_a_connection_serves_the_next_request_unless_it_is_spoilt(
    proxy_server: ProxyServer, service: Service, first: str, connections: int
) -> None:
    service.go.set()
    with (
        proxy_server.open_socket_proxy(outbound(service)) as path,
        proxy_server.open_socket_proxy(outbound(service)) as other,
    ):
        assert ask(path, target=f"/v1/messages{first}", body=BODY)[0] == 200
        if first == "?closes":
            wait_for(lambda: not threading_of(service))
        assert ask(path, body=BODY) == (200, b"first last")
        if connections == 1:  # the proxy may not have put it back yet when the answer has come
            wait_for(lambda: asks_on_a_kept_connection(path, service))
        else:
            assert len(service.connections) == connections
        there = len(service.connections)
        assert ask(other, body=BODY)[0] == 200
        assert len(service.connections) == there + 1, "another run has its own"


def test_a_connection_that_is_not_used_ends(
    proxy_server: ProxyServer, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_proxy, "_IDLE_SECONDS", 0.1)
    service.go.set()
    with proxy_server.open_socket_proxy(outbound(service)) as path:
        assert ask(path, body=BODY)[0] == 200
        wait_for(lambda: not threading_of(service))


def threading_of(service: Service) -> list[threading.Thread]:
    """The threads of its open connections."""
    return [each for each in threading.enumerate() if "process_request_thread" in each.name and service.server]


def test_a_body_is_read_whole_and_only_so_much_of_all_bodies_of_a_run_is_held(
    proxy_server: ProxyServer, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_proxy, "MAX_BODY", 1000)
    service.go.set()
    record = CallLog()
    head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"
    with proxy_server.open_socket_proxy(outbound(service), record) as path, contextlib.ExitStack() as held:
        for _ in range(2):
            client = held.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(path))
            client.sendall(head + b"x" * 899)
        wait_for(lambda: len(record.observed_calls().calls) == 2)
        status, said = ask(path, body=BODY + b" " * 900)
        assert (status, b"more than 1000 bytes" in said) == (413, True)
        assert ask(path, body=BODY + b" " * 2000)[0] == 413
        assert service.asked == [], "nothing leaves before all of it was read"
        held.close()
        wait_for(lambda: all(call.ended for call in record.observed_calls().calls))
        assert ask(path, body=BODY + b" " * 900)[0] == 200
    assert [call.status for call in record.observed_calls().calls if call.status] == [413, 413, 200]


def test_a_service_that_cannot_be_reached_says_so(proxy_server: ProxyServer, service: Service) -> None:
    service.close()
    with proxy_server.open_socket_proxy(outbound(service)) as path:
        status, body = ask(path, body=BODY)
    assert (status, b"cannot be reached" in body) == (502, True)


def test_a_client_that_leaves_takes_its_request_along(proxy_server: ProxyServer, service: Service) -> None:
    with proxy_server.open_socket_proxy(outbound(service)) as path:
        with contextlib.closing(At(path)) as http:
            http.request("POST", "/v1/messages?forever", body=BODY, headers=JSON)
            http.getresponse().read(6)
        service.go.set()
        assert service.left.wait(60)


def test_one_run_has_so_many_connections_and_no_more_and_others_still_get_through(
    proxy_server: ProxyServer, service: Service
) -> None:
    service.go.set()
    with (
        proxy_server.open_socket_proxy(outbound(service)) as path,
        proxy_server.open_socket_proxy(outbound(service)) as other,
        contextlib.ExitStack() as held,
    ):
        for _ in range(MAX_CONNECTIONS):
            client = held.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(path))
        assert raw(path, b"") == b""
        assert ask(other, body=BODY)[0] == 200


def test_a_proxy_goes_with_its_run_and_all_that_went_through_it(proxy_server: ProxyServer, service: Service) -> None:
    with proxy_server.open_socket_proxy(outbound(service)) as path:
        asking = At(path)
        asking.request("POST", "/v1/messages", body=BODY, headers=JSON)
        answer = asking.getresponse()
        answer.read(6)
    with contextlib.suppress(http.client.HTTPException, OSError):
        assert answer.read() == b""
    asking.close()
    assert not path.exists()


def test_over_tls_the_service_must_be_who_it_says(proxy_server: ProxyServer, tmp_path: Path) -> None:
    own = certificate(tmp_path)
    service = Service(own)
    service.go.set()
    try:
        trusting = outbound(service, ca=str(own))
        upstream = trusting.upstream
        assert upstream is not None
        trusting = replace(trusting, upstream=replace(upstream, url=upstream.url.replace("http:", "https:")))
        with (
            proxy_server.open_socket_proxy(trusting) as path,
            proxy_server.open_socket_proxy(replace(trusting, ca="")) as stranger,
        ):
            assert ask(path, body=BODY) == (200, b"first last")
            status, body = ask(stranger, body=BODY)
            assert (status, b"certificate verify failed" in body) == (502, True)
    finally:
        service.close()
    assert len(service.asked) == 1


def connect(path: Path, target: str, sent: bytes = b"") -> bytes:
    """The answer to CONNECT, and what comes through the tunnel once ``sent`` went in."""
    return raw(path, f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode() + sent)


REQUEST = b"POST /any HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def test_named_hosts_are_reached_by_connect_and_no_other_host_or_port_is(
    proxy_server: ProxyServer, service: Service
) -> None:
    service.go.set()
    named = AllowedDestinations(hosts=(f"127.0.0.1:{service.port}", f"*.example.test:{service.port}"))
    with proxy_server.open_socket_proxy(named) as path:
        answer = connect(path, f"127.0.0.1:{service.port}", REQUEST)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"first" in answer
        for target in (
            f"127.0.0.2:{service.port}",
            "127.0.0.1:1",
            f"example.test:{service.port}",
            f"aexample.test:{service.port}",
            f"127.0.0.1.:{service.port}x",
            "169.254.169.254:80",
            "127.0.0.1",
        ):
            assert connect(path, target, REQUEST).startswith(b"HTTP/1.1 403"), target
        assert ask(path, body=BODY)[0] == 403, "no service was named"
    assert len(service.asked) == 1


def test_a_named_host_that_turns_out_to_be_this_machine_is_refused(proxy_server: ProxyServer, service: Service) -> None:
    """Whoever owns the name decides where it leads, also to what listens here."""
    here = socket.gethostname()
    try:
        address = socket.gethostbyname(here)
    except OSError:
        pytest.skip(f"{here} has no address here")
    if not address.startswith("127."):
        pytest.skip(f"{here} is {address}, no loopback address")
    with proxy_server.open_socket_proxy(AllowedDestinations(hosts=(f"{here.lower()}:{service.port}",))) as path:
        answer = connect(path, f"{here}:{service.port}", REQUEST)
    assert (answer[:12], b"an internal address" in answer) == (b"HTTP/1.1 403", True)


def test_the_outside_is_reached_through_the_installations_proxy(proxy_server: ProxyServer, service: Service) -> None:
    service.go.set()
    with (
        proxy_server.open_socket_proxy(AllowedDestinations(hosts=(f"127.0.0.1:{service.port}",))) as proxy,
        socket.socket() as listener,
    ):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        heads: list[bytes] = []

        def carry() -> None:
            asker, _ = listener.accept()
            with asker, socket.socket(socket.AF_UNIX) as onward:
                heads.append(asker.recv(65_536))
                onward.connect(str(proxy))
                onward.sendall(heads[0])
                asker.sendall(onward.recv(65_536))
                onward.sendall(asker.recv(65_536))
                while piece := onward.recv(65_536):
                    asker.sendall(piece)

        threading.Thread(target=carry, daemon=True).start()
        url = f"http://user:p%40ss@127.0.0.1:{listener.getsockname()[1]}"
        with proxy_server.open_socket_proxy(
            AllowedDestinations(hosts=(f"127.0.0.1:{service.port}",), proxy=url)
        ) as path:
            assert b"first" in connect(path, f"127.0.0.1:{service.port}", REQUEST)
    assert b"Proxy-Authorization: Basic dXNlcjpwQHNz" in heads[0]


def test_the_doors_of_a_worker_that_was_killed_are_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = "from worker.runners.sandbox.model_proxy import ProxyServer; ProxyServer(); print('up', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"up\n"
        [folder] = tmp_path.glob("helix-net-*")
        assert folder.stat().st_mode & 0o077 == 0, "nobody else may use the key"
        assert model_proxy.sweep_folders() == 0, "it lives"
        other.send_signal(signal.SIGKILL)
    assert model_proxy.sweep_folders() == 1
    assert not folder.exists()


def at(url: str, target: str = "/v1/messages", body: bytes = BODY) -> tuple[int, bytes]:
    """Ask a proxy on loopback."""
    parts = urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)) as client:
        client.request("POST", parts.path + target, body, JSON | {"accept-encoding": "gzip, br"})
        answer = client.getresponse()
        return answer.status, answer.read()


def test_a_run_without_a_box_has_a_door_on_loopback_that_nobody_else_can_ask(
    proxy_server: ProxyServer, service: Service
) -> None:
    service.go.set()
    record = CallLog()
    with proxy_server.open_loopback_proxy(outbound(service), record) as url:
        assert at(url) == (200, b"first last")
        root = url.rpartition("/")[0]
        assert at(root)[0] == 403
        assert at(f"{root}/guessed")[0] == 403
    [(_, target, headers, _)] = service.asked
    assert (target, headers["x-api-key"], headers["accept-encoding"]) == ("/base/v1/messages", KEY, "identity")
    assert [(call.status, call.end) for call in record.observed_calls().calls] == [(200, "unknown")]
    with pytest.raises(OSError, match="refused"):
        at(url)


def test_a_call_that_its_agent_left_was_cut_and_one_to_a_service_that_is_away_failed(
    proxy_server: ProxyServer, service: Service
) -> None:
    record = CallLog()
    with proxy_server.open_socket_proxy(outbound(service), record) as path:
        with contextlib.closing(At(path)) as client:
            client.request("POST", "/v1/messages", BODY, JSON)
            client.getresponse().read(6)
        wait_for(lambda: record.observed_calls().calls[0].ended > 0)
        assert ask(path, target="/v1/messages/count_tokens", body=BODY)[0] == 403
    away = Upstream(url="http://127.0.0.1:1", paths=frozenset({"/v1/messages"}))
    with proxy_server.open_socket_proxy(AllowedDestinations(upstream=away), record) as path:
        assert ask(path, body=BODY)[0] == 502
    found = [(call.end, call.status, call.word) for call in record.observed_calls().calls]
    assert found == [("cut", 200, ""), ("error", 0, "unreachable")]


@pytest.mark.parametrize(
    ("method", "target", "passes"),
    [
        ("POST", "/v1beta/models/gemini-2.5-pro:generateContent", True),
        ("POST", "/v1beta/models/a/b:generateContent", False),
        ("POST", "/v1beta/models/..:generateContent", False),
        ("POST", "/v1beta/models/%2e%2e:generateContent", False),
        ("GET", "/v1/models", True),
        ("POST", "/v1/models", False),
        ("GET", "/v1beta/models/x:generateContent", False),
    ],
)
def test_a_path_may_name_any_model_and_some_may_only_be_read(method: str, target: str, passes: bool) -> None:
    leads = Upstream(
        url="http://x", paths=frozenset({"/v1beta/models/*:generateContent"}), reads=frozenset({"/v1/models"})
    )
    assert leads.accepts_request(method.encode(), target) is passes
