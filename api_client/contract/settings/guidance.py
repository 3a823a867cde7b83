"""Skills and instruction files that a model's block names, relative to HELIX_ROOT (docs/tools.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from api_client.contract.settings.agent_settings import Agents
from api_client.contract.settings.declaration import declare_file_value
from api_client.contract.settings.model_blocks import ModelBlocks
from api_client.contract.settings.storage_settings import Storage
from api_client.contract.value_kinds import Kind

#: Entries of HELIX_ROOT that agents look for by themselves, but may read only if their model's block names them.
PROJECT_GUIDANCE = (
    "skills", "AGENTS.md", "AGENTS.override.md", "CLAUDE.md", "CLAUDE.local.md", "CONTEXT.md", "GEMINI.md", "QWEN.md",
)  # fmt: skip
SKILL_FILE = "SKILL.md"
#: Our state with its secrets, and the sessions, whose files agents write.
_CLOSED = (".helix", "projects")
#: Runners without files, and the keys that they take. All others take both.
_TAKES = {"scripted": (), "openai_http": ("instructions",)}
_Find = Callable[[Path, str], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class GuidanceSettings(Agents, ModelBlocks, Storage):
    """Settings of a model's agents: their skills and instruction files.

    Attributes:
        skills: folders of skills, relative to HELIX_ROOT. instructions: files whose texts are added to CLAUDE.md.
    """

    skills: tuple[str, ...] = declare_file_value(())
    instructions: tuple[str, ...] = declare_file_value(())

    @property
    def guidance(self) -> tuple[str, ...]:
        """Return the paths of all skills and instruction files that this model's block names."""
        return *self.skills, *self.instructions

    def find_problems(self) -> Iterator[str]:
        """Yield a message for each skill or instruction file that agents of any model may change."""
        yield from super().find_problems()
        models = {model: self.for_model(model) for model in self.model_settings}
        written = {(self.root / name).resolve() for each in (self, *models.values()) for name in each.writable}
        for model, settings in models.items():
            for name in settings.guidance:
                path = (self.root / name).resolve()
                if any(path.is_relative_to(place) or place.is_relative_to(path) for place in written):
                    yield f"[model.{model}] {name}: agents may write there (writable)"


def guidance_kinds(runner: str, root: Path) -> dict[str, Kind]:
    """Return parsers for ``skills`` and ``instructions`` in a model's block, if the runner supports these keys."""
    finders: dict[str, _Find] = {"skills": find_skills, "instructions": lambda *at: {at[1]: read_instruction_file(*at)}}
    return {key: partial(_read_names, finders[key], root.absolute()) for key in _TAKES.get(runner, tuple(finders))}


def _read_names(find: _Find, root: Path, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ValueError('must be a list of texts: ["a", "b"]')
    problems, known = [], set[str]()
    for name in value:
        try:
            found = set(find(root, name))
            problems += [f"{name}: a second {each!r}" for each in sorted(found & known)]
            known |= found
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(value)


def locate_guidance(root: Path, name: str) -> Path:
    """Return the resolved path of a file or folder that a model's block names. Raises ``ValueError``."""
    if Path(name).is_absolute() or ".." in Path(name).parts or Path(name) == Path():
        raise ValueError(f"{name}: must be a path below HELIX_ROOT, such as team/skills")
    try:
        path, top = (root / name).resolve(strict=True), root.resolve()
    except (OSError, RuntimeError):
        raise ValueError(f"{name}: no such file or folder in HELIX_ROOT") from None
    if not path.is_relative_to(top):
        raise ValueError(f"{name}: a link that leads out of HELIX_ROOT")
    if path == top or path.relative_to(top).parts[0] in _CLOSED:
        raise ValueError(f"{name}: must not be in {' or '.join(_CLOSED)}")
    return path


def find_skills(root: Path, name: str) -> dict[str, Path]:
    """Return the path of each skill by name. The folder ``name`` is a skill itself or contains skills."""
    folder = locate_guidance(root, name)
    inside = [f"{name}/{each.parent.name}" for each in sorted(folder.glob(f"*/{SKILL_FILE}"))]
    if (folder / SKILL_FILE).is_file():
        inside = [name]
    if not inside:
        raise ValueError(f"{name}: no skill in it, which is a folder with {SKILL_FILE}")
    for place, folders, files in os.walk(folder):
        for each in (*folders, *files):
            if (path := Path(place, each)).is_symlink():
                locate_guidance(root, f"{name}/{path.relative_to(folder)}")
    return {Path(each).name: locate_guidance(root, each) for each in inside}


def read_instruction_file(root: Path, name: str) -> str:
    """Return the text of an instruction file. Raises ``ValueError`` if it cannot be used."""
    path = locate_guidance(root, name)
    if not path.is_file():
        raise ValueError(f"{name}: must be a file")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}: cannot be read as UTF-8 ({type(error).__name__})") from None
