"""Credentials of MCP servers, which the gateway adds and agents never see.

Without an implementation of ``CredentialStore`` of their own, installations keep them as files:
``.helix/tool-credentials/NAME.json``, or ``NAME/OWNER.json`` for one owner.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from api_client.contract.errors import SettingsError
from api_client.contract.settings import STATE_DIR, Settings

_FOLDER = "tool-credentials"
_MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A secret of a server: HTTP headers, or variables of its environment."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Whether it belongs to one owner, so that the server's process serves nobody else.
    personal: bool = False


class CredentialStore(Protocol):
    """Interface of the places where credentials are kept."""

    def read_credential(self, name: str, owner: str) -> Credential:
        """Return the owner's credential of this name, or the installation's. Raises ``SettingsError`` for none."""
        ...


class CredentialFiles:
    """Reads credentials from files that only their owner can read: ``{"headers": {...}, "environment": {...}}``."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.root / STATE_DIR / _FOLDER

    def read_credential(self, name: str, owner: str) -> Credential:
        """Return the owner's credential of this name, or the installation's. Raises ``SettingsError`` for none."""
        own = self._folder / name / f"{owner}.json"
        path = own if own.is_file() else self._folder / f"{name}.json"
        try:
            return _read_file(path, personal=path == own)
        except (OSError, ValueError, TypeError) as error:
            raise SettingsError([f"the credentials {name!r} cannot be read: {type(error).__name__}"]) from None


def _read_file(path: Path, *, personal: bool) -> Credential:
    with path.open("rb") as file:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise PermissionError("other users can read it")
        data = json.loads(file.read(_MAX_BYTES))
    parts = {name: dict(data.get(name, {})) for name in ("headers", "environment")}
    if not all(isinstance(each, str) for part in parts.values() for each in part.values()):
        raise ValueError("names and values must be texts")
    return Credential(**parts, personal=personal)
