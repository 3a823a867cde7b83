"""A PostgreSQL server for the rows whose engine needs one: a child process that dies with its worker."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

#: The wheel's programs; only they are used.
_PROGRAMS = Path(find_spec("pgserver").origin).parent / "pginstall" / "bin"
#: PostgreSQL does not run as root.
_USER, _GROUP = ("nobody", "nogroup") if os.geteuid() == 0 else (None, None)


def start_postgres() -> str:
    """Start a server in a new folder below the current one, wait until it answers, and return its URL.

    Raises:
        RuntimeError: it does not start.
    """
    place = Path.cwd() / "postgres"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if _USER:
        shutil.chown(place, _USER, _GROUP)
        for folder in (place.parent, place.parent.parent):  # the bench's own
            folder.chmod(0o711)
    data = place / "data"
    command = [
        _PROGRAMS / "initdb",
        "-D",
        data,
        "-U",
        "bench",
        "--auth",
        "trust",
        "--no-sync",
        "-E",
        "UTF8",
        "--locale",
        "C",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=_USER, group=_GROUP, extra_groups=[])
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(place),
        "max_connections": "200",
        "shared_buffers": "256MB",
        "max_wal_size": "4GB",
    }
    settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    server = subprocess.Popen(
        [_PROGRAMS / "postgres", "-D", data, *settings], user=_USER, group=_GROUP, extra_groups=[]
    )
    give_up = time.monotonic() + 30.0
    ready = [_PROGRAMS / "pg_isready", "-q", "-h", place, "-U", "bench"]
    while subprocess.run(ready, check=False).returncode:
        if server.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError("PostgreSQL does not start")
        time.sleep(0.05)
    return f"postgresql://bench@/postgres?host={place}"
