"""Digests of the files that a tool call names, to detect changes between a person's approval and the call.

Any word of the arguments may be a file name. Files that a program finds by itself (``make`` its Makefile) are not
covered.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from worker.files.folder_trees import walk_tree

#: Separators between words of a command, a setting (``--file=x``, ``@x``) or a list.
_BETWEEN = re.compile(r"[\s'\"`;|&<>()\[\]{}=,@\\$]+")
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_MOST_WORDS, _MOST_ENTRIES, _MOST_BYTES = 2_000, 2_000, 64 * 2**20
#: Names in a delivery's folder that the worker and its hooks write.
_OURS = frozenset({"marks"})


def digest_named_files(arguments: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return a hash for each file or folder named in a tool call's arguments, by path; ``.`` is the folder itself."""
    words = list(dict.fromkeys(_split_words(arguments)))[:_MOST_WORDS]
    bases = [folder, *(folder / word for word in words if _is_folder(folder / word))]
    found: dict[str, str] = {}
    for word in words:
        for base in bases:
            path = os.path.normpath(base / word)
            name = os.path.relpath(path, folder) if Path(path).is_relative_to(folder) else path
            if name not in found and (digest := _digest_path(Path(path), folder)):
                found[name] = digest
    return found


def _split_words(value: Any, depth: int = 3) -> Iterator[str]:
    if isinstance(value, str):
        yield from filter(None, (value, *_BETWEEN.split(value)))
        try:
            quoted = shlex.split(value)
        except ValueError:
            quoted = [text for pair in _QUOTED.findall(value) for text in pair]
        for word in quoted if depth else ():  # a name with blanks, or a nested command
            if word != value:
                yield from _split_words(word, depth - 1)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _split_words(each)
    elif isinstance(value, list):
        for each in value:
            yield from _split_words(each)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _digest_path(path: Path, folder: Path) -> str:
    digest, found = hashlib.sha256(), False
    try:
        facts = path.lstat()
        if found := stat.S_ISLNK(facts.st_mode):
            digest.update(os.fsencode(path.readlink()))
            path = Path(os.path.realpath(path))
            facts = path.lstat()
    except (OSError, ValueError):
        return digest.hexdigest() if found else ""
    digest.update(b"%o" % stat.S_IFMT(facts.st_mode))
    if stat.S_ISDIR(facts.st_mode):
        if path.is_relative_to(folder):
            _add_entries(digest, path, folder)
    elif stat.S_ISREG(facts.st_mode) and facts.st_size <= _MOST_BYTES:
        try:
            with open(path, "rb", opener=_open_nonblocking) as file:
                digest.update(file.read(_MOST_BYTES))
        except OSError as error:
            digest.update(f"{error.errno} {facts.st_size} {facts.st_mtime_ns}".encode())
    else:
        digest.update(f"{facts.st_size} {facts.st_mtime_ns} {facts.st_rdev}".encode())
    return digest.hexdigest()


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _add_entries(digest: Any, path: Path, folder: Path) -> None:
    left = _MOST_ENTRIES
    for place, folders, files in walk_tree(path):
        folders.sort()
        if place == str(folder):
            folders[:] = [name for name in folders if name not in _OURS]
        for name in sorted([*folders, *files])[:left]:
            try:
                facts = os.lstat(os.path.join(place, name))  # noqa: PTH118 - the walk gives texts
            except OSError:
                continue
            own = "" if stat.S_ISDIR(facts.st_mode) else f" {facts.st_size} {facts.st_mtime_ns}"
            digest.update(os.fsencode(f"{os.path.relpath(place, path)}/{name} {facts.st_mode}{own}\n"))
        left -= len(folders) + len(files)
        if left <= 0:
            return
