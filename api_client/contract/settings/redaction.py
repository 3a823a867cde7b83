"""Removes secrets from everything that leaves the processes: log lines, bundles, findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from api_client.contract.settings.store_addresses import list_passwords
from api_client.contract.settings.table import Settings

MASK = "***"
#: Shorter values are no credentials, and masking them would hide half of every text.
_SHORTEST = 6

#: Prefixes of API keys of model providers and code hosts.
_KEYS = ("sk", "pk", "rk", "ghp", "gho", "xoxb", "xoxp")
#: Patterns of credentials, each with the part to keep: API keys, bearer tokens.
_LOOKS = (
    (re.compile(rf"\b((?:{'|'.join(_KEYS)})[-_])[A-Za-z0-9_\-]{{12,}}"), r"\1" + MASK),
    (re.compile(r"\b(helix-)[A-Za-z0-9_\-]{32,}"), r"\1" + MASK),  # of `turns keys`
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/\-]{8,}=*"), r"\1" + MASK),
)
#: Beginning of each pattern: searched four times as fast, and most texts contain none.
_BEGINNING = re.compile("|".join((*(f"{key}[-_]" for key in _KEYS), "helix-", "b[eE][aA][rR]", "B[eE][aA][rR]")))
_ADDRESS = re.compile(r"(?i)\b([a-z][a-z0-9+.\-]{1,20}://[^\s/:@]*:)[^\s/@]+@")


def list_secrets(settings: Settings) -> list[str]:
    """Return all secret values in the settings, longest first. Of an address, it contains only the password."""
    found: set[str] = set()
    secret = [field.name for field in fields(settings) if field.metadata["masked"]]
    values = [getattr(settings, name) for name in secret]
    values += [block[name] for block in settings.model_settings.values() for name in secret if name in block]
    for value in values:
        for text in value if isinstance(value, tuple) else (str(value),):
            found.update(_split_secret(text))
    return sorted((text for text in found if len(text) >= _SHORTEST), key=lambda text: (-len(text), text))


def _split_secret(text: str) -> Iterator[str]:
    if "://" not in text or " " in text:  # a command may contain addresses
        yield text
    else:
        yield from list_passwords(text)


def make_redactor(settings: Settings) -> Callable[[str], str]:
    """Return a function that masks the secrets in a text."""
    known = list_secrets(settings)
    values = re.compile("|".join(map(re.escape, known))) if known else None

    def redact(text: str) -> str:
        if values:
            text = values.sub(MASK, text)
        if _BEGINNING.search(text):
            for look, kept in _LOOKS:
                text = look.sub(kept, text)
        # This pattern looks at every character.
        return _ADDRESS.sub(r"\1" + MASK + "@", text) if "://" in text else text

    return redact


def redact_value(value: Any, redact: Callable[[str], str]) -> Any:
    """Return a copy of a JSON-like value in which ``redact`` was applied to all texts and keys."""
    match value:
        case str():
            return redact(value)
        case dict():
            return {redact(str(key)): redact_value(item, redact) for key, item in value.items()}
        case list() | tuple():
            return [redact_value(item, redact) for item in value]
        case _:
            return value
