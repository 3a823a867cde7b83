"""Parses a shell command line into its simple commands with the program ``shfmt`` (docs/policy.md).

Parts that are known only at run time, such as variables and the output of commands, become ``patterns.ANY``.
"""

from __future__ import annotations

import codecs
import itertools
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from worker.runners.tool_rules.patterns import ANY, GLOB

#: Limits: characters of a command line, nodes of its syntax tree, seconds for the parser.
_MOST_CHARS, _MOST_STEPS, _SECONDS = 50_000, 100_000, 5
_ACTIVE = re.compile(r"\\(.)|([*?]|\[[^\]/]+\])", re.DOTALL)
_BRACES = re.compile(r"(?<![\\$])\{[^{}]*(?:,|\.\.)")
_LIST = re.compile(r"(?<![\\$])\{[^{}\\/-]*(?:,|\.\.)[^{}\\/-]*\}")
#: Nodes that may run repeatedly, and commands that change the working folder.
_REPEATED, _CHANGES_FOLDER = {"ForClause", "WhileClause", "FuncDecl"}, re.compile(r"\b(?:cd|pushd)\b")
#: Variables that change the meaning of names.
_RENAMES = re.compile(r"\b(?:CDPATH|BASH_ALIASES|BASH_CMDS)\b")
#: Redirection targets that write no file.
_HARMLESS = re.compile(r"\d+|-|/dev/null")
#: Constructs that evaluate a text as arithmetic or as a name, and so run commands in its subscripts.
_EVALUATES = re.compile(
    r'"(?:ArithmCmd|ArithmExp|LetClause|Index|Slice|TestClause|DeclClause)"|"Op":"@|"(?:test|\[|printf|read|unset|let)"'
)


class UnreadableCommand(Exception):
    """Raised if a shell command line cannot be parsed."""


class ShellCommand(NamedTuple):
    """A simple command in a shell command line: its words, and the files of its redirections.

    Attributes:
        plain: True if nothing but its words determines what it does.
        stdin: the text that it reads from the command line; None if unknown.
        wrapped: True if another command of the line starts it.
    """

    words: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    plain: bool = True
    stdin: str | None = None
    wrapped: bool = False


ANYTHING = ShellCommand((ANY,), plain=False)


def parse_commands(command_line: str) -> list[ShellCommand]:
    """Parse a shell command line and return its simple commands. Raises ``UnreadableCommand`` if parsing fails."""
    if (
        len(command_line) > _MOST_CHARS
        or _RENAMES.search(command_line)
        or any(letter in command_line for letter in (ANY, GLOB, "\r"))
    ):
        raise UnreadableCommand
    try:
        argv = [str(find_shfmt()), "--to-json", "-ln", "bash"]
        done = subprocess.run(
            argv, input=command_line.encode(), capture_output=True, timeout=_SECONDS, check=False, env={}
        )
        tree = json.loads(done.stdout) if done.returncode == 0 else None
        if not isinstance(tree, dict) or (re.search(r"\$\(|`", command_line) and _hides_commands(tree)):
            raise UnreadableCommand
        return list(_TreeReader(command_line).find_commands(tree, {}))
    except (OSError, ValueError, RecursionError, subprocess.TimeoutExpired) as error:
        raise UnreadableCommand from error


def find_shfmt() -> Path:
    """Return the path of the program ``shfmt`` in this Python environment.

    Raises ``FileNotFoundError`` if the package shfmt-py is not installed.
    """
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (program := folder / "shfmt").is_file():
            return program
    raise FileNotFoundError("shfmt is not installed beside Python; install the package shfmt-py")


def _hides_commands(tree: Mapping[str, Any]) -> bool:
    texts = json.dumps(tree, separators=(",", ":"))
    quoted = re.search(r'"Value":"(?:[^"\\]|\\.)*(?:\$\(|`)', texts)
    return bool(quoted and _EVALUATES.search(texts))


class _TreeReader:
    """Collects the commands in the syntax tree of a shell command line, as the program ``shfmt`` prints it."""

    def __init__(self, line: str) -> None:
        self._line, self._steps = line, itertools.count()

    def find_commands(self, node: Any, known: Mapping[str, str]) -> Iterator[ShellCommand]:
        if next(self._steps) > _MOST_STEPS:
            raise UnreadableCommand
        if isinstance(node, list):
            for each in node:
                yield from self.find_commands(each, known)
        if not isinstance(node, dict):
            return
        if node.get("Type") == "ForClause" and (values := self._loop_values(node["Loop"], known)):
            yield from self.find_commands(node["Loop"], known)
            for value in values:
                yield from self.find_commands(node["Do"], {**known, node["Loop"]["Name"]["Value"]: value})
            return
        if "Cmd" in node or "Redirs" in node:
            yield from self._read_statement(node.get("Cmd") or {}, node.get("Redirs") or [], known)
        for part in node.values():
            for each in self.find_commands(part, known):
                yield each
                moves = node.get("Type") in _REPEATED and any(map(_CHANGES_FOLDER.search, each.words))
                if moves and ANY not in each.words:
                    yield ShellCommand(("cd", ANY))

    def _read_statement(
        self, inner: Mapping[str, Any], redirections: list[Any], known: Mapping[str, str]
    ) -> Iterator[ShellCommand]:
        kind, words = inner.get("Type"), tuple[str, ...]()
        if kind in {"BinaryCmd", "Block", "Subshell"} and not redirections:
            return
        if kind == "CallExpr":
            words = tuple(_word_text(each["Parts"], known) for each in inner.get("Args") or [])
        elif kind in {"TestClause", "DeclClause"}:
            name = inner["Variant"]["Value"] if kind == "DeclClause" else "[["
            words = (name, *(_word_text(parts, known) for parts in _parts_in(inner)))
        elif kind == "ArithmCmd":  # other shells read ((x -y)) as a command
            words = tuple(self._line.encode()[inner["Left"]["Offset"] + 2 : inner["Right"]["Offset"]].decode().split())
        files, stdin = [], None
        for each in redirections:
            here = each.get("Hdoc") or (each["Word"] if each["Op"] == "<<<" else None)
            text = _join_parts((here or each["Word"])["Parts"], known, quoted=here is not None)
            if here or each["Op"].startswith("<<"):
                stdin = text if here else ""
            elif not (each["Op"] in {">&", "<&", ">", ">>", "&>"} and _HARMLESS.fullmatch(text)):
                files.append(text)
        yield ShellCommand(words, tuple(files), not (files or stdin is not None or inner.get("Assigns")), stdin)

    def _loop_values(self, loop: Mapping[str, Any], known: Mapping[str, str]) -> list[str]:
        name = (loop.get("Name") or {}).get("Value", "")
        elsewhere = re.search(rf"\b{name}\b", re.sub(rf"\$\{{?{name}\b|\bfor\s+{name}\b", "", self._line))
        values = [_word_text(each["Parts"], known) for each in loop.get("Items") or []]
        unknown = elsewhere or not name.islower() or any(ANY in value for value in values)
        return [] if unknown else values


def _parts_in(node: Any) -> Iterator[list[Any]]:
    if isinstance(node, dict) and isinstance(node.get("Parts"), list):
        yield node["Parts"]
    elif isinstance(node, dict | list):
        for each in node.values() if isinstance(node, dict) else node:
            yield from _parts_in(each)


def _word_text(parts: list[Any], known: Mapping[str, str]) -> str:
    literal = "".join(part["Value"] for part in parts if part["Type"] == "Lit")
    if _BRACES.search(literal):
        literal = _LIST.sub(GLOB, literal)
        if len(parts) > 1 or _BRACES.search(literal):
            return ANY
        parts = [{"Type": "Lit", "Value": literal}]
    return _join_parts(parts, known)


def _join_parts(parts: list[Any], known: Mapping[str, str], *, quoted: bool = False) -> str:
    return "".join(_part_text(part, known, quoted=quoted) for part in parts)


def _part_text(part: Mapping[str, Any], known: Mapping[str, str], *, quoted: bool) -> str:
    value = part.get("Value", "")
    match part["Type"]:
        case "Lit" if quoted:
            return re.sub(r'\\([$`"\\])', r"\1", value)
        case "Lit":
            return _ACTIVE.sub(lambda found: found[1] or GLOB, value)
        case "SglQuoted":
            return _decode_escapes(value) if part.get("Dollar") else str(value)
        case "DblQuoted":
            return _join_parts(part.get("Parts") or [], known, quoted=True)
        case "ParamExp" if part["Param"]["Value"] in {"?", "#", "$", "!"}:
            return "0"
        case "ArithmExp":
            return GLOB
        case "CmdSubst" if (spoken := _here_document(part.get("Stmts") or [], known)) and quoted:
            return spoken
        case "ParamExp" if set(part) <= {"Type", "Pos", "End", "Dollar", "Rbrace", "Short", "Param"}:
            found = known.get(part["Param"]["Value"], ANY)
            return found if quoted or not re.search(r"\s", found) else ANY
    return ANY


def _here_document(statements: list[Any], known: Mapping[str, str]) -> str:
    if len(statements) != 1 or len(found := statements[0].get("Redirs") or []) != 1 or "Hdoc" not in found[0]:
        return ""
    words = [_join_parts(each["Parts"], known) for each in (statements[0].get("Cmd") or {}).get("Args") or []]
    return _join_parts(found[0]["Hdoc"]["Parts"], known, quoted=True).rstrip("\n") if words == ["cat"] else ""


def _decode_escapes(value: str) -> str:
    if re.search(r"\\(?:[^abfnrtvxuU0-7'\"\\]|[4-7][0-7][0-7]|x\{)", re.sub(r"\\\\", "", value)):
        return ANY
    try:
        return codecs.decode(value.encode("latin-1", "backslashreplace"), "unicode_escape").split("\0")[0]
    except ValueError:
        return ANY
