"""Renders a session's CLAUDE.md from its template (ADR-034, Phase 2)."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from api_client.contract.errors import SettingsError
from api_client.contract.session_paths import NONE, SHIPPED, read_shipped_template

if TYPE_CHECKING:
    from jinja2 import Environment, Template


#: Path, inode, size, and times of modification and change; zeros for a missing entry.
Identity = tuple[str, int, int, int, int]
#: Most characters of the original request that are shown; input/request.md has the full text.
_MAX_REQUEST = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """The values that determine the content of a session's CLAUDE.md.

    Attributes:
        template: text of the template; empty: no CLAUDE.md.
        skills: where the agent's skills are, as the template shows it.
        documents: identities of the files in ``context/``.
    """

    template: str
    tools: bool
    root: Path
    skills: str = ""
    session_id: str
    created_at: str
    original_request: str
    documents: tuple[Identity, ...] = ()


def render_rules(rules: SessionRules, workdir: Path, context: Mapping[str, str]) -> str:
    """Return the text of a session's CLAUDE.md, which tells the agent about the session and where to find its skills.

    Users' texts are put in code blocks, because the Claude CLI replaces ``@path`` outside of them by a file's content.
    Raises ``SettingsError`` if the template cannot be rendered.
    """
    from jinja2 import TemplateError  # 2 MB, not needed where no agent has a folder

    try:
        return _compile_template(rules.template).render(
            tools=rules.tools,
            session_id=rules.session_id,
            created_at=rules.created_at,
            original_request=rules.original_request[:_MAX_REQUEST],
            workdir=workdir,
            root=rules.root,
            skills=rules.skills,
            context=dict(context),
        )
    except TemplateError as error:
        raise SettingsError([f"prompt_template: {type(error).__name__}: {error}"]) from error


def read_template(name: str, locale: str) -> str:
    """Return the text of a CLAUDE.md template, by its path or language. An empty name selects the locale's template."""
    if name == NONE:
        return ""
    if not name or name in SHIPPED:
        return read_shipped_template(name or locale)
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError([f"prompt_template {name}: cannot be read ({error})"]) from None


def check_template(name: str) -> None:
    """Check that a template can be rendered, by rendering it for a made-up session. Raises ``SettingsError``."""
    if name and name not in SHIPPED and (text := read_template(name, "en")):
        place = Path("/nowhere")
        for tools in (True, False):
            rules = SessionRules(
                template=text, tools=tools, root=place, session_id="s", created_at="", original_request=""
            )
            render_rules(rules, place, {"a": "b"})


def fence_text(text: str) -> str:
    """Return a text in a code fence that the text itself cannot close."""
    fence = "`" * (max(map(len, re.findall(r"`{3,}", text)), default=2) + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"


@functools.cache
def _template_environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["fenced"] = fence_text
    return environment


@functools.lru_cache(maxsize=32)
def _compile_template(text: str) -> Template:
    return _template_environment().from_string(text)
