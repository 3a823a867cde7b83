"""The project's English, found in its files: pages, docstrings, comments, messages, help texts."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

#: A piece of prose: its first line in the file, and its text. Indents are folded, code between backticks is blanked.
Text = tuple[int, str]
#: What is read, below the root.
PLACES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "docs", "compose", "api_client", "worker")
_SUFFIXES = {".md", ".py", ".lua", ".html", ".j2", ".yml", ".yaml", ".toml", ".sh"}
#: What is not ours to rewrite: licences' names come from their packages, templates for agents have tests of their own.
_NOT_READ = {"docs/licences.md"}
_CODE = re.compile(r"(`+)[^`]+?\1")
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LUA_COMMENT = re.compile(r"--\s?(.*)")
_TOML_STRING = re.compile(r'"((?:[^"\\]|\\.)* (?:[^"\\]|\\.)*)"')
_SHELL_COMMENT = re.compile(r"(?:^|\s)##?\s(.*)")


def files(root: Path) -> Iterator[Path]:
    """Every file whose prose is checked, in order."""
    for place in PLACES:
        start = root / place
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            named = path.relative_to(root).as_posix()
            if path.is_file() and named not in _NOT_READ and (path.suffix in _SUFFIXES or path.name == "Makefile"):
                yield path


def texts_of(path: Path) -> Iterator[Text]:
    """The prose of one file; of files that are neither Markdown, Python nor tables of words it is the comments."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        found = _python(content)
    elif path.suffix in (".md", ".html", ".j2"):
        found = iter([(1, _blanked(_FENCE, content))])
    else:
        found = _comments(content, _LUA_COMMENT if path.suffix == ".lua" else _SHELL_COMMENT)
    if path.suffix == ".toml":
        found = chain(found, _strings(content))
    for line, text in found:
        yield line, re.sub(r"[ \t]*\n[ \t]*", "\n", _blanked(_CODE, text))


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """The text with each match replaced by a placeholder that keeps its lines."""
    return pattern.sub(lambda found: "`" + "\n" * found[0].count("\n"), text)


def _python(content: str) -> Iterator[Text]:
    """Docstrings, strings of at least two words, and blocks of comments."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value
    lines = {}
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0]] = token.string.lstrip("#: ")
    yield from _blocks(lines)


def _strings(content: str) -> Iterator[Text]:
    """Strings of at least two words in a TOML file."""
    for number, line in enumerate(content.splitlines(), 1):
        yield from ((number, text) for text in _TOML_STRING.findall(line))


def _comments(content: str, pattern: re.Pattern[str]) -> Iterator[Text]:
    """Blocks of comments, by a pattern whose first group is a comment's text."""
    lines = {}
    for number, line in enumerate(content.splitlines(), 1):
        if found := pattern.search(line):
            lines[number] = found[1]
    yield from _blocks(lines)


def _blocks(lines: dict[int, str]) -> Iterator[Text]:
    """Lines that follow each other, as one text."""
    start, block = 0, list[str]()
    for number, text in lines.items():
        if block and number != start + len(block):
            yield start, "\n".join(block)
            block = []
        start = start if block else number
        block.append(text)
    if block:
        yield start, "\n".join(block)
