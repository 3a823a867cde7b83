"""The process of the model proxies goes on while its worker is frozen, ends with it, and is replaced when it dies."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_model_proxy import BODY, Service, ask, at, outbound
from tests.support import alive, wait_for
from worker.runners.sandbox import call_log, proxy_client

#: A worker that opens a proxy, says where, and does as it is asked: ``stop`` freezes it.
WORKER = """
import os, signal, sys
from pathlib import Path
from worker.runners.sandbox import proxy_client
from worker.runners.sandbox.destinations import AllowedDestinations, Upstream
leads = AllowedDestinations(upstream=Upstream(url=sys.argv[1], paths=frozenset({"/v1/messages"})))
with proxy_client.open_proxy(leads, Path(sys.argv[2]), sandboxed=False) as proxy:
    print(proxy_client._current[0].pid, proxy.address, flush=True)
    input()
    print(proxy.observed_calls().calls[0].status, flush=True)
    input()
"""


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process for the model proxies of this test alone."""
    monkeypatch.setattr(proxy_client, "_current", [])
    yield
    for each in proxy_client._current:
        each.close()


@contextlib.contextmanager
def worker(service: Service, calls: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A worker with a proxy: its process, that of the proxy, and the proxy's address."""
    command = [sys.executable, "-c", WORKER, f"http://127.0.0.1:{service.port}/base", str(calls)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout
        pid, address = started.stdout.readline().split()
        try:
            yield started, int(pid), address
        finally:
            started.kill()


def test_a_model_call_goes_on_while_the_worker_is_frozen_and_it_knows_of_the_call_afterwards(
    service: Service, tmp_path: Path
) -> None:
    service.go.set()
    with worker(service, tmp_path / "calls") as (started, _, address):
        started.send_signal(signal.SIGSTOP)
        assert at(address) == (200, b"first last")
        started.send_signal(signal.SIGCONT)
        assert started.stdin
        assert started.stdout
        started.stdin.write("\n")
        started.stdin.flush()
        assert started.stdout.readline() == "200\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_doors_end_with_their_worker_and_not_before(
    number: signal.Signals, service: Service, tmp_path: Path
) -> None:
    service.go.set()
    with worker(service, tmp_path / "calls") as (started, pid, address):
        os.kill(pid, number)
        assert at(address) == (200, b"first last")
        started.kill()
        wait_for(lambda: not alive(pid))
    with pytest.raises(OSError, match="refused"):
        at(address)
    noted = call_log.read_call_log(tmp_path / "calls")
    assert noted is not None
    assert [call.status for call in noted.calls] == [200]


@pytest.mark.parametrize("recorded", [True, False])
def test_doors_whose_process_died_are_replaced_and_nobody_takes_their_calls_for_ended(
    recorded: bool, service: Service, tmp_path: Path
) -> None:
    service.go.set()
    calls = tmp_path / "calls" if recorded else None
    with proxy_client.open_proxy(outbound(service), calls, sandboxed=True) as first:
        assert ask(Path(first.address), body=BODY)[0] == 200
        assert (first.count_calls(), len(first.observed_calls(1).calls)) == (1, 0)
        os.kill(proxy_client._current[0].pid, signal.SIGKILL)
        [call] = first.observed_calls().calls
        assert (call.end, call.status) == ("unknown", 200 if recorded else 0)
        with pytest.raises(OSError, match="has ended"):
            _ = first.count_calls()
        with proxy_client.open_proxy(outbound(service), None, sandboxed=True) as second:
            assert ask(Path(second.address), body=BODY)[0] == 200


def test_a_door_that_cannot_be_made_says_so_and_the_others_stay(service: Service, tmp_path: Path) -> None:
    service.go.set()
    with proxy_client.open_proxy(outbound(service), None, sandboxed=False) as first:
        with pytest.raises(OSError, match="the model proxy is gone"):
            proxy_client._current[0].send_request("count", 99)
        assert at(first.address)[0] == 200
