"""Which files one chat message passes: a real turn through a real ``turns up`` whose processes are traced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

_SITE = Path(__file__).with_name("site")
_SCRIPT = """
- when: invoice
  attempts: [[say: "In the archive.\\n\\n<!-- STEP: what -->"]]
- attempts: [[say: "In the drawer, not in the archive.\\n\\n<!-- STEP: what -->"]]
"""
_UP = (sys.executable, "-c", "from worker.cli import main; main()", "up", "--json")


#: Messages that are answered first, so that no worker process does for the first time what it does once only.
_WARM_ASKS = 8
#: Seconds for which an installation is watched while nothing is asked: several rounds of each of its threads.
_IDLE_SECONDS = 8.0
#: Seconds before that, in which the worker tidies up after the turn.
_SETTLE_SECONDS = 2.0


def main_path(checkout: Path, folder: Path) -> tuple[list[str], list[str], int]:
    """The product's Python files that run between a message's request and its answer, and the number of Lua scripts.

    The message is the ninth: every process has answered some. Its text and its answer are new, so that nothing about
    them is known already.
    Background work of the same moments (heartbeats, the reaper) is counted too; the second list names those of the
    files that also run while nothing is asked. What runs in the processes of the guard and of the agent, which is the
    scripted one, is not.

    Args:
        checkout: a copy of ``api_client`` and ``worker``; it is changed so that every process can be traced.
        folder: an empty folder for the installation and its traces.
    """
    for path in checkout.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if '"-S", "-P", "-m"' in text:  # Python without `site` would not load the tracer
            path.write_text(text.replace('"-S", "-P", "-m"', '"-P", "-m"'), encoding="utf-8")
    (folder / "window").write_bytes(b"\0")
    (folder / "script.yaml").write_text(_SCRIPT)
    with _installation(checkout, folder) as up:
        for _ in range(_WARM_ASKS):
            _ask(up["web_url"], "Where is the key?")
        with _scripts(up["redis_url"]) as scripts:
            (folder / "window").open("r+b").write(b"\1")
            _ask(up["web_url"], "Where is the invoice?")
            (folder / "window").open("r+b").write(b"\0")
        time.sleep(_SETTLE_SECONDS)
        (folder / "window").open("r+b").write(b"\2")
        time.sleep(_IDLE_SECONDS)
        (folder / "window").open("r+b").write(b"\0")
    asked, idle = _names(folder / "files", checkout), _names(folder / "idle", checkout)
    return sorted(asked), sorted(asked & idle), len(scripts)


def _names(path: Path, checkout: Path) -> set[str]:
    return {str(Path(name).relative_to(checkout)) for name in path.read_text().splitlines() if name.endswith(".py")}


@contextmanager
def _installation(checkout: Path, folder: Path) -> Iterator[dict[str, str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HELIX_", "REDIS_URL"))}
    environ = clean | {
        "HELIX_ROOT": str(folder),
        "HELIX_WEB_PORT": "0",
        "HELIX_FLOWER_PORT": "0",
        "HELIX_MODELS": "traced=scripted:script.yaml",
        "HOUSE_TRACE": str(folder),
        "HOUSE_PRODUCT": str(checkout),
        "PYTHONPATH": f"{_SITE}{os.pathsep}{checkout}",
    }
    process = subprocess.Popen(_UP, env=environ, cwd=checkout, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def _scripts(url: str) -> Iterator[set[str]]:
    """The Lua scripts that the store runs, by hash."""
    found: set[str] = set()
    ready, over = threading.Event(), threading.Event()

    def listen() -> None:
        with redis.Redis.from_url(url) as store, store.monitor() as monitor:
            ready.set()
            for line in monitor.listen():
                name, _, rest = line["command"].partition(" ")
                if name.upper() == "EVALSHA":
                    found.add(rest.partition(" ")[0])
                if over.is_set():
                    return

    listening = threading.Thread(target=listen)
    listening.start()
    ready.wait()
    yield found
    over.set()
    with redis.Redis.from_url(url) as store:
        store.ping()
    listening.join()


def _ask(url: str, message: str) -> None:
    body = {"model": "traced", "stream": True, "messages": [{"role": "user", "content": message}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        said = answer.read().decode()
    assert "[DONE]" in said, said
    assert "archive" in said, said
