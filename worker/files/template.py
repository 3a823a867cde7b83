"""CLAUDE.md of a consultant session from templates/session.md.j2 (ADR-034, phase 2)."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, TemplateError

from api_client.contract.errors import SettingsError

#: Longest original request that is shown in full, in characters; input/request.md has all of it.
_MAX_REQUEST = 20_000


def render(
    *,
    session_id: str,
    created_at: str,
    original_request: str,
    workdir: Path,
    root: Path,
    context: Mapping[str, str],
    template: str = "",
) -> str:
    """What the agent is told about its session, from our template or from the file ``template``.

    Users' texts stand in code blocks: the Claude CLI would read ``@path`` in the open as "put that file in here".

    Raises:
        SettingsError: the file cannot be read or filled in.
    """
    skills = root / "skills"
    try:
        return _template(template).render(
            session_id=session_id,
            created_at=created_at,
            original_request=original_request[:_MAX_REQUEST],
            workdir=workdir,
            root=root,
            skills=skills if skills.is_dir() else None,
            context=dict(context),
        )
    except (TemplateError, OSError, UnicodeDecodeError) as error:
        if not template:
            raise
        raise SettingsError([f"prompt_template {template}: {type(error).__name__}: {error}"]) from error


def fenced(text: str) -> str:
    """A text as a code block that nothing in it can end."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"


@functools.cache
def _environment() -> Environment:
    # Markdown for an agent, not HTML: what protects here is the fence.
    environment = Environment(
        loader=PackageLoader("worker.files"),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["fenced"] = fenced
    return environment


def _template(file: str) -> Template:
    if file:
        return _environment().from_string(Path(file).read_text(encoding="utf-8"))
    return _environment().get_template("session.md.j2")
