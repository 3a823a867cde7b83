"""Secrets for tests: stores them by the command, and searches everything stored for a value."""

import gzip
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.installation import Installation, Said

CANARY = "canary-7f3a9-secret"


def run_secrets(installation: Installation, *arguments: str, text: str = "") -> Said:
    """Run ``turns secrets`` in this process, with this text on standard input."""
    return installation.command("secrets", *arguments, stdin=text)


def store_secret(installation: Installation, name: str, value: dict[str, Any], owner: str = "") -> None:
    """Store a secret, with a new key if there is none."""
    if not installation.settings.secrets_key_path.exists():
        run_secrets(installation, "new-key")
    done = run_secrets(installation, "set", name, "--owner", owner, text=json.dumps(value))
    assert done.returncode == 0, done.stderr


def find_holders(installation: Installation, secret: str, *folders: Path) -> set[str]:
    """Return what contains a text: keys of the store, files (archives unpacked), and processes by their command."""
    said = secret.encode()
    store = installation.store
    held = {f"key {key.decode()}" for key in store.scan_iter("*") if said in (store.dump(key) or b"")}
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    held |= {f"file {path}" for path in files if any(said in part for part in _read_parts(path))}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if said in (place / "environ").read_bytes() + (place / "cmdline").read_bytes():
                held.add(f"process {(place / 'cmdline').read_bytes().decode()}")
        except OSError:
            continue
    return held


def _read_parts(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from map(archive.read, archive.namelist())
    elif data.startswith(b"\x1f\x8b"):
        yield gzip.decompress(data)
