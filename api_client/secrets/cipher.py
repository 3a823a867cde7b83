"""Encrypts secrets with the Fernet keys in a file. The key in the first line encrypts; every key decrypts."""

from __future__ import annotations

import importlib.util
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from api_client.private_file import write_private

_SETTING = "HELIX_SECRETS_KEY_FILE"
_MAX_BYTES = 65_536


class UnreadableSecret(SettingsError):
    """Raised when no key in the file decrypts a secret, or when it was encrypted for another name, owner or server."""


class SecretCipher:
    """Encrypts and decrypts secrets. Each secret is bound to its name, owner and server."""

    def __init__(self, settings: Settings) -> None:
        """Read the keys from the key file. Raises ``SettingsError`` if the file has none or cannot be read."""
        if importlib.util.find_spec("cryptography") is None:
            raise SettingsError(["secrets need the package cryptography; pip install 'helix-turns[mcp]'"])
        from cryptography.fernet import Fernet, MultiFernet

        self._path = settings.secrets_key_path
        try:
            self._keys = MultiFernet([Fernet(line) for line in _read_lines(self._path)])
        except ValueError:
            said = f"{_SETTING}: {self._path} is not a file of keys; `turns secrets new-key` makes one"
            raise SettingsError([said]) from None

    def encrypt(self, place: str, value: Mapping[str, Any]) -> bytes:
        """Encrypt a secret with the first key. ``place`` tells whose secret it is: its name, owner and server."""
        return self._keys.encrypt(json.dumps({"place": place, "value": value}).encode())

    def decrypt(self, place: str, token: bytes) -> dict[str, Any]:
        """Return a decrypted secret. ``place`` tells whose secret it is: its name, owner and server.

        Raises ``UnreadableSecret`` if no key decrypts ``token``, or if it was encrypted for another place.
        """
        from cryptography.fernet import InvalidToken

        try:
            data = json.loads(self._keys.decrypt(token))
        except InvalidToken:
            said = (
                f"{_SETTING}: no key in {self._path} decrypts the secret {place}; bring its key back, or set it again"
            )
            raise UnreadableSecret([said]) from None
        if data["place"] != place:
            raise UnreadableSecret([f"the secret {place} was stored for {data['place']}; set it again"])
        return dict(data["value"])

    def read_time(self, token: bytes) -> int:
        """Return when a secret was encrypted, in seconds since the epoch. ``token`` is the encrypted secret.

        One of the keys must decrypt the token.
        """
        return self._keys.extract_timestamp(token)

    def reencrypt(self, token: bytes) -> bytes:
        """Return a secret encrypted again with the first key. The time at which it was encrypted does not change."""
        return self._keys.rotate(token)


def add_key(settings: Settings) -> int:
    """Write a new key as the first line of the key file, and return the number of keys in the file."""
    from cryptography.fernet import Fernet

    path = settings.secrets_key_path
    earlier = _read_lines(path) if path.exists() else []
    lines = [Fernet.generate_key().decode(), *earlier]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, ("\n".join(lines) + "\n").encode())
    return len(lines)


def _read_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            lines = file.read(_MAX_BYTES).decode("ascii").split()
    except OSError as error:
        remedy = "; `turns secrets new-key` makes it" if isinstance(error, FileNotFoundError) else ""
        raise SettingsError([f"{_SETTING}: {path} cannot be read: {error.strerror}{remedy}"]) from None
    if mode & 0o077:
        raise SettingsError([f"{_SETTING}: other users can read {path}; `chmod 600 {path}`"])
    return lines
