"""Checks the version of a Redis or Valkey server. A starting worker imports this module, so it imports little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.cli.checks.finding import Finding

LOWEST = (7, 0)
#: First releases without CVE-2025-49844 (a script escapes from Lua), by server and release line.
PATCHED: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {
    "redis": {(7, 2): (7, 2, 11), (7, 4): (7, 4, 6), (8, 0): (8, 0, 4), (8, 2): (8, 2, 2)},
    "valkey": {(7, 2): (7, 2, 11), (8, 0): (8, 0, 6), (8, 1): (8, 1, 4)},
}

Info = Mapping[str, Any]


def check_version(name: str, info: Info) -> Finding:
    """Check that the server's version is recent enough and has its security patches."""
    kind = "valkey" if "valkey_version" in info else "redis"
    text = str(info.get(f"{kind}_version", "0.0.0"))
    number = tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())
    check = f"{name} version"
    if number < LOWEST:
        return Finding(check, "wrong", f"{kind} {text} is too old", "use Valkey, or Redis 7.0 or newer")
    patched = PATCHED[kind].get(number[:2], (0,))
    if number < patched or (kind == "redis" and number[:2] == (7, 0)):
        newest = ".".join(map(str, max(PATCHED[kind].values())))
        fix = f"update the server, for instance to {kind} {newest}"
        return Finding(check, "warning", f"{kind} {text} has a hole: a script can leave Lua (CVE-2025-49844)", fix)
    return Finding(check, "ok", f"{kind} {text}")
