"""Gate syntax: Python, YAML and JSON files parse, and relative Markdown links have targets. Always the second gate."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.runners.sandbox.bubblewrap import SandboxMount
from worker.verification.gates.gate import GateContext
from worker.verification.gates.gate_codes import build_gate_issue
from worker.verification.gates.gate_program import ProgramLimits, run_program

INSPECTION = Path(__file__).with_name("inspection.py")
MAX_FILE = 2 * 2**20
#: Ten minutes for all files; a single file that takes more than 30 s is reported.
LIMITS = ProgramLimits(seconds=600.0, silence=30.0, memory_mb=2048)

#: Folders with generated files, besides all whose name starts with a dot.
_MADE = frozenset({"node_modules", "__pycache__"})
_KNOWN = frozenset({".py", ".pyi", ".json", ".yaml", ".yml", ".md", ".markdown"})
_MAX_FINDINGS = 200
_MAX_LINES = 50_000


def check_syntax(options: Mapping[str, Any], site: GateContext) -> Iterator[ValidationIssue]:
    """Parse each file of a known type in another process, and yield an issue for each syntax error."""
    ignore = tuple(options.get("ignore", ()))
    waiting = []
    for path, size in site.tree.files.items():
        if PurePosixPath(path).suffix.lower() not in _KNOWN or _is_ignored(path, ignore):
            continue
        if size > MAX_FILE:
            yield build_gate_issue("FILE_TOO_LARGE", site.locale, file=path, path=path)
        else:
            waiting.append(path)
    count = 0
    while waiting:
        order = {"directory": str(site.tree.directory), "files": list(site.tree.files), "inspect": waiting}
        ran = run_program(
            [sys.executable, "-P", str(INSPECTION)],
            Path("/"),
            limits=LIMITS,
            stop=site.stop,
            deadline=site.deadline,
            mark=f"{site.mark}.syntax" if site.mark else "",
            stdin=json.dumps(order).encode(),
            tail=_MAX_LINES,
            fence=site.fence,
            own=SandboxMount(site.tree.directory),
        )
        last, done = "", False
        for line in ran.lines:
            found = json.loads(line) if line.startswith("{") else {}
            last, done = found.get("begin", last), done or bool(found.get("done"))
            if "code" in found and count < _MAX_FINDINGS:
                count += 1
                values = {str(key): str(value) for key, value in found["values"].items()}
                yield build_gate_issue(found["code"], site.locale, file=found["file"], line=found["line"], **values)
        if done:
            return
        if not last:
            raise OSError(f"the files could not be parsed: {ran.error or ran.problem or ran.last_line}")
        yield build_gate_issue("CANNOT_PARSE", site.locale, file=last, problem=ran.problem or f"parser: {ran.code}")
        waiting = waiting[waiting.index(last) + 1 :]


def _is_ignored(path: str, ignore: tuple[str, ...]) -> bool:
    folders = PurePosixPath(path).parts[:-1]
    if any(folder.startswith(".") or folder in _MADE for folder in folders):
        return True
    return any(fnmatchcase(path, pattern) for pattern in ignore)
