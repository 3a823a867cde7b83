"""The folder and the session in which the phases of a directory run, separate for each owner.

Callers without a key use ``DIRECTORY/phases/<id>/``; an owner with a key has a private
``projects/phases/<session>/<id>/``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from api_client.contract.keys import session_digest
from api_client.contract.owners import LOCAL_OWNER
from api_client.contract.phase import Phase
from api_client.contract.phase_checks import explain_bad_folder
from api_client.contract.turn import TurnRequest
from api_client.contract.value_kinds import Problem

#: Name of the phases folder; in input files it means the owner's own folder.
PHASES = "phases"
PRIVATE = "projects/phases"
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a plain file", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe"}


def phase_session(directory: str, owner: str = LOCAL_OWNER) -> str:
    """Return the id of the session in which an owner's phases in a directory run one after the other."""
    whose = directory if owner == LOCAL_OWNER else f"{owner}\n{directory}"
    return f"phases-{session_digest(whose)}"


def phases_folder(request: TurnRequest) -> PurePosixPath:
    """Return the folder for the results of all phases in a request's directory, relative to HELIX_ROOT."""
    if request.owner == LOCAL_OWNER:
        return PurePosixPath(phases_directory(request)) / PHASES
    return PurePosixPath(PRIVATE) / phase_session(phases_directory(request), request.owner)


def locate_input_file(root: Path, request: TurnRequest, path: str) -> Path:
    """Return the path of a phase's input file, either in the phase's directory or among other phases' results."""
    first, *rest = PurePosixPath(path).parts
    if first == PHASES:
        return root.joinpath(phases_folder(request), *rest)
    return root / phases_directory(request) / path


def phases_directory(request: TurnRequest) -> str:
    """Return the folder that holds the request's phases.yaml, relative to HELIX_ROOT."""
    return str(request.work_data.get("directory", ""))


def explain_bad_directory(root: Path, directory: str) -> str:
    """Return why phases cannot run in a directory, or an empty string if they can.

    ``directory`` is relative to ``root``, which is HELIX_ROOT.
    """
    if problem := explain_bad_folder(directory):
        return problem
    kind = file_kind(root, directory)
    if kind == "a folder":
        return ""
    return f"there is no folder {directory[:80]!r} below HELIX_ROOT" if not kind else f"{directory[:80]!r} is {kind}"


def find_input_problems(root: Path, phases: Sequence[Phase], requests: Sequence[TurnRequest]) -> list[Problem]:
    """Return a problem for each input file that exists but is not a plain file."""
    return [
        Problem(("phases", number, "input_files", place), problem)
        for number, (phase, request) in enumerate(zip(phases, requests, strict=True))
        for place, path in enumerate(phase.input_files)
        if (problem := explain_bad_input(root, request, path))
    ]


def explain_bad_input(root: Path, request: TurnRequest, path: str) -> str:
    """Return why a path cannot be an input file, or an empty string if it is a plain file or does not exist yet."""
    place = locate_input_file(root, request, path)
    if ".helix" in place.relative_to(root).parts:
        return f"{path[:80]!r} is part of the installation, not of the project"
    kind = file_kind(root, str(place.relative_to(root)))
    return f"{path[:80]!r} is {kind}, not a plain file" if kind not in {"", "a plain file"} else ""


def file_kind(root: Path, path: str) -> str:
    """Describe what exists at a path below ``root``, such as ``a plain file``, or return '' for nothing."""
    place, kind = root, "a folder"
    for part in PurePosixPath(path).parts:
        if kind != "a folder":
            return ""
        place /= part
        try:
            kind = _KINDS.get(stat.S_IFMT(os.lstat(place).st_mode), "a device or socket")
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"unreadable ({error.strerror})"
        if kind == "a link":
            return kind
    return kind
