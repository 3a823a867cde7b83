"""Helpers for tests with real processes: an agent that plays a script, waiting for conditions, finding leftovers."""

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
    """Wait until ``condition``, a function or a coroutine function, returns a true value; return the value.

    Raises ``AssertionError`` with the condition and the last value after ``seconds``.
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
    """Wait as ``wait_until`` does, for tests that are not coroutines."""
    until = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < until, (
            f"not within {seconds:g} s: {inspect.getsource(condition).strip()} ({answer!r})"
        )
        time.sleep(tick)
    return answer


async def passes(seconds: float, why: str) -> None:
    """Let time pass where a test needs time itself, such as the duration of a fault.

    ``why`` is for the reader. Use ``wait_until`` for everything that may come at any time.
    """
    assert why
    await asyncio.sleep(seconds)


async def stays(condition: Callable[[], Awaitable[Any]], seconds: float, *, tick: float = 0.1) -> None:
    """Check repeatedly for ``seconds`` that a condition stays true, for what no event announces."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert await condition(), f"no longer so: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(tick)


def certificate(folder: Path) -> Path:
    """Create a self-signed certificate for 127.0.0.1 with its key in one file; skip the test without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    path = folder / "own.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=stub", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(path), "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


def alive(pid: int) -> bool:
    """Return True while a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_of(pid: int) -> bytes:
    """Return a process's command line, with NUL between its words, or an empty text if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def processes_with(marker: str) -> dict[int, str]:
    """Return other processes whose environment or command line contains ``marker``, with their command lines."""
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
    """Yield the JSON objects of a file to which others append lines; the last line may be incomplete."""
    if path.exists():
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                if isinstance(read := json.loads(line), dict):
                    yield read


def put(path: Path, text: str) -> None:
    """Write a file atomically, so that a process that reads it finds the old text or the new one."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text)
    draft.rename(path)


def playing(
    settings: Settings, script: str, model: str = "scripted", runner: str = "scripted", **changes: Any
) -> Settings:
    """Return the settings, changed, with one model whose agent plays the script (docs/scripted-agent.md)."""
    path = settings.root / "script.yaml"
    path.write_text(script)
    return replace(settings, models={model: f"{runner}:{path}"}, **changes)
