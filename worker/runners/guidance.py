"""Gives a model's agents their skills and instruction files, and decides what else of the project they see."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings, guidance
from worker.runners.agent_sessions import read_session_rules
from worker.runners.base import Order

#: Where most agents look for skills, below their HOME.
SKILLS_FOLDER = Path(".agents/skills")


def read_instructions(order: Order, settings: Settings) -> str:
    """Return the session's CLAUDE.md together with the model's instruction files. Raises ``SettingsError``."""
    names = () if order.read_only else settings.instructions
    texts = _read_each(guidance.read_instruction_file, settings, "instructions", names)
    return "\n\n".join(filter(None, [read_session_rules(order), *texts]))


def list_skills(settings: Settings) -> dict[str, Path]:
    """Return the folders of a model's skills, by name. Raises ``SettingsError``."""
    found = _read_each(guidance.find_skills, settings, "skills", settings.skills)
    return {name: path for skills in found for name, path in skills.items()}


def link_skills(settings: Settings, folder: Path) -> None:
    """Link a model's skills into the folder where its agent looks for them. Raises ``OSError``, ``SettingsError``."""
    for name, skill in list_skills(settings).items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(skill)


def identify_skills(settings: Settings) -> list[tuple[str, int, int]]:
    """Return what changes with a model's skills, so that a kept agent does not work with earlier ones."""
    facts = ((skill, (skill / guidance.SKILL_FILE).stat()) for skill in list_skills(settings).values())
    return [(str(skill), fact.st_ino, fact.st_mtime_ns) for skill, fact in facts]


def readable_paths(settings: Settings) -> list[Path]:
    """Return the files and folders of the project that a model's agents may read.

    Skills and instruction files are among them only if the model's block names them. Raises ``SettingsError``.
    """
    root, top = settings.root, settings.root.resolve()
    named = {name for model in settings.model_settings for name in settings.for_model(model).guidance}
    hidden = set[Path]()
    for name in (*guidance.PROJECT_GUIDANCE, *named):
        with contextlib.suppress(ValueError):
            hidden.add(root / guidance.locate_guidance(root, name).relative_to(top))
    own = _read_each(guidance.locate_guidance, settings, "skills, instructions", settings.guidance)
    return [*_leave_out(readable_entries(root), hidden), *dict.fromkeys([*own, *list_skills(settings).values()])]


def readable_entries(root: Path) -> list[Path]:
    """Return the files and folders of a project that agents may read.

    Hidden entries, links and ``projects`` are left out.
    """
    if root == root.parent:
        return []
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return []
    return [e for e in entries if not e.name.startswith(".") and e.name != "projects" and not e.is_symlink()]


def _leave_out(entries: Iterable[Path], hidden: Collection[Path]) -> Iterator[Path]:
    """Yield the entries without the hidden paths. Replace a folder that contains a hidden path by its other entries."""
    for entry in entries:
        if not any(path.is_relative_to(entry) for path in hidden):
            yield entry
        elif entry not in hidden:
            yield from _leave_out(sorted(each for each in entry.iterdir() if not each.is_symlink()), hidden)


def _read_each(find: Callable[[Path, str], Any], settings: Settings, key: str, names: Sequence[str]) -> list[Any]:
    try:
        return [find(settings.root, name) for name in names]
    except ValueError as error:
        raise SettingsError([f"{key}: {error}"]) from None
