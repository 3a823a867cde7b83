"""Starts the MCP servers that are commands: each in a sandbox of its own, with limited memory."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from api_client.contract.settings import Settings
from worker.plugins.tools.tool_servers import ToolServer
from worker.runners.sandbox import bubblewrap
from worker.runners.sandbox.bubblewrap import SandboxMount

#: A longer log of a server begins again when the server starts.
_LOG_BYTES = 2**20
#: Starts a server with limited memory (in KiB), of which reserved but unused memory does not count.
_LIMITED = ("/bin/sh", "-c", 'ulimit -d "$1" && shift && exec "$@"', "sh")
#: Folders of Python that every sandbox shows.
_SEEN = [mount.path for mount in bubblewrap.LISTENER_MOUNTS]


def prepare_process(
    settings: Settings, server: ToolServer, home: Path, environment: Mapping[str, str]
) -> AbstractAsyncContextManager[Any]:
    """Return a context manager that starts a server and opens its message streams.

    ``home`` is the server's working folder, ``environment`` has its credentials. Raises ``FileNotFoundError`` for a
    program that is not there, ``SandboxError`` and ``OSError``.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    name, *arguments = (part.replace("{root}", str(settings.root)) for part in server.command)
    program = shutil.which(name)
    if program is None:
        raise FileNotFoundError(f"there is no program {name!r}")
    command = _sandbox_command(settings, server, [program, *arguments], home)
    given = {"HOME": str(home), "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    given |= {**server.environment, **environment}
    return _open_process(StdioServerParameters(command=command[0], args=command[1:], env=given, cwd=home))


def _sandbox_command(settings: Settings, server: ToolServer, command: Sequence[str], home: Path) -> list[str]:
    limited = [*_LIMITED, str(server.max_memory_mb * 1024), *command]
    level = bubblewrap.choose_isolation(settings.sandbox, wanted=True)
    if level.kind == "none":
        return limited
    program = Path(command[0]).absolute()
    folders = [(settings.root / name).resolve() for name in server.folders]
    found = [path for path in (program, program.resolve()) if not any(map(path.is_relative_to, _SEEN))]
    binds = [*bubblewrap.LISTENER_MOUNTS, *map(SandboxMount, [*found, *folders]), SandboxMount(home, writable=True)]
    started = bubblewrap.start_command(limited, None, server.max_processes)
    return bubblewrap.sandbox_command(started, home, binds, cut=level.cut and not server.network)


@contextlib.asynccontextmanager
async def _open_process(started: StdioServerParameters) -> AsyncIterator[Any]:
    # A server's standard error may hold its credentials.
    path = Path(started.cwd or ".") / "stderr.log"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), "a") as own:
        if os.fstat(own.fileno()).st_size > _LOG_BYTES:
            own.truncate(0)
        async with stdio_client(started, errlog=own) as streams:
            yield streams
