"""A project with skills and instruction files of which a model's block names some."""

from pathlib import Path
from typing import Any

#: What the model is told of its own skill and instructions, and what is written wherever it may not look.
SKILL, INSTRUCTION, CANARY = "Reviews-drawings-well", "House-rule-47", "CANARY"
OWN = {"skills": ("team/skills",), "instructions": ("team/house.md",)}
_OTHERS = (
    "team/more/pay/SKILL.md", "team/other.md", "skills/own/SKILL.md", "AGENTS.md", "CLAUDE.md", "GEMINI.md", "QWEN.md",
    "CONTEXT.md", ".claude/CLAUDE.md", ".claude/skills/hidden/SKILL.md", ".agents/skills/hidden/SKILL.md",
    ".codex/AGENTS.md", ".opencode/skills/hidden/SKILL.md", ".qwen/skills/hidden/SKILL.md", "projects/AGENTS.md",
)  # fmt: skip


def skill(name: str, description: str) -> str:
    """Return the content of a SKILL.md."""
    return f"---\nname: {name}\ndescription: {description}\n---\n{description}, in full.\n"


def write(path: Path, text: str) -> None:
    """Write a file, and the folders around it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def project(root: Path, home: Path) -> dict[str, Any]:
    """Write the project and a worker's HOME. Return the settings of a model, and of another one beside it."""
    write(root / "team/skills/review/SKILL.md", skill("review", SKILL))
    write(root / "team/skills/review/data.txt", "inside")
    write(root / "team/house.md", f"{INSTRUCTION}\n")
    write(root / "src.py", "source")
    for place in (root, home):
        for name in _OTHERS:
            write(place / name, skill(Path(name).parent.name, f"{CANARY} {name}") if "skills" in name else CANARY)
    other = {"skills": ("team/more",), "instructions": ("team/other.md",)}
    return {**OWN, "model_settings": {"mine": OWN, "other": other}}
