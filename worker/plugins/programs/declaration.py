"""The declaration of an agent program: start, files, variables and kept state (docs/agents.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

from api_client.contract.errors import HelixError
from api_client.contract.value_kinds import (
    InvalidValue,
    Kind,
    choice_kind,
    list_kind,
    read_mapping,
    read_word,
    record_kind,
)
from worker.enforcement.documents.yaml_reader import read_yaml

#: API of a model service -> paths below its base address, and the header for the key.
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

#: Allowed placeholders ``{name}`` in a declaration.
NAMES = frozenset({"model", "url", "key", "home", "directory", "prompt", "prompt_file", "session"})
_NAMED = re.compile(r"\{([a-z_]+)\}")


class DeclarationError(HelixError):
    """Raised when a declaration is invalid. The message has one line per problem: ``FILE:LINE:COLUMN: problem``."""

    code = "invalid_agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """The declaration of a program that serves as an agent: how to start it, and which state to keep.

    Attributes:
        program: a path, or a name on PATH.
        files: files to create in its HOME, with placeholders.
        instructions: path in its HOME from which it reads CLAUDE.md; empty: CLAUDE.md is put before the prompt.
        state: paths in its HOME that are kept for the session's next run.
        version: the certified version; empty for none.
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
    def uses_model_proxy(self) -> bool:
        """Return True if the program calls its model through our model proxy."""
        return self.uses_placeholder("url")

    def uses_placeholder(self, name: str) -> bool:
        texts = (*self.arguments, *self.environment.values(), *self.files.values())
        return any(f"{{{name}}}" in text for text in texts)


def fill_template(text: str, values: Mapping[str, str], *, quoted: bool = False) -> str:
    """Replace the placeholders in a text with their values. ``quoted`` escapes the values for JSON and TOML strings."""

    def fill_name(found: re.Match[str]) -> str:
        given = values.get(found[1], "")
        return json.dumps(given, ensure_ascii=False)[1:-1] if quoted else given

    return _NAMED.sub(fill_name, text)


def parse_template(value: Any) -> str:
    """Return a text after checking that it contains only known placeholders."""
    text = read_word(value)
    for name in _NAMED.findall(text):
        if name not in NAMES:
            raise ValueError(f"no such name {{{name}}}; there are: {', '.join(sorted(NAMES))}")
    return text


def parse_argument(value: Any) -> str:
    """Return a text as ``parse_template`` does, after checking that a program can be given it."""
    text = parse_template(value)
    if "\0" in text:
        raise ValueError("must hold no NUL character")
    return text


def parse_relative_path(value: Any) -> str:
    """Return a path after checking that it is relative and stays within its folder."""
    path = PurePosixPath(read_word(value))
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError("must be a path below its folder, such as .agent/sessions")
    return str(path)


def parse_templates(value: Any, kind: Kind = parse_template) -> dict[str, str]:
    """Return a mapping of names to texts after checking each text with ``kind``."""
    given = read_mapping(value)
    found: dict[str, str] = record_kind(dict.fromkeys(given, kind))({name: str(text) for name, text in given.items()})
    return found


def parse_environment(value: Any) -> dict[str, str]:
    """Return a mapping of variables to texts after checking names and texts."""
    found = parse_templates(value, parse_argument)
    for name in found:
        if not re.fullmatch(r"[^=\0]+", name):
            raise ValueError(f"{name!r} cannot be the name of a variable")
    return found


KINDS: Mapping[str, Kind] = {
    "program": read_word,
    "arguments": list_kind(parse_argument, "arguments"),
    "environment": parse_environment,
    "files": lambda value: {parse_relative_path(path): text for path, text in parse_templates(value).items()},
    "instructions": parse_relative_path,
    "state": list_kind(parse_relative_path, "paths"),
    "api": choice_kind(APIS),
    "version": read_word,
}


def read_declaration(text: str, source: str, more: Mapping[str, Kind], needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Parse the YAML declaration of a program and return its values by key.

    ``source`` names the file in errors. ``more`` are the runner's additional keys, of which ``needed`` are required.
    Raises ``DeclarationError`` with one line per problem.
    """
    kind = record_kind({**KINDS, **more}, ("program", *needed), "a declaration")
    try:
        found: dict[str, Any] = read_yaml(text, kind, "the file is empty; it needs a program")[0]
    except InvalidValue as error:
        raise DeclarationError("\n".join(f"{source}:{problem}" for problem in error.problems)) from None
    return found


def build_program(found: Mapping[str, Any]) -> AgentProgram:
    return AgentProgram(**{name: found[name] for name in KINDS if name in found})
