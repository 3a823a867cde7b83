"""Finds all commands that a command line runs, including those that ``sh -c``, ``env`` or ``find -exec`` start."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from worker.runners.tool_rules.patterns import ANY, GLOB
from worker.runners.tool_rules.shell_words import ANYTHING, ShellCommand, UnreadableCommand, parse_commands

#: Kind of program, by how it treats its arguments -> names (programs.toml).
PROGRAMS = {
    kind: frozenset(names.split())
    for kind, names in tomllib.loads(Path(__file__).with_name("programs.toml").read_text(encoding="utf-8")).items()
}
#: Limits: nesting of commands, number of commands, words of a starting command, characters of a script.
_DEPTH, _MOST, _MOST_WORDS, _MOST_CHARS = 8, 1_000, 100, 4_000
_INTERPRETER = re.compile(
    r"(?:bun|deno|expect|i?ruby|julia|lua\w*|node(?:js)?|osascript|perl|php|pypy|python|Rscript|tclsh)[\d.]*"
)
#: Inline code of interpreters; awk and sed code that runs commands or opens unnamed files.
_INLINE = re.compile(
    r"-(?![-m])[A-Za-z0-9]*?[ceEpr].*|--(?:eval|print|run|command|execute)\b.*|-|eval|timeit", re.DOTALL
)
_AWK = re.compile(r"system|getline|\|.|@load|print[^}]*>", re.DOTALL)
_SED = re.compile(r"(?:^|[\s;{}\d$/])e(?:\s|$|;)|s(\W)(?:\\.|(?!\1).)*\1(?:\\.|(?!\1).)*\1[gpimIMw0-9]*e", re.DOTALL)
#: Git settings that run commands, and options of any program whose value is a command line.
_SETTINGS = re.compile(r"alias\.|!|command|pager=(?!cat\b)|editor|hook", re.IGNORECASE)
_RUNS = re.compile(
    r"--(?:to-command|checkpoint-action|use-compress-program|rsh|filter|exec|compress-program|upload-pack|receive-pack"
    r"|open-files-in-pager)(?:=(?:exec=)?(.*))?",
    re.DOTALL,
)
_STANDARD_INPUT = re.compile(r"/(?:dev|proc)/.*")
_LINE = re.compile(r"[\s;&|<>$`(]")


def find_commands(command_line: str | list[str]) -> list[ShellCommand]:
    """Return all commands that a command line runs, in order, including those that ``sh -c`` or ``env`` starts.

    ``ANYTHING`` stands for a command that is unknown. A list of arguments is one command.
    """
    first = _parse_line(command_line) if isinstance(command_line, str) else [ShellCommand(tuple(command_line))]
    found: list[ShellCommand] = []
    todo = [(each, 0) for each in reversed(first)]
    while todo:
        command, depth = todo.pop()
        if depth > _DEPTH or len(found) > _MOST:
            return [ANYTHING]
        if command not in found:
            todo += [(each, depth + 1) for each in reversed([*_started_commands(command)])]
        found.append(command)
    return found


def get_program_name(command: ShellCommand) -> str:
    """Return the name of the program that a command runs, without its folder, or '' for an empty command."""
    return command.words[0].rpartition("/")[2].removeprefix("=") if command.words else ""


def list_spellings(command: ShellCommand) -> Iterator[str]:
    """Yield a command's text as it is, and without its leading options: ``git -C folder push``, then ``git push``.

    Rules are matched with each spelling.
    """
    if command.words:
        program, words = get_program_name(command), command.words[1:]
        if program.startswith("git-"):
            program = program.replace("-", " ", 1)
        yield _join_words(command.words)
        places = _find_operand_starts(words)
        yield from (_join_words((program, *words[at:])) for at in places[:_MOST_WORDS])
        if len(places) > _MOST_WORDS:
            yield ANY


def _find_operand_starts(words: tuple[str, ...]) -> list[int]:
    places = {0}  # an option may take the next word as its value, or not
    for at, word in enumerate(words):
        if at in places and word.startswith(("-", "+", ANY, GLOB)):
            places |= {at + 1} if "=" in word else {at + 1, at + 2}
    return sorted(at for at in places if at <= len(words))


def _join_words(words: tuple[str, ...]) -> str:
    return " ".join(words).replace(f" {ANY}", ANY).replace(f"{ANY} ", ANY)


def _parse_line(line: str) -> list[ShellCommand]:
    try:
        return [ANYTHING] if ANY in line or GLOB in line else parse_commands(line)
    except UnreadableCommand:
        return [ANYTHING]


def _started_commands(command: ShellCommand) -> Iterator[ShellCommand]:
    program, words = get_program_name(command), command.words[1:]
    if _runs_anything(program, words, command.stdin):
        yield ANYTHING
    for at, word in enumerate(words):
        if (found := _RUNS.fullmatch(word)) or (program == "git" and word == "-x"):
            yield from _parse_line(found[1] if found and found[1] is not None else "".join(words[at + 1 : at + 2]))
        text = re.sub(r"^[\w.-]+=", "", word) if program == "alias" else word
        if program == "alias" or (program in PROGRAMS["readers"] and _LINE.search(text)):
            yield from _parse_line(text)
    if program in PROGRAMS["shells"] and command.stdin and not any(re.fullmatch(r"-\w*c", word) for word in words):
        yield from _parse_line(command.stdin)
    starts: Iterable[int] = ()
    if program in PROGRAMS["shells"] | PROGRAMS["source"] or _INTERPRETER.fullmatch(program):
        starts = _find_operand_starts(words)[:_MOST_WORDS]
    elif program in PROGRAMS["starters"]:
        starts = range(min(len(words), _MOST_WORDS))
    elif program in PROGRAMS["containers"]:
        starts = (at + 1 for at, word in enumerate(words) if word in PROGRAMS["command_options"])
    replaces = program == "xargs" and any(re.match(r"-[A-Za-z0-9]*[IiJ]|--replace", word) for word in words)
    for at in starts:
        ends = (end for end in range(at, len(words)) if program == "find" and words[end] in {";", "+"})
        inner = tuple(word.replace("{}", ANY) for word in words[at : next(ends, None)])
        if inner and not inner[0].startswith("-"):
            more = (ANY,) if program in {"xargs", "parallel"} else ()
            wrapped = program not in PROGRAMS["containers"]
            yield command._replace(words=(inner[0], ANY) if replaces else inner + more, wrapped=wrapped)


def _runs_anything(program: str, words: tuple[str, ...], stdin: str | None) -> bool:
    operands = [word for word in words if not word.startswith(("-", "+"))]
    given = [words[at] for at in _find_operand_starts(words) if at < len(words)]
    asks = bool(words) and not operands and words[0] in {"--version", "--help", "-V", "-v", "-h"}
    if program in PROGRAMS["opaque"] or (program in PROGRAMS["starters"] and len(words) > _MOST_WORDS):
        return not asks
    if program in PROGRAMS["shells"]:
        reads = not operands or any(re.fullmatch(r"-\w*s", word) for word in given)
        return (reads and not asks and stdin is None) or any(map(_STANDARD_INPUT.fullmatch, words))
    if program in PROGRAMS["source"]:
        return any(map(_STANDARD_INPUT.fullmatch, words))
    if _INTERPRETER.fullmatch(program):
        inline = any(_INLINE.fullmatch(word) or _STANDARD_INPUT.fullmatch(word) for word in given)
        return not asks and (not operands or inline)
    if program == "env":
        return any(re.match(r"-[a-zA-Z0]*S|--split-string", word) for word in words)
    if program in PROGRAMS["awk"] | PROGRAMS["sed"]:
        code = _SED if program in PROGRAMS["sed"] else _AWK
        return any(ANY in word or len(word) > _MOST_CHARS or code.search(word) for word in words)
    if program == "git":
        settings = (at for at, word in enumerate(words) if word.startswith(("-c", "--config-env")))
        return any(_SETTINGS.search(" ".join(words[at : at + 2])) for at in settings)
    return program == "make" and any(word.startswith("--eval") or word in {"-f-", "-"} or ANY in word for word in words)
