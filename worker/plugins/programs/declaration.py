"""The declaration of an agent's program: its start, its files and variables, and the state that is kept of it.

Ours are beside the runners; users write their own in YAML (docs/agents.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

from api_client.contract.declared import Invalid, Kind, each, mapping, one_of, record, word
from api_client.contract.errors import HelixError
from worker.enforcement.documents.written import read_yaml

#: The form in which an agent asks its model: where it asks below the base address, and the header with its key.
Api = Literal["chat", "responses", "messages", "gemini"]
APIS: Mapping[str, tuple[tuple[str, ...], bytes]] = {
    "chat": (("/chat/completions",), b"authorization"),
    "responses": (("/responses", "/responses/compact"), b"authorization"),
    "messages": (("/v1/messages", "/v1/messages/count_tokens"), b"x-api-key"),
    "gemini": (
        tuple(f"/v1beta/models/*:{call}" for call in ("generateContent", "streamGenerateContent", "countTokens")),
        b"x-goog-api-key",
    ),
}

#: What ``{name}`` in a declaration may name.
NAMES = frozenset({"model", "url", "key", "home", "directory", "prompt", "prompt_file", "session"})
_NAMED = re.compile(r"\{([a-z_]+)\}")


class DeclarationError(HelixError):
    """A declaration cannot be used; a line for each problem: ``FILE:LINE:COLUMN: what is wrong``."""

    code = "invalid_agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """One agent's program.

    Attributes:
        program: a path, or a name on PATH. arguments: what follows it; ``{name}`` is filled in (``NAMES``).
        environment: variables, filled in as arguments are. files: files of its HOME, likewise.
        instructions: where below its HOME it reads the session's CLAUDE.md; empty: that is put before the prompt.
        state: files and folders below its HOME that hold its session; the session's next run finds them again.
        api: the form in which it asks its model. version: the one that was certified; empty: none was.
    """

    program: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    instructions: str = ""
    state: tuple[str, ...] = ()
    api: Api = "chat"
    version: str = ""

    @property
    def asks_here(self) -> bool:
        """Return whether it finds its model by what it is given: then its model calls go through our door."""
        return self.names("url")

    def names(self, name: str) -> bool:
        """Return whether its declaration wants the value of a name."""
        texts = (*self.arguments, *self.environment.values(), *self.files.values())
        return any(f"{{{name}}}" in text for text in texts)


def filled(text: str, values: Mapping[str, str], *, quoted: bool = False) -> str:
    """A text with the values of the names in it. ``quoted``: each as it is written within quotes in JSON or TOML."""

    def value(found: re.Match[str]) -> str:
        given = values.get(found[1], "")
        return json.dumps(given, ensure_ascii=False)[1:-1] if quoted else given

    return _NAMED.sub(value, text)


def template(value: Any) -> str:
    """A text in which only known names are in braces."""
    text = word(value)
    for name in _NAMED.findall(text):
        if name not in NAMES:
            raise ValueError(f"no such name {{{name}}}; there are: {', '.join(sorted(NAMES))}")
    return text


def below_home(value: Any) -> str:
    """A relative path that does not leave its folder."""
    path = PurePosixPath(word(value))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("must be a path below its folder, such as .agent/sessions")
    return str(path)


def templates(value: Any) -> dict[str, str]:
    """Names, each with a text to fill in."""
    given = mapping(value)
    found: dict[str, str] = record(dict.fromkeys(given, template))({name: str(text) for name, text in given.items()})
    return found


def _files(value: Any) -> dict[str, str]:
    return {below_home(path): text for path, text in templates(value).items()}


#: The keys of every declaration.
KINDS: Mapping[str, Kind] = {
    "program": word,
    "arguments": each(template, "arguments"),
    "environment": templates,
    "files": _files,
    "instructions": below_home,
    "state": each(below_home, "paths"),
    "api": one_of(APIS),
    "version": word,
}


def read_declaration(text: str, source: str, more: Mapping[str, Kind], needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """A declaration's keys with their values; ``program`` is always among them.

    ``source`` is what messages call the file. ``more`` are further keys that this runner knows, ``needed`` those of
    them that must be there. Raises ``DeclarationError`` with a line for each problem.
    """
    kind = record({**KINDS, **more}, ("program", *needed), "a declaration")
    try:
        found: dict[str, Any] = read_yaml(text, kind, "the file is empty; it needs a program")[0]
    except Invalid as error:
        raise DeclarationError("\n".join(f"{source}:{problem}" for problem in error.problems)) from None
    return found


def program_of(found: Mapping[str, Any]) -> AgentProgram:
    """The program of what ``read_declaration`` found."""
    return AgentProgram(**{name: found[name] for name in KINDS if name in found})
