"""``make licences``: docs/licences.md, from what the installed packages of the lock say of themselves."""

import re
import textwrap
from collections import defaultdict
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[3]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)(?: ; (.*?))? \\$", re.MULTILINE)
_HEAD = """\
# Licences of what we depend on

Every package of `requirements.lock`, under the licence it names itself; * marks what the container's image has too
(`compose/requirements.lock`). helix-turns is MIT. The Claude Code CLI is proprietary and never shipped
([claude-cli.md](claude-cli.md)); the container images of `compose/compose.yaml` have licences of their own.
Made by `make licences`; do not edit.
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


def page() -> str:
    """docs/licences.md: a section for each licence."""
    image = pins(ROOT / "compose" / "requirements.lock")
    packages: dict[str, list[str]] = defaultdict(list)
    for name, (version, marker) in sorted(pins(ROOT / "requirements.lock").items()):
        try:
            licence = licence_of(distribution(name))
        except PackageNotFoundError:  # for another platform or Python
            licence = f"not installed here ({marker or 'no marker'})"
        packages[licence].append(f"{name}=={version}{'*' if name in image else ''}")
    return _HEAD + "".join(
        f"\n## {licence}\n\n"
        + textwrap.fill(", ".join(those), 120, break_on_hyphens=False, break_long_words=False)
        + "\n"
        for licence, those in sorted(packages.items())
    )


def listed(text: str) -> dict[str, tuple[str, str]]:
    """Package to version and licence, as a page lists them."""
    return {
        name: (version, licence)
        for licence, those in re.findall(r"^## (.+)\n\n((?:.+\n)+)", text, re.MULTILINE)
        for name, version in re.findall(r"([\w.-]+)==([^\s*,]+)", those)
    }


if __name__ == "__main__":
    print(page(), end="")
