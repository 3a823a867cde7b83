"""Encrypts secrets with the Fernet keys in a file. The key in the first line encrypts; every key decrypts."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from api_client.private_file import write_private

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

_SETTING = "HELIX_SECRETS_KEY_FILE"
_MAX_BYTES = 65_536


class UnreadableSecret(SettingsError):
    """Raised if no key decrypts a secret, or if the secret was encrypted under another id."""


class SecretCipher:
    """Encrypts and decrypts secrets. Each is bound to its id, so nobody can exchange two secrets in the store."""

    def __init__(self, settings: Settings) -> None:
        """Read the keys from the key file. Raises ``SettingsError`` if the file has none or cannot be read."""
        _require_package()
        from cryptography.fernet import MultiFernet

        self._path = settings.secrets_key_path
        keys = _read_keys(self._path)
        if not keys:
            raise SettingsError([f"{_SETTING}: {self._path} is empty; `turns secrets new-key` makes a key"])
        self._keys = MultiFernet(keys)

    def encrypt(self, secret_id: str, value: Mapping[str, Any]) -> bytes:
        """Encrypt the value of a secret with the first key. ``decrypt`` needs the same ``secret_id``."""
        return self._keys.encrypt(json.dumps({"place": secret_id, "value": value}).encode())

    def decrypt(self, secret_id: str, encrypted: bytes) -> dict[str, Any]:
        """Return the value of an encrypted secret.

        Raises ``UnreadableSecret`` if no key decrypts the secret, or if it was encrypted under another id.
        """
        from cryptography.fernet import InvalidToken

        try:
            data = json.loads(self._keys.decrypt(encrypted))
        except InvalidToken:
            said = f"{_SETTING}: no key in {self._path} decrypts {secret_id}; restore the key, or set the secret again"
            raise UnreadableSecret([said]) from None
        if data["place"] != secret_id:
            raise UnreadableSecret([f"the secret {secret_id} was stored for {data['place']}; set it again"])
        return dict(data["value"])

    def read_encryption_time(self, encrypted: bytes) -> int:
        """Return when a secret was encrypted, in seconds since the epoch."""
        return self._keys.extract_timestamp(encrypted)

    def encrypt_again(self, encrypted: bytes) -> bytes:
        """Re-encrypt a secret with the first key. Its encryption time stays the same."""
        return self._keys.rotate(encrypted)


def add_key(settings: Settings) -> int:
    """Write a new key as the first line of the key file, and return the number of keys in the file.

    Raises ``SettingsError`` if the file has anything else than keys.
    """
    _require_package()
    from cryptography.fernet import Fernet

    path = settings.secrets_key_path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        count = len(_read_keys(path)) if path.exists() else 0
        earlier = path.read_text(encoding="ascii").split() if count else []
        content = ("\n".join([Fernet.generate_key().decode(), *earlier]) + "\n").encode()
        if len(content) > _MAX_BYTES:
            raise SettingsError([f"{_SETTING}: {path} is full; `turns secrets rotate`, then remove its last lines"])
        write_private(path, content)
    return count + 1


def _require_package() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise SettingsError(["secrets need the package cryptography; pip install 'helix-turns[mcp]'"])


def _read_keys(path: Path) -> list[Fernet]:
    """Return the keys in a file that only this user can read."""
    from cryptography.fernet import Fernet

    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        remedy = "; `turns secrets new-key` creates it" if isinstance(error, FileNotFoundError) else ""
        raise SettingsError([f"{_SETTING}: {path} cannot be read: {error.strerror}{remedy}"]) from None
    if mode & 0o077:
        raise SettingsError([f"{_SETTING}: other users can read {path}; `chmod 600 {path}`"])
    try:
        if len(content) <= _MAX_BYTES:
            return [Fernet(line) for line in content.decode("ascii").split()]
    except ValueError:
        pass
    said = f"{path} is not a key file of at most {_MAX_BYTES} bytes; restore the keys, or move the file away"
    raise SettingsError([f"{_SETTING}: {said}"])
