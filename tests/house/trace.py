"""What one chat message runs: a real turn through a real ``turns up`` whose processes are traced."""

import ast
import json
import linecache
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.house.structure import code_lines

_SITE = Path(__file__).with_name("site")
#: Messages that are counted, and the byte in ``window`` while nothing is asked (``site/sitecustomize.py``).
_MESSAGES, _IDLE = 5, 255
_RULE = """
- when: invoice {0}
  attempts: [[say: "In archive {0}.\\n\\n<!-- STEP: what -->"]]
"""
_SCRIPT = f"""{"".join(map(_RULE.format, range(1, _MESSAGES + 1)))}
- attempts: [[say: "In the drawer, not in the archive.\\n\\n<!-- STEP: what -->"]]
"""
_UP = (sys.executable, "-c", "from worker.cli import main; main()", "up", "--json")


#: Messages that are answered first, so that no worker process does for the first time what it does once only.
_WARM_ASKS = 8
#: Seconds for which an installation is watched while nothing is asked: several rounds of each of its threads.
_IDLE_SECONDS = 8.0
#: Seconds before that, in which the worker tidies up after the turn.
_SETTLE_SECONDS = 2.0


#: The stages of a message: into the store, through the agent, through the rules, and back to the user.
STAGES = ("request", "run", "judging", "answer")


@dataclass(frozen=True, slots=True)
class Passed:
    """What one message runs in relay and worker; nothing of the guard and of the agent, which is the scripted one.

    Attributes:
        files: the product's Python files, by path.
        idle: those of them that also run while nothing is asked: background work.
        scripts: the number of Lua scripts that the store runs.
        bodies: code lines of the functions run, also of branches that this message does not take.
        functions: functions run, all together and by stage. One that two stages run counts in both.
        lines: code lines run, as functions.
        switches: how often execution passes from a file to another, by call or return, as functions.
        run: each function run, as ``STAGE FILE:LINE NAME``.
    """

    files: tuple[str, ...]
    idle: tuple[str, ...]
    scripts: int
    bodies: int
    functions: Mapping[str, int]
    lines: Mapping[str, int]
    switches: Mapping[str, int]
    run: tuple[str, ...]


def main_path(checkout: Path, folder: Path) -> Passed:
    """What runs between a message's request and its answer.

    Every process has answered some before. Text and answer are new, so that nothing about them is known already.
    Background work of the same moments (heartbeats, the reaper) is counted too: so it is the leanest of five messages.

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
        scripts = [_scripts_of(folder, number, up) for number in range(1, _MESSAGES + 1)]
        with _window(folder, _IDLE):
            time.sleep(_IDLE_SECONDS)
    messages = [_noted(folder / f"{number}.seen") for number in range(1, _MESSAGES + 1)]
    asked, idle = min(messages, key=lambda noted: len(noted["function"])), _noted(folder / f"{_IDLE}.seen")
    files = _names(asked["function"], 1, checkout)
    return Passed(
        tuple(sorted(files)),
        tuple(sorted(files & _names(idle["file"], 0, checkout))),
        min(map(len, scripts)),
        _bodies({(name, int(first)) for _, name, first in asked["function"]}),
        *(_by_stage(asked[kind]) for kind in ("function", "line", "switch")),
        run=tuple(sorted(_listed(asked["function"], checkout))),
    )


def _scripts_of(folder: Path, number: int, up: Mapping[str, str]) -> set[str]:
    """Ask a message and note what runs; returns the Lua scripts that the store ran."""
    with _scripts(up["redis_url"]) as scripts, _window(folder, number):
        _ask(up["web_url"], f"Where is the invoice {number}?")
    time.sleep(_SETTLE_SECONDS)
    return scripts


@contextmanager
def _window(folder: Path, which: int) -> Iterator[None]:
    with (folder / "window").open("r+b", buffering=0) as window:
        window.write(bytes([which]))
        yield
        window.seek(0)
        window.write(b"\0")


def _noted(path: Path) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        kind, *fields = line.split("\t")
        found[kind].append(fields)
    return found


def _names(noted: list[list[str]], field: int, checkout: Path) -> set[str]:
    names = {fields[field] for fields in noted}
    return {str(Path(name).relative_to(checkout)) for name in names if name.endswith(".py")}


def _listed(noted: list[list[str]], checkout: Path) -> Iterator[str]:
    for stage, name, first in noted:
        place = Path(name).relative_to(checkout) if name.startswith(str(checkout)) else Path(name)
        said = linecache.getline(name, int(first)).strip()
        yield f"{stage} {place}:{first} {said}"


def _bodies(functions: set[tuple[str, int]]) -> int:
    """Code lines of the functions that begin (with their decorators) at these lines of these files."""
    found = 0
    for name in {name for name, _ in functions if name.endswith(".py")}:
        text = Path(name).read_text(encoding="utf-8")
        tree = ast.parse(text)
        code, inside = code_lines(text, tree), set[int]()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min(each.lineno for each in (node, *node.decorator_list))
                if (name, first) in functions:
                    inside.update(range(first, (node.end_lineno or first) + 1))
        found += len(code & inside)
    return found


def _by_stage(noted: list[list[str]]) -> dict[str, int]:
    """Different entries (each entry of a switch counts), all together and by stage."""
    if noted and len(noted[0]) == 1:
        return {"all": len(noted), **{stage: noted.count([stage]) for stage in STAGES}}
    stages = {stage: {tuple(rest) for first, *rest in noted if first == stage} for stage in STAGES}
    return {"all": len(set().union(*stages.values())), **{stage: len(found) for stage, found in stages.items()}}


@contextmanager
def _installation(checkout: Path, folder: Path) -> Iterator[dict[str, str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HELIX_", "REDIS_URL"))}
    environ = clean | {
        "HELIX_ROOT": str(folder),
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
