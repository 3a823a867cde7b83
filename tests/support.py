"""What tests of real processes need: an agent that plays a script, waiting for a condition, finding what is left."""

import asyncio
import contextlib
import inspect
import json
import os
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.settings import Settings

#: A condition that holds at all holds within so long, also on a machine that stutters: no measure of our speed. Where a
#: mutant is in the sources most conditions never hold (``tests/fault/mutant_runs.py``).
WAIT_SECONDS = float(os.environ.get("TESTS_WAIT_SECONDS", "120"))


async def wait_until(
    condition: Callable[[], Any | Awaitable[Any]], seconds: float = WAIT_SECONDS, *, tick: float = 0.02
) -> Any:
    """Ask until the answer is true, and return it. ``condition`` may be a coroutine function.

    Raises:
        AssertionError: it never was, within ``seconds``; names the condition and the last answer.
    """
    until = time.monotonic() + seconds
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < until, (
            f"not within {seconds:g} s: {inspect.getsource(condition).strip()} ({answer!r})"
        )
        await asyncio.sleep(tick)


def wait_for(condition: Callable[[], Any], seconds: float = WAIT_SECONDS, *, tick: float = 0.02) -> Any:
    """As ``wait_until``, for tests that are not coroutines."""
    until = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < until, (
            f"not within {seconds:g} s: {inspect.getsource(condition).strip()} ({answer!r})"
        )
        time.sleep(tick)
    return answer


async def passes(seconds: float, why: str) -> None:
    """Let time pass where time itself is what a test needs: how long a fault lasts, how fast a load comes.

    ``why`` is for the reader. What may come at any time is waited for with ``wait_until``.
    """
    assert why
    await asyncio.sleep(seconds)


async def stays(condition: Callable[[], Awaitable[Any]], seconds: float, *, tick: float = 0.1) -> None:
    """Ask for so long whether something is still so: for what must not happen, which no event announces."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert await condition(), f"no longer so: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(tick)


def certificate(folder: Path) -> Path:
    """A self-made certificate for 127.0.0.1 with its key, in one file; made by openssl, so a test may be skipped."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    path = folder / "own.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=stub", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(path), "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


def alive(pid: int) -> bool:
    """True while a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_of(pid: int) -> bytes:
    """A process's command line with NUL between its words; empty when it has gone. A fork has its parent's at first."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def processes_with(marker: str) -> dict[int, str]:
    """Processes whose environment or command line holds a text, with their command lines; ours excepted."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            environ = (entry / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if marker.encode() in environ + command and alive(int(entry.name)):
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file to which others append lines; the last one may be half written."""
    if path.exists():
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(read := json.loads(line), dict):
                    yield read


def put(path: Path, text: str) -> None:
    """Give a file its text all at once, so that a process that reads it just then finds the old one or the new one."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text)
    draft.rename(path)


def playing(
    settings: Settings, script: str, model: str = "scripted", runner: str = "scripted", **changes: Any
) -> Settings:
    """The settings, changed, with one model whose agent plays the script (docs/scripted-agent.md)."""
    path = settings.root / "script.yaml"
    path.write_text(script)
    return replace(settings, models={model: f"{runner}:{path}"}, **changes)
