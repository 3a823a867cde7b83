"""``make licences``: docs/licences.md, from what the installed packages of the lock say of themselves."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)(?: ; (.*?))? \\$", re.MULTILINE)
_HEAD = """\
# Licences of what we depend on

Every package of `requirements.lock`, with the licence it names itself; "image" marks what the container's image has too
(`compose/requirements.lock`). helix-turns is MIT. The Claude Code CLI is proprietary and never shipped
([claude-cli.md](claude-cli.md)); the container images of `compose/compose.yaml` have licences of their own.
Made by `make licences`; do not edit.

| package | version | licence | image |
|---|---|---|---|
"""


def pins(lock: Path) -> dict[str, tuple[str, str]]:
    """Package to version and marker (where it is needed; empty: everywhere), as a lock pins them."""
    return {name: (version, marker or "") for name, version, marker in _PIN.findall(lock.read_text())}


def licence_of(found: Distribution) -> str:
    """What a package says: an expression, else its classifiers, else the first line of its licence field."""
    if expression := found.metadata.get("License-Expression"):  # type: ignore[attr-defined]
        return str(expression)
    classifiers = found.metadata.get_all("Classifier") or []
    named = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    if named := [name for name in named if name != "OSI Approved"]:
        return ", ".join(named)
    first = str(found.metadata.get("License") or "").strip().partition("\n")[0]  # type: ignore[attr-defined]
    return first[:60] or "unknown"


def table() -> str:
    """docs/licences.md."""
    image = pins(ROOT / "compose" / "requirements.lock")
    rows = []
    for name, (version, marker) in sorted(pins(ROOT / "requirements.lock").items()):
        try:
            licence = licence_of(distribution(name))
        except PackageNotFoundError:  # for another platform or Python
            licence = f"not installed here ({marker or 'no marker'})"
        rows.append(f"| {name} | {version} | {licence} | {'yes' if name in image else ''} |")
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
