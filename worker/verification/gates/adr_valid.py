"""Gate adr_valid: the phase's ADRs are complete by the rules for answers (ADR-038)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from api_client.contract.issue import ValidationIssue
from worker.enforcement.validators import ADRStructureValidator
from worker.verification.gates.gate import GateContext
from worker.verification.gates.gate_codes import build_gate_issue
from worker.verification.gates.output_tree import read_tree_file

MAX_ADR = 2 * 2**20


def check_adrs(options: Mapping[str, Any], site: GateContext) -> Iterator[ValidationIssue]:
    """Yield the problems of the architecture decision records (ADRs) in the output of a phase."""
    named = tuple(options.get("files", ()))
    found = named or tuple(path for path in site.tree.files if _is_adr_file(path))
    if not found:
        yield build_gate_issue("NO_ADR", site.locale, path="ADR-*.md")
    validator = ADRStructureValidator(site.locale)
    for path in found:
        if path not in site.tree.files:
            yield build_gate_issue("NO_ADR", site.locale, file=path, path=path)
            continue
        if site.tree.files[path] > MAX_ADR:
            yield build_gate_issue("FILE_TOO_LARGE", site.locale, file=path, path=path)
            continue
        text = read_tree_file(site.tree, path, MAX_ADR).decode("utf-8", "replace")
        context = {"files": {path: text}, "locale": site.locale, "expect_adr": False}
        issues = validator.validate("", context)
        if path in named and not _is_adr_file(path) and not issues and "adr_id" not in text:
            yield build_gate_issue("NO_ADR", site.locale, file=path, path=path)
        yield from issues


def _is_adr_file(path: str) -> bool:
    return fnmatchcase(PurePosixPath(path).name.upper(), "ADR-*.MD")
