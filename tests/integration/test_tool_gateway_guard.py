"""The guard of the tool gateway: nothing of a gateway outlives its worker, whatever state the gateway is in."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from api_client.contract.settings import Settings
from tests.installation import Installation, children_of
from tests.support import processes_with, wait_for, wait_until
from tests.tools.running import call, counting, equip, gateways
from worker.plugins.tools import gateway_client

WORKER = """
import os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
given = f"({sys.argv[1:]!r}, {theirs.fileno()}, {os.getpid()}, 0.1)"
code = f"import sys; from worker.plugins.tools.gateway_guard import guard_gateway; sys.exit(guard_gateway{given})"
guard = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()])
theirs.close()
ours.recv(1)
raise SystemExit(guard.wait() % 256)
"""
GATEWAY = """
import os, signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
"""
ENDS = {"busy": "while True: pass", "stopped": "os.kill(os.getpid(), signal.SIGSTOP)", "ends": "sys.exit(7)"}


def start_worker(end: str, tmp_path: Path) -> subprocess.Popen[bytes]:
    gateway = [sys.executable, "-c", GATEWAY + ENDS[end]]
    return subprocess.Popen([sys.executable, "-c", WORKER, *gateway], env={**os.environ, "GUARDED": str(tmp_path)})


@pytest.mark.parametrize("end", ["busy", "stopped"])
def test_a_blocked_gateway_dies_with_its_worker_and_so_do_the_servers_that_it_started(end: str, tmp_path: Path) -> None:
    with start_worker(end, tmp_path) as worker:
        wait_for(lambda: len(processes_with(f"GUARDED={tmp_path}")) == 4)
        worker.kill()
        wait_for(lambda: not processes_with(f"GUARDED={tmp_path}"))


def test_a_gateway_that_ends_leaves_no_server_and_its_exit_code(tmp_path: Path) -> None:
    with start_worker("ends", tmp_path) as worker:
        assert worker.wait(30) == 7
        assert not processes_with(f"GUARDED={tmp_path}")


def test_a_gateway_whose_guard_is_killed_dies(tmp_path: Path) -> None:
    with start_worker("busy", tmp_path) as worker:
        wait_for(lambda: len(processes_with(f"GUARDED={tmp_path}")) == 4)
        found = processes_with(f"GUARDED={tmp_path}")
        [guard] = [pid for pid, command in found.items() if "guard_gateway" in command and pid != worker.pid]
        [gateway] = [
            pid for pid, command in found.items() if "while True" in command and pid not in {worker.pid, guard}
        ]
        os.kill(guard, signal.SIGKILL)
        wait_for(lambda: gateway not in processes_with(f"GUARDED={tmp_path}"))
        for pid in processes_with(f"GUARDED={tmp_path}"):
            os.kill(pid, signal.SIGKILL)


def test_a_run_hears_at_once_that_its_gateway_died_though_the_servers_are_still_being_ended(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "_TO_END", 3_600)
    gateway, heard = gateway_client.GatewayProcess(settings), threading.Event()
    named = dict.fromkeys(("turn_id", "token", "owner", "locale", "folder"), "")
    gateway.open_run({**named, "attempt": 1, "delivery": 1, "servers": [], "secrets": []}, lambda _: heard.set())
    [child] = children_of(gateway.pid)
    os.kill(gateway.pid, signal.SIGSTOP)  # the guard
    try:
        os.kill(child, signal.SIGKILL)
        assert heard.wait(60)
    finally:
        os.kill(gateway.pid, signal.SIGCONT)
    gateway._process.wait(60)


@pytest.mark.long
async def test_a_stopped_gateway_of_a_killed_worker_ends_within_a_minute(installation: Installation) -> None:
    counts = equip(installation, counting(installation.settings.root, writes="allow"))
    worker = installation.worker()
    await call(installation, ("counter__write", {"note": "slow", "wait": True}))
    await wait_until(counts.with_suffix(".begun").exists)
    [gateway] = gateways(installation)
    os.kill(gateway, signal.SIGSTOP)
    worker.kill()
    servers = f"HOME={installation.settings.root}/.helix/tools"
    assert processes_with(servers)
    wait_for(lambda: not gateways(installation) and not processes_with(servers), 90)
