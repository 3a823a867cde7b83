"""CLAUDE.md of a consultant session from its template (ADR-034, Phase 2)."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from api_client.contract.errors import SettingsError
from api_client.contract.session_paths import NONE, SHIPPED, shipped

if TYPE_CHECKING:
    from jinja2 import Environment, Template


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
    template: str,
    tools: bool = True,
    skills: bool = False,
) -> str:
    """The agent's instructions about its session; ``template`` is the template's text, ``tools``: the agent has tools.

    ``skills``: the project has some (``has_skills``).

    Users' texts stand in code blocks: the Claude CLI would read ``@path`` in the open as "put that file in here".

    Raises:
        SettingsError: the template cannot be filled in.
    """
    from jinja2 import TemplateError  # 2 MB, not needed where no agent has a folder

    try:
        return _template(template).render(
            tools=tools,
            session_id=session_id,
            created_at=created_at,
            original_request=original_request[:_MAX_REQUEST],
            workdir=workdir,
            root=root,
            skills=root / "skills" if skills else None,
            context=dict(context),
        )
    except TemplateError as error:
        raise SettingsError([f"prompt_template: {type(error).__name__}: {error}"]) from error


def has_skills(root: Path) -> bool:
    """Return whether the project has skills that its agents are to know of."""
    return os.path.isdir(f"{root}/skills")  # noqa: PTH112 - asked once a run


def text_of(name: str, locale: str) -> str:
    """The text of the template that a setting names (a path, ``de``, ``en``), in the turn's language without one.

    Raises:
        SettingsError: the file cannot be read.
    """
    if name == NONE:
        return ""
    if not name or name in SHIPPED:
        return shipped(name or locale)
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError([f"prompt_template {name}: cannot be read ({error})"]) from None


def check(name: str) -> None:
    """Fill in the template that a setting names, for a session that does not exist. Those we ship are tested.

    Raises:
        SettingsError: it cannot be read or filled in.
    """
    if name and name not in SHIPPED and (text := text_of(name, "en")):
        place = Path("/nowhere")
        for tools in (True, False):
            render(
                session_id="s", created_at="", original_request="", workdir=place, root=place, context={"a": "b"},
                template=text, tools=tools,
            )  # fmt: skip


def fenced(text: str) -> str:
    """A text as a code block that nothing in it can end."""
    fence = "`" * (max(map(len, re.findall(r"`{3,}", text)), default=2) + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    # Markdown for an agent, not HTML: what protects here is the fence.
    environment = Environment(
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["fenced"] = fenced
    return environment


@functools.lru_cache(maxsize=32)
def _template(text: str) -> Template:
    return _environment().from_string(text)
