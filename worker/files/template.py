"""CLAUDE.md of a consultant session from templates/session.md.j2 (ADR-034, phase 2)."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

#: Longest original request that is shown in full, in characters; input/request.md has all of it.
_MAX_REQUEST = 20_000


def render(
    *, session_id: str, created_at: str, original_request: str, workdir: Path, root: Path, context: Mapping[str, str]
) -> str:
    """What the agent is told about its session.

    Users' texts stand in code blocks: the Claude CLI would read ``@path`` in the open as "put that file in here".
    """
    skills = root / "skills"
    return _template().render(
        session_id=session_id,
        created_at=created_at,
        original_request=original_request[:_MAX_REQUEST],
        workdir=workdir,
        root=root,
        skills=skills if skills.is_dir() else None,
        context=dict(context),
    )


def fenced(text: str) -> str:
    """A text as a code block that nothing in it can end."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"


@functools.cache
def _template() -> Template:
    # Markdown for an agent, not HTML: what protects here is the fence.
    environment = Environment(
        loader=PackageLoader("worker.files"),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["fenced"] = fenced
    return environment.get_template("session.md.j2")
