"""Finds the files and folders that a tool call may read or write, from its arguments or its shell commands."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from worker.runners.tool_rules.patterns import ANY, GLOB, Match, match_pattern
from worker.runners.tool_rules.shell_commands import PROGRAMS, get_program_name
from worker.runners.tool_rules.shell_words import ShellCommand

#: Arguments that name the working folder.
WORKING_FOLDERS = ("cwd", "workdir", "working_directory", "directory", "dir_path")
_RECURSIVE = re.compile(r"-[A-Za-z0-9]*[rR]|--recursive|--dereference-recursive")
_NAMED = re.compile(r"path|file|uri|url|dir|folder|dest|source|target|root|cwd|notebook", re.IGNORECASE)
_SEARCH_TOOL = re.compile(r"grep|glob|search|list|^ls$|find|tree", re.IGNORECASE)
_TOKEN = re.compile(r"[^\s'\"`()\[\]{},;=<>|&$:@]+")
#: A glob whose result leaves its folder again by ``..``.
_LEAVES = re.compile(f"{GLOB}.*/\\.\\.")
#: Limits: characters of a text, folders per line, names per glob, paths in all; beyond them the result is unknown.
_MOST_CHARS, _MOST_FOLDERS, _MOST_NAMES, _MOST_PATHS = 4_096, 24, 200, 5_000


def match_paths(
    folder_pattern: str, paths: Iterable[str | None], root_folder: str, *, match_contents: bool
) -> list[Match]:
    """Compare each path with a folder pattern such as ``src/*``, and return one result per path.

    The pattern is relative to ``root_folder``. A path with a slash at its end is a folder; None stands for an unknown
    path. ``match_contents`` also matches a folder that may contain a match.
    """
    base = os.path.realpath(root_folder)
    patterns = {folder_pattern, f"{folder_pattern.rstrip('/')}/*"} | (
        {folder_pattern[:-2]} if folder_pattern.endswith("/*") else set()
    )
    found = []
    for number, given in enumerate(itertools.islice(paths, _MOST_PATHS + 1)):
        path = given if number < _MOST_PATHS else None
        place = None if path is None else _relative_place(path, base)
        texts = [ANY if place is None else place]
        below = match_contents and path is not None and path.endswith("/")
        if below:
            texts.append(ANY if place == "." else f"{place}/{ANY}")
        most = max(match_pattern(each, text) for each in patterns for text in texts)
        # A folder surely covers what a pattern below it names.
        found.append(Match.DOES if below and most is Match.MAY and GLOB not in texts[0] else most)
    return found


def _relative_place(path: str, base: str) -> str:
    real = os.path.realpath(path)
    return "." if base.startswith(real.rstrip("/") + "/") and path.endswith("/") else os.path.relpath(real, base)


def find_argument_paths(
    tool: str, arguments: Mapping[str, Any], working_folder: str, *, only_path_arguments: bool
) -> Iterator[str]:
    """Yield the paths in the arguments of a tool call. Relative paths start at ``working_folder``.

    ``only_path_arguments`` reads only arguments whose name tells that they are paths, such as ``file``.
    """
    searches = bool(_SEARCH_TOOL.search(tool))
    base = next(
        (
            _join_path(working_folder, value)
            for name in ("path", *WORKING_FOLDERS)
            if isinstance(value := arguments.get(name), str)
        ),
        working_folder,
    )
    if searches:
        yield f"{base}/"
    for name, text in _argument_texts(arguments):
        if not only_path_arguments or _NAMED.search(name) or (searches and name in {"pattern", "glob", "include"}):
            place = unquote(re.sub(r"^file://[^/]*", "", text)) if text.startswith("file:") else text
            inner = base if searches and name != "path" else working_folder
            for start in {inner} if only_path_arguments else {working_folder, inner}:
                yield from _resolve_path(_pattern_path(place) if searches else place, start)


def _argument_texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _argument_texts(each, str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _argument_texts(each, name)
    elif isinstance(value, str) and 0 < len(value) <= _MOST_CHARS and "\0" not in value:
        if "\n" in value and not _NAMED.search(name):
            return
        yield name, value


def _pattern_path(text: str) -> str:
    plain = re.split(r"[*?\[{]", text)[0]
    return text if plain == text else f"{plain}{GLOB}"


def find_command_paths(command: ShellCommand, working_folders: Iterable[str | None]) -> Iterator[str | None]:
    """Yield the paths that a shell command may use in ``working_folders``, and None if it may use unknown paths.

    An unknown working folder is None.
    """
    program, words = get_program_name(command), command.words[1:]
    if ANY in program or GLOB in program or program in PROGRAMS["blind"] or (not words and ANY in command.words):
        yield None
    recursive = any(_RECURSIVE.fullmatch(word) for word in words)
    add_slash = program not in PROGRAMS["shallow"] or (program == "ls" and recursive)
    operands = [word for word in words if not word.startswith("-")]
    for start in working_folders:
        if start is None:
            yield None
            continue
        if program in PROGRAMS["searchers"] and (recursive or program not in PROGRAMS["by_option"]):
            yield f"{start}/" if program == "git" or len(operands) < 2 or program == "find" else start
        for text in [*command.words, *command.files]:
            if program in PROGRAMS["speakers"] and ANY in text and text in words:
                continue
            if (
                ANY in text
                or len(text) > _MOST_CHARS
                or (text.startswith("~") and text in words)
                or _LEAVES.search(text)
            ):
                yield None
                continue
            yield from _expand_glob(text, start)
            # A value may be attached to a short option, as in ``-ofile``.
            attached = [text[at:] for at in range(2, min(len(text), 6))] if re.match(r"-[A-Za-z]", text) else []
            for token in {text, *_TOKEN.findall(text), *attached}:
                yield from _resolve_path(token, start, add_slash=add_slash)


def _expand_glob(word: str, working_folder: str) -> Iterator[str | None]:
    """Yield the existing files that a shell glob such as ``*.md`` matches, or only None if there are too many."""
    if word.rpartition("/")[0].count(GLOB) > 1:
        yield None
    elif GLOB in word:
        pattern = "*".join(map(glob.escape, str(Path(working_folder, word)).split(GLOB)))
        found = list(itertools.islice(glob.iglob(pattern, include_hidden=True), _MOST_NAMES))  # noqa: PTH207
        yield from found if len(found) < _MOST_NAMES else [None]


def find_working_folders(commands: Iterable[ShellCommand], start_folder: str) -> list[str | None]:
    """Return the folders in which a shell's commands may run, beginning with ``start_folder``.

    A folder that cannot be determined, such as the target of ``cd $X``, is None.
    """
    found: list[str | None] = [start_folder]
    for command in commands:
        for at, word in enumerate(command.words):
            changes = (get_program_name(command) in {"cd", "pushd", "chdir"} and at and not word.startswith("-")) or (
                at and command.words[at - 1] in {"-C", "--chdir", "--directory", "--work-tree"}
            )
            if changes:
                unknown = ANY in word or GLOB in word or word.startswith("~")
                found += [None if unknown or each is None else _join_path(each, word) for each in found]
        if (
            get_program_name(command) in {"popd", "chdir"}
            or ("-" in command.words and get_program_name(command) == "cd")
            or len(found) > _MOST_FOLDERS
        ):
            return [None]
    return found


def _join_path(folder: str, path: str) -> str:
    return str(Path(folder, path))


def _resolve_path(text: str, working_folder: str, *, add_slash: bool = True) -> Iterator[str]:
    """Yield the absolute form of a path, or nothing if the text cannot be a path.

    ``add_slash`` appends a slash to the path of a folder.
    """
    if not text or len(text) > _MOST_CHARS or "\0" in text:
        return
    path = Path(working_folder, text)
    yield f"{path}/" if add_slash and (GLOB in text or path.is_dir()) else str(path)
