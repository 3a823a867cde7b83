"""Validator of the files that an ADR wants to modify: they must exist (ADR-038, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from api_client.contract.issue import ValidationIssue
from worker.enforcement.documents.adr import MAX_ADRS, Adr
from worker.enforcement.documents.document import iterate_texts, parse_document
from worker.enforcement.documents.frontmatter import HeaderTooComplex, Node
from worker.enforcement.documents.header_lines import move_entries
from worker.enforcement.documents.part_names import FILES, YAML_HEADER, field_part
from worker.enforcement.validators.codes import DEFAULT_LOCALE, choose_text, make_issue
from worker.enforcement.validators.paths import PathTarget, Root, strip_suffix
from worker.enforcement.validators.validator import ResponseValidator

#: Code for a missing file, by the list that names the file. In ``create``, files must be missing.
_MISSING = {"modify": "FILE_NOT_FOUND", "docs": "DOC_NOT_FOUND", "delete": "DELETE_NOT_FOUND"}
_LISTS = ("create", *_MISSING)
#: The agent's hooks, the only place outside the root where an ADR may create files (ADR-036, Phase 1).
ALLOWED_OUTSIDE = ("~/.claude/hooks/",)

#: Makes an issue from a code, a header node and values for the templates.
Report = Callable[..., ValidationIssue]


def may_look_at_files(texts: Iterable[str]) -> bool:
    """Return True if validating these texts may access the file system, which can be slow."""
    adr = files = False
    for text in texts:
        adr = adr or "adr_id" in text or "ADR-" in text
        files = files or "files" in text
    return adr and files


class FileExistenceValidator(ResponseValidator):
    """Checks that the files which an ADR wants to change exist below the root directory."""

    name = "file_existence"
    mends_files: ClassVar[bool] = True

    def __init__(self, helix_root: Path, locale: str = DEFAULT_LOCALE) -> None:
        self.helix_root = Path(helix_root)
        self.locale = locale

    def takes_bounded_time(self, texts: Iterable[str]) -> bool:
        return not may_look_at_files(texts)

    def validate(self, response: str, context: Mapping[str, Any]) -> list[ValidationIssue]:
        """Return an issue for each wrong path in the ``files`` lists of every ADR."""
        locale = str(context.get("locale", self.locale))
        issues: list[ValidationIssue] = []
        root: Root | None = None
        for text in iterate_texts(response, context):
            adrs = [adr for adr in text.document.adrs if adr.header]
            if len(adrs) > MAX_ADRS:
                issues.append(make_issue("TOO_MANY_ADRS", locale, file=text.file, count=MAX_ADRS))
                continue
            for adr in adrs:
                # Accesses the file system: not for an answer without an ADR.
                root = root or Root.from_path(self.helix_root)
                part = YAML_HEADER if adr.error is not None else field_part(FILES)
                part = part if len(adrs) == 1 and adr.offset >= 0 else ""
                issues += _check_files(root, adr, partial(_file_issue, adr, locale, text.file, part))
        return issues

    def apply_fallback(self, response: str, context: Mapping[str, Any]) -> str | None:
        """Return the answer with missing files moved from ``files.modify`` to ``files.create``.

        Return None if nothing is missing or a header cannot be edited safely.
        """
        repaired = response
        for adr in reversed(parse_document(response).adrs):
            missing = set(self._missing_paths(adr))
            if missing and adr.offset >= 0 and adr.header:
                start, end = adr.char_of(adr.header[0]), adr.char_of(adr.header[1])
                moved = move_entries(repaired[start:end], missing, source="modify", target="create")
                if moved is not None:
                    repaired = repaired[:start] + moved + repaired[end:]
        return None if repaired == response else repaired

    def explain_fallback(self, before: str, after: str, context: Mapping[str, Any]) -> Sequence[str]:
        locale = str(context.get("locale", self.locale))
        german = "{}: von files.modify nach files.create verschoben"
        english = "{}: moved from files.modify to files.create"
        left = {path for adr in parse_document(after).adrs for path in self._missing_paths(adr)}
        gone = (path for adr in parse_document(before).adrs for path in self._missing_paths(adr) if path not in left)
        return [choose_text(locale, german, english).format(path) for path in dict.fromkeys(gone)]

    def _missing_paths(self, adr: Adr) -> Iterator[str]:
        files = adr.root.find_value("files") if adr.root is not None else None
        modify = files.find_value("modify") if files is not None else None
        if modify is None:
            return
        root = Root.from_path(self.helix_root)
        for entry in modify.items:
            if entry.kind == "scalar" and not entry.is_null and _find_target(root, entry.value) is PathTarget.MISSING:
                yield entry.value


def _file_issue(
    adr: Adr, locale: str, file: str, part: str, code: str, node: Node, **values: object
) -> ValidationIssue:
    return make_issue(code, locale, file=file, line=adr.header_line(node.line), part=part, **values)


def _find_target(root: Root, path: str) -> PathTarget:
    found = root.find(path)
    return root.find(strip_suffix(path)) if found is PathTarget.MISSING and strip_suffix(path) != path else found


def _check_files(root: Root, adr: Adr, found: Report) -> Iterator[ValidationIssue]:
    if adr.error is not None:
        code = "YAML_TOO_COMPLEX" if isinstance(adr.error, HeaderTooComplex) else "INVALID_YAML"
        yield found(code, Node("scalar", 0, adr.error.line, 0), problem=adr.error)
        return
    files = adr.root.find_value("files") if adr.root is not None else None
    if files is None or files.is_null:
        return
    if files.kind != "mapping":
        yield found("INVALID_FILES", files, where="files")
        return
    for key, value in files.pairs:
        if key.value not in _LISTS or value.is_null:
            continue
        if value.kind != "sequence":
            yield found("INVALID_FILES", value, where=f"files.{key.value}")
        for entry in value.items:
            yield from _check_entry(root, key.value, entry, found)


def _check_entry(root: Root, key: str, entry: Node, found: Report) -> Iterator[ValidationIssue]:
    where, path = f"files.{key}", entry.value
    if entry.kind != "scalar" or entry.is_null:
        yield found("INVALID_FILES", entry, where=where)
        return
    if key == "create" and path.startswith(ALLOWED_OUTSIDE) and ".." not in path:
        return
    kind = _find_target(root, path)
    if kind is PathTarget.OUTSIDE:
        yield found("OUTSIDE_ROOT", entry, where=where, path=path)
    elif kind is PathTarget.UNUSABLE:
        yield found("INVALID_PATH", entry, where=where, path=path)
    elif key == "create":
        if kind is not PathTarget.MISSING:
            yield found("FILE_ALREADY_EXISTS", entry, path=path)
    elif kind is PathTarget.MISSING:
        near = root.suggest_path(strip_suffix(path))
        yield found(_MISSING[key], entry, path=path, suggestion=f" ({near}?)" if near else "")
    elif kind is PathTarget.OTHER:
        yield found("NOT_A_FILE", entry, where=where, path=path)
    elif root.find(path) is not PathTarget.FILE:
        yield found("PATH_WITH_SUFFIX", entry, where=where, path=path, bare=strip_suffix(path))
