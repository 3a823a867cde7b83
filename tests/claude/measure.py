"""``python -m tests.claude.measure``: what our runner adds to the real CLI, and how soon a reader sees its first words.

Overhead: a whole run of the runner less the time its CLI lived. First words: from the stub sending the first piece of
an answer to an HTTP client reading it as a draft from ``turns up``.
"""

import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.claude.running import Agent, cli, inside
from tests.claude.stub import Stub, says
from tests.ports import free_port
from tests.support import wait_for
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.guard_client import AgentProcesses

RUNS = 12
GOOD = says("Gut. ", *["Noch. "] * 8, "\n\n<!-- STEP: done -->", delay=0.05)


#: Runs the CLI and writes when it began and ended, so that its own time, which varies much, can be taken off.
TIMED = 'echo $EPOCHREALTIME >times; "$CLI" "$@"; code=$?; echo $EPOCHREALTIME >>times; exit $code'


def overhead(root: Path, program: Path, stub: Stub, mode: str) -> tuple[list[float], list[float]]:
    """Seconds of the CLI itself, and what each whole run took beyond that. ``mode`` is ``HELIX_SANDBOX``."""
    agents = AgentProcesses()
    agent = Agent(root, stub, agents, inside(root, program), {"sandbox": mode}).wrapped(TIMED)
    lived, beyond = [], []
    try:
        for _ in range(RUNS):
            ran = agent.run()
            began, ended = map(float, (ran.order.directory / "times").read_text().split())
            lived.append(ended - began)
            beyond.append(ran.seconds - lived[-1])
    finally:
        agents.stop_guard()
    return lived, beyond


@contextlib.contextmanager
def installation(root: Path, program: Path, stub: Stub) -> Iterator[int]:
    """``turns up`` with the real CLI; gives the relay's port."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_") and name != "REDIS_URL"}
    env |= {
        "HELIX_ROOT": str(root),
        "HELIX_MODELS": "helix-consultant=claude_cli",
        "HELIX_CLAUDE_PATH": str(program),
        "HELIX_CLAUDE_API_URL": stub.url,
        "HELIX_CLAUDE_API_KEY": "sk-stub",
    }
    command = [sys.executable, "-c", "from worker.cli import main; main()", "up", "--port", str(port), "--no-flower"]
    with (root / "up.log").open("wb") as log, subprocess.Popen(command, env=env, stdout=log, stderr=log) as up:
        try:
            wait_for(lambda: _ready(port))
            yield port
        finally:
            up.terminate()


def _ready(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False


def first_words(port: int, stub: Stub) -> tuple[list[float], list[float]]:
    """Seconds from the stub's first piece to the client's, and from the request to there."""
    delays, waits = [], []
    for number in range(RUNS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        message = {"role": "user", "content": f"Hallo {number}"}
        body = json.dumps({"model": "helix-consultant", "stream": True, "stream_mode": "draft", "messages": [message]})
        asked = time.monotonic()
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response, first = connection.getresponse(), 0.0
        while line := response.readline():
            if not first and b"Gut." in line:
                first = time.monotonic()
        delays.append(first - stub.spoke_at[-1])
        waits.append(first - asked)
        connection.close()
    return delays, waits


def _told(name: str, seconds: list[float]) -> str:
    ordered = sorted(1000 * value for value in seconds)
    middle = statistics.median(ordered)
    return f"{name}: median {middle:.1f} ms, from {ordered[0]:.1f} to {ordered[-1]:.1f}, n={len(ordered)}"


def main() -> None:
    """Measure and print."""
    program = cli()
    if program is None:
        sys.exit("the Claude CLI is not installed here: `make e2e-claude` installs it")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for mode, where in (("off", "without a sandbox"), ("required", "in a sandbox")):
        if mode == "required" and (problem := bubblewrap.find_obstacle()):
            print(f"no sandbox was measured: {problem}")
            continue
        with tempfile.TemporaryDirectory() as root, Stub([says("Guten Tag")]) as stub:
            lived, beyond = overhead(Path(root), program, stub, mode)
        print(_told(f"the CLI itself, {where}", lived), _told(f"our overhead per run, {where}", beyond), sep="\n")
    with tempfile.TemporaryDirectory() as root, Stub([GOOD]) as stub, installation(Path(root), program, stub) as port:
        delays, waits = first_words(port, stub)
        print(_told("first words, stub to HTTP client", delays), _told("request to first words", waits), sep="\n")


if __name__ == "__main__":
    main()
