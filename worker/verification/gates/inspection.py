"""Parses the files of a phase's output in a separate process, since a parser may hang or crash.

Writes JSON lines: ``{"begin": file}`` before each file, then each fault with code, line and values.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import posixpath
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

Finding = tuple[str, int, dict[str, str]]

#: Most findings per file, and the longest value in characters.
MAX_FINDINGS, MAX_VALUE = 50, 300

_ANCHOR = re.compile(r"""<[^>]{0,200}\b(?:id|name)\s{0,4}=\s{0,4}["']([^"']{1,200})["']""")
_NO_SLUG = re.compile(r"[^\w\- ]")


def check_python(content: bytes, file: str, _order: InspectionOrder) -> Iterator[Finding]:
    """Compile a Python file without running it, and yield the syntax error if there is one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(content, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        yield "PYTHON_SYNTAX", error.lineno or 0, {"problem": error.msg}
    except (ValueError, RecursionError, MemoryError) as error:
        yield "PYTHON_SYNTAX", 0, {"problem": str(error) or "too complex to be parsed"}


def check_json(content: bytes, _file: str, _order: InspectionOrder) -> Iterator[Finding]:
    """Yield the error of a file that is not strict JSON, without comments, NaN or byte order mark."""

    def reject_constant(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        json.loads(content.decode("utf-8"), parse_constant=reject_constant)
    except json.JSONDecodeError as error:
        yield "JSON_SYNTAX", error.lineno, {"problem": error.msg}
    except UnicodeDecodeError as error:
        yield _encoding_finding(content, error)
    except (ValueError, RecursionError) as error:
        yield "JSON_SYNTAX", 0, {"problem": str(error)}


def check_yaml(content: bytes, _file: str, _order: InspectionOrder) -> Iterator[Finding]:
    """Yield the syntax errors of a YAML file. Unknown tags are accepted."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    anchors: set[str] = set()
    try:
        for event in yaml.parse(content.decode("utf-8"), loader):
            if isinstance(event, yaml.DocumentStartEvent):
                anchors.clear()
            anchor = getattr(event, "anchor", None)
            if isinstance(event, yaml.AliasEvent):
                if anchor not in anchors:
                    yield "YAML_SYNTAX", _line_number(event.start_mark), {"problem": f"unknown alias {anchor}"}
            elif anchor:
                anchors.add(anchor)
    except yaml.MarkedYAMLError as error:
        yield (
            "YAML_SYNTAX",
            _line_number(error.problem_mark or error.context_mark),
            {"problem": error.problem or "no YAML"},
        )
    except UnicodeDecodeError as error:
        yield _encoding_finding(content, error)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        yield "YAML_SYNTAX", 0, {"problem": str(getattr(error, "reason", None) or error)}


def _line_number(mark: Any) -> int:
    return int(mark.line) + 1 if mark else 0


def check_markdown(content: bytes, file: str, order: InspectionOrder) -> Iterator[Finding]:
    """Yield each relative link of a Markdown file that leads to no file or heading of the output."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        yield _encoding_finding(content, error)
        return
    for line, href in _find_links(text):
        try:
            parts = urlsplit(href)
        except ValueError:
            yield "BROKEN_LINK", line, {"target": href}
            continue
        if parts.scheme or parts.netloc:
            continue
        target = (
            posixpath.normpath(posixpath.join(posixpath.dirname(file), unquote(parts.path))) if parts.path else file
        )
        if target.startswith(("/", "../")) or target == "..":
            yield "LINK_UNCHECKED", line, {"target": href}
        elif not order.has_path(target):
            yield "BROKEN_LINK", line, {"target": href}
        elif parts.fragment and target.lower().endswith(".md") and not order.has_anchor(target, parts.fragment):
            yield "BROKEN_ANCHOR", line, {"target": href}


def _parse_markdown(text: str) -> list[Any]:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table").parse(text)


def _find_links(text: str) -> Iterator[tuple[int, str]]:
    if "[" not in text:  # parsing takes about 50 µs per line
        return
    for token in _parse_markdown(text):
        line = token.map[0] + 1 if token.map else 0
        for child in token.children or ():
            if child.type in {"softbreak", "hardbreak"}:
                line += 1
            elif child.type in {"link_open", "image"}:
                yield line, str(child.attrs.get("href") or child.attrs.get("src") or "")


def _find_anchors(text: str) -> set[str]:
    found = set(_ANCHOR.findall(text))
    tokens = _parse_markdown(text)
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            title = "".join(child.content for child in inline.children or () if child.type in {"text", "code_inline"})
            slug = _NO_SLUG.sub("", title.strip().lower()).replace(" ", "-")
            while slug in found:
                stem, dash, number = slug.rpartition("-")
                slug = f"{stem}-{int(number) + 1}" if dash and number.isdecimal() else f"{slug}-1"
            found.add(slug)
    return found


def _encoding_finding(content: bytes, error: UnicodeDecodeError) -> Finding:
    return "NOT_UTF8", content[: error.start].count(b"\n") + 1, {"problem": f"byte {error.start}"}


CHECKS: dict[str, Callable[[bytes, str, InspectionOrder], Iterator[Finding]]] = {
    ".py": check_python,
    ".pyi": check_python,
    ".json": check_json,
    ".yaml": check_yaml,
    ".yml": check_yaml,
    ".md": check_markdown,
    ".markdown": check_markdown,
}


class InspectionOrder:
    """A request to check some files of an output folder, with the names of all files in the folder."""

    def __init__(self, directory: str, files: list[str], inspect: list[str]) -> None:
        self.directory = directory
        self.inspect = inspect
        self._there = {*files, *(str(parent) for file in files for parent in Path(file).parents)}

    def read_file(self, file: str) -> bytes:
        """Return the content of a file. Refuse symbolic links."""
        descriptor = os.open(f"{self.directory}/{file}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as source:
            return source.read()

    def has_path(self, path: str) -> bool:
        """Return True if the output has a file, or a folder with files, at this path."""
        return path in self._there

    @functools.cache  # noqa: B019 - one order a process
    def _cached_anchors(self, file: str) -> set[str]:
        return _find_anchors(self.read_file(file).decode("utf-8", "replace"))

    def has_anchor(self, file: str, name: str) -> bool:
        """Return True if a Markdown file has a heading or HTML element with this name, in any letter case."""
        return unquote(name).lower() in {anchor.lower() for anchor in self._cached_anchors(file)}


def _print_report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201 - its output is the report


def main() -> None:
    """Check the files named on standard input, and print the problems as lines of JSON."""
    order = InspectionOrder(**json.load(sys.stdin))
    for file in order.inspect:
        _print_report(begin=file)
        findings = CHECKS[Path(file).suffix.lower()](order.read_file(file), file, order)
        for (code, line, values), _ in zip(findings, range(MAX_FINDINGS), strict=False):
            _print_report(
                code=code, file=file, line=line, values={key: text[:MAX_VALUE] for key, text in values.items()}
            )
    _print_report(done=True)


if __name__ == "__main__":
    main()
