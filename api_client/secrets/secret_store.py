"""Stores encrypted secrets in Redis by name, owner and server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api_client.contract.errors import SettingsError
from api_client.contract.keys import KeyNames, named_key
from api_client.secrets.cipher import SecretCipher, UnreadableSecret
from api_client.store import Store

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
#: Replaces a value that is still the one that was read.
_SWAP = """\
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
#: Deletes a value that is still the one that was read.
_DROP = "return redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] and redis.call('HDEL', KEYS[1], ARGV[1]) or 0"


class SecretKeys(KeyNames):
    """Names the Redis keys under which secrets are stored."""

    #: Hash: the secrets, encrypted, by ``SecretId.field``.
    secrets = named_key("secrets")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretId:
    """Identifies a stored secret by name, owner and, for an OAuth token, the MCP server of the token.

    Attributes:
        owner: id of the owner whose secret it is; empty for a secret of the installation.
        server: name of the server whose OAuth token it is; empty for a secret that an operator set.
    """

    name: str
    owner: str = ""
    server: str = ""

    @property
    def field(self) -> str:
        return "/".join((self.name, self.owner, self.server)).rstrip("/")

    @classmethod
    def from_field(cls, field: str) -> SecretId:
        name, owner, server = (*field.split("/"), "", "")[:3]
        return cls(name=name, owner=owner, server=server)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSecret:
    """A secret that was read from the store. If no key decrypts it, ``value`` is None and ``set_at`` is 0.

    ``set_at`` is when the secret was encrypted, in seconds since the epoch.
    """

    secret_id: SecretId
    value: dict[str, Any] | None = field(repr=False)
    set_at: int


class SecretStore:
    """Writes and reads encrypted secrets. Raises ``StoreUnavailable``, and ``SettingsError`` without a key."""

    def __init__(self, store: Store) -> None:
        self._store, self._settings = store, store.settings
        self._key = SecretKeys(store.namespace).secrets

    async def write_secret(self, secret_id: SecretId, value: Mapping[str, Any]) -> None:
        """Encrypt and store a secret; replace an earlier one. Raises ``SettingsError`` if the name is invalid."""
        if not _NAME.fullmatch(secret_id.name):
            raise SettingsError([f"{secret_id.name!r}: a name has 1 to 64 letters, digits, - and _"])
        token = (await self._load_cipher()).encrypt(secret_id.field, value)
        await self._store.send_command("HSET", self._key, secret_id.field, token)

    async def read_secret(self, *secret_ids: SecretId) -> StoredSecret | None:
        """Return the first stored secret among the given ids, in their order, or None.

        Raises ``UnreadableSecret`` if no key decrypts the secret.
        """
        found = await self._store.send_command("HMGET", self._key, *(secret_id.field for secret_id in secret_ids))
        for secret_id, token in zip(secret_ids, found, strict=True):
            if token is not None:
                cipher = await self._load_cipher()
                return StoredSecret(
                    secret_id=secret_id,
                    value=cipher.decrypt(secret_id.field, token),
                    set_at=cipher.read_encryption_time(token),
                )
        return None

    async def replace_secret(
        self, secret_id: SecretId, before: Mapping[str, Any], value: Mapping[str, Any] | None
    ) -> bool:
        """Store another value, or none, if the secret still has the value ``before``. Return False if it has not."""
        token, cipher = await self._store.send_command("HGET", self._key, secret_id.field), await self._load_cipher()
        if token is None or cipher.decrypt(secret_id.field, token) != dict(before):
            return False
        if value is None:
            return bool(await self._store.send_command("EVAL", _DROP, 1, self._key, secret_id.field, token))
        fresh = cipher.encrypt(secret_id.field, value)
        return bool(await self._store.send_command("EVAL", _SWAP, 1, self._key, secret_id.field, token, fresh))

    async def delete_secret(self, name: str, owner: str = "") -> bool:
        """Delete an owner's secret and the OAuth tokens that were obtained with it. Return False if it is not stored.

        An empty owner is the installation. Deleting needs no key.
        """
        fields = [each.decode() for each in await self._store.read_hash(self._key)]
        secret_ids = map(SecretId.from_field, fields)
        doomed = [secret_id.field for secret_id in secret_ids if (secret_id.name, secret_id.owner) == (name, owner)]
        return bool(doomed) and bool(await self._store.send_command("HDEL", self._key, *doomed))

    async def list_secrets(self) -> list[StoredSecret]:
        """Return all stored secrets; those that no key decrypts have no value."""
        found = await self._store.read_hash(self._key)
        cipher = await self._load_cipher() if found else None
        return [_decrypt_stored(cipher, name.decode(), token) for name, token in sorted(found.items()) if cipher]

    async def encrypt_all_again(self) -> int:
        """Encrypt every stored secret again with the first key of the key file. Return the number of secrets."""
        found, cipher = await self._store.read_hash(self._key), await self._load_cipher()
        for name, token in found.items():
            cipher.decrypt(name.decode(), token)
            await self._store.send_command("EVAL", _SWAP, 1, self._key, name, token, cipher.encrypt_again(token))
        return len(found)

    async def _load_cipher(self) -> SecretCipher:
        return await asyncio.to_thread(SecretCipher, self._settings)


def _decrypt_stored(cipher: SecretCipher, field: str, token: bytes) -> StoredSecret:
    secret_id = SecretId.from_field(field)
    try:
        return StoredSecret(
            secret_id=secret_id, value=cipher.decrypt(field, token), set_at=cipher.read_encryption_time(token)
        )
    except UnreadableSecret:
        return StoredSecret(secret_id=secret_id, value=None, set_at=0)
