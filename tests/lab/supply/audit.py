"""``make audit``: are there advisories about what the locks pin?

pip-audit asks; it lives in a private environment. Where no advisory database can be reached the answer is "unknown",
never "clean": a database that does not even know a vulnerability from 2014 is none.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Has advisories in every database, such as PYSEC-2014-8 and PYSEC-2019-217.
CANARY = "jinja2==2.4.1"
_OPTIONS = ("--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json")
_SECONDS = 600

#: Runs pip-audit over a file of requirements; returns what it wrote on standard output.
Ask = Callable[[Path], str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the database says: ``found`` has "NAME VERSION: ID"; ``unknown`` the packages it does not know."""

    asked: int
    found: tuple[str, ...]
    unknown: tuple[str, ...]


def read_answer(output: str) -> Answer | None:
    """pip-audit's JSON; None when it is none, as when nothing could be reached."""
    try:
        entries = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    found = [f"{e['name']} {e['version']}: {v['id']}" for e in entries for v in e.get("vulns", ())]
    return Answer(len(entries), tuple(found), tuple(e["name"] for e in entries if "skip_reason" in e))


def audit(locks: Sequence[Path], ask: Ask, *, strict: bool, tell: Callable[[str], None] = print) -> int:
    """Ask about each lock and say what came of it; returns the exit code: 1 for advisories, 3 for unknown if strict."""
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "canary.txt"
        canary.write_text(f"{CANARY}\n")
        known = read_answer(ask(canary))
    if known is None or not known.found:
        tell("unknown: no advisory database could be reached (it does not know what is wrong with an old jinja2)")
        return 3 if strict else 0
    worst = 0
    for lock in locks:
        answer = read_answer(ask(lock))
        if answer is None or answer.unknown:
            names = "the whole lock" if answer is None else ", ".join(answer.unknown)
            tell(f"{lock}: unknown: {names}")
            worst = worst or (3 if strict else 0)
        if answer is not None:
            tell("\n".join([f"{lock}: {answer.asked} packages, {len(answer.found)} advisories", *answer.found]))
            worst = 1 if answer.found else worst
    return worst


def pip_audit(program: str) -> Ask:
    """pip-audit at this path."""

    def ask(requirements: Path) -> str:
        command = [program, "--requirement", str(requirements), *_OPTIONS]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout

    return ask


if __name__ == "__main__":
    options, (program, *files) = (
        {a for a in sys.argv[1:] if a == "--strict"},
        [a for a in sys.argv[1:] if a != "--strict"],
    )
    sys.exit(audit([Path(file) for file in files], pip_audit(program), strict=bool(options)))
