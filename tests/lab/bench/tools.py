"""Measures a call of a tool through the gateway beside the same call made directly, in one run.

``python -m tests.lab.bench.tools [ROUNDS]`` (300) prints medians in milliseconds. An agent of a real worker makes the
calls with the SDK's client: to a server of its own over standard streams, to one over HTTP, and through the model proxy
and the gateway, in turn. The gateway's own server is the same program over standard streams.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from api_client.contract.settings import Settings
from tests.installation import Installation, settings_on
from tests.ports import free_port
from tests.tools.running import HERE, PYTHON, counting, equip
from worker.logs import configure_logging
from worker.processes.embedded_broker import EmbeddedBroker

_SERVER = str(HERE / "counting_server.py")
_WARM_UP = 20


async def measure_calls(rounds: int, port: int, folder: Path) -> dict[str, list[float]]:
    """Return the milliseconds of each call, by way; run by the agent."""
    from mcp import Client, StdioServerParameters

    started = StdioServerParameters(command=PYTHON, args=[_SERVER, str(folder / "direct")])
    took: dict[str, list[float]] = {}
    async with (
        Client(started) as streams,
        Client(f"http://127.0.0.1:{port}/mcp") as http,
        Client(os.environ["HELIX_TOOLS_URL"]) as gateway,
    ):
        ways = {
            "direct, standard streams": (streams, ""),
            "direct, HTTP": (http, ""),
            "gateway": (gateway, "counter__"),
        }
        for client, _ in ways.values():
            await client.list_tools()
        for number in range(-_WARM_UP, rounds):
            for name, (client, prefix) in ways.items():
                for tool, arguments in (("read", {}), ("environment", {"name": "LANG"})):
                    begun = time.perf_counter()
                    result = await client.call_tool(f"{prefix}{tool}", arguments)
                    if number >= 0:
                        took.setdefault(f"{name}, {tool}", []).append((time.perf_counter() - begun) * 1000)
                    if result.is_error:
                        raise SystemExit(f"{name}: {result.content}")
    return took


async def run_bench(rounds: int, directory: Path) -> dict[str, list[float]]:
    """Let an agent of a real worker measure its calls."""
    port = free_port()
    quiet, command = subprocess.DEVNULL, [PYTHON, _SERVER, str(directory / "other"), str(port)]
    other = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    with EmbeddedBroker(directory / "broker") as broker:
        installation = Installation(settings_on(broker, directory / "root", locale="en"))
        try:
            root = installation.settings.root
            equip(installation, counting(root, writes="allow"))
            words = ["-m", "tests.lab.bench.tools", "--agent", str(rounds), str(port), str(directory)]
            agent = {"program": PYTHON, "arguments": words, "environment": {"PYTHONPATH": str(Path.cwd())}}
            (root / "agent.yaml").write_text(json.dumps({**agent, "complete": {"exit_codes": [0]}}))
            installation.worker()
            turn = await installation.answer("measure", model="m", validators=())
            await installation.client.close()
            if not turn.response:
                raise SystemExit(str(turn))
            found: dict[str, list[float]] = json.loads((directory / "measured").read_text())
            return found
        finally:
            installation.stop()
            other.kill()
            other.wait()


def main() -> None:
    """Print a table, or measure as the agent."""
    if sys.argv[1:2] == ["--agent"]:
        rounds, port, folder = sys.argv[2:]
        measured = asyncio.run(measure_calls(int(rounds), int(port), Path(folder)))
        (Path(folder) / "measured").write_text(json.dumps(measured))
        print("measured\n\n<!-- STEP: done -->")
        return
    configure_logging(Settings(log_level="error"))
    with tempfile.TemporaryDirectory() as directory:
        took = asyncio.run(run_bench(int((sys.argv[1:] or ["300"])[0]), Path(directory)))
    print("| way, tool | median ms | 90 % ms |\n| --- | --- | --- |")
    for name, values in took.items():
        print(f"| {name} | {statistics.median(values):.2f} | {statistics.quantiles(values, n=10)[-1]:.2f} |")
    for tool in ("read", "environment"):
        direct, ours = (statistics.median(took[f"{way}, {tool}"]) for way in ("direct, standard streams", "gateway"))
        print(f"added by the gateway to `{tool}`: {ours - direct:.2f} ms")


if __name__ == "__main__":
    main()
