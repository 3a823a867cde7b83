"""Gate files_exist: every expected file exists, is a plain file and is not empty. Always the first gate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.verification.gates.gate import GateContext
from worker.verification.gates.gate_codes import build_gate_issue


def check_files(options: Mapping[str, Any], site: GateContext) -> Iterator[ValidationIssue]:
    """Yield an issue for each expected file that is missing or empty, and for each link or special file."""
    tree, locale = site.tree, site.locale
    for path in tree.leaving:
        yield build_gate_issue("LINK_LEAVES", locale, file=path, path=path)
    for path in tree.links:
        yield build_gate_issue("LINK_NOT_FOLLOWED", locale, file=path, path=path)
    for path in tree.others:
        yield build_gate_issue("NO_REGULAR_FILE", locale, file=path, path=path)
    expected = dict.fromkeys((*site.phase.output_files, *options.get("files", ())))
    if not (tree.files or expected):
        yield build_gate_issue("NO_OUTPUT", locale)
    for path in expected:
        if path not in tree.files:
            yield build_gate_issue("MISSING_FILE", locale, file=path, path=path, suggestion=_suggest_path(path, site))
        elif tree.files[path] == 0 and not path.endswith(("__init__.py", ".gitkeep", "py.typed")):
            yield build_gate_issue("EMPTY_FILE", locale, file=path, path=path)


def _suggest_path(path: str, site: GateContext) -> str:
    near = get_close_matches(path, site.tree.files, n=1, cutoff=0.7)
    if not near:
        return ""
    return f" (there is '{near[0]}')" if site.locale.startswith("en") else f" (es gibt '{near[0]}')"
