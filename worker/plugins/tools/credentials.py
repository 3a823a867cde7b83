"""Credentials of MCP servers, which the gateway adds and agents never see."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api_client.contract.errors import SettingsError
from api_client.secrets.secret_store import SecretId, SecretStore

#: Parts of a stored credential besides a client's secret: mappings of names to texts.
_MAPPINGS = ("headers", "environment")
_CLIENT_SECRET = "client_secret"  # noqa: S105 - the name of a part
#: What RFC 9110 calls a token.
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A secret for an MCP server: HTTP headers, environment variables, or the secret of an OAuth client."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    client_secret: str = field(default="", repr=False)
    #: True if the credential belongs to one owner, so that the server's process serves no other owner.
    personal: bool = False

    @classmethod
    def from_value(cls, value: Any, *, personal: bool = False) -> Credential:
        """Create a credential from its JSON object. Raises ``ValueError`` without revealing the value."""
        shaped = isinstance(value, dict) and value and set(value) <= {*_MAPPINGS, _CLIENT_SECRET}
        if not shaped or not all(isinstance(value.get(part, {}), dict) for part in _MAPPINGS):
            raise ValueError('must look like {"headers": {"NAME": "VALUE"}, "environment": {"NAME": "VALUE"}}')
        texts = [text for part in _MAPPINGS for text in value.get(part, {}).values()]
        if not all(isinstance(text, str) and text for text in [*texts, value.get(_CLIENT_SECRET, "-")]):
            raise ValueError("names and values must be texts")
        if not texts and _CLIENT_SECRET not in value:
            raise ValueError("has neither headers nor variables")
        credential = cls(**value, personal=personal)
        credential._check_names_and_values()
        return credential

    def _check_names_and_values(self) -> None:
        # A program that refuses a header or variable would repeat the secret in its error, in its own spelling.
        for name, text in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError("the name of a header has letters, digits and - alone")
            if not text.isascii() or not text.isprintable() or text != text.strip():
                raise ValueError("a header has one line of ASCII without blanks around it")
        if any(not name or "=" in name or "\0" in name + text for name, text in self.environment.items()):
            raise ValueError("a variable has a name without =, and no character 0")

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the texts to mask, longest first: all secret values, and the part of headers after the scheme."""
        texts = {*self.headers.values(), *self.environment.values(), self.client_secret} - {""}
        texts |= {text.split(" ", 1)[1] for text in texts if " " in text}
        return tuple(sorted(texts, key=len, reverse=True))


class StoredCredentials:
    """Reads the MCP servers' credentials that the command ``turns secrets`` stored."""

    def __init__(self, secrets: SecretStore) -> None:
        self._secrets = secrets

    async def read_credential(self, name: str, owner: str) -> Credential:
        """Return the owner's credential with this name, or else the one that all owners share.

        Raises ``SettingsError`` or ``StoreUnavailable``.
        """
        secret_ids = [SecretId(name=name, owner=each) for each in dict.fromkeys((owner, ""))]
        found = await self._secrets.read_secret(*secret_ids)
        if found is None:
            raise SettingsError([f"there are no credentials {name!r}; `turns secrets set {name}` stores them"])
        try:
            return Credential.from_value(found.value, personal=bool(found.secret_id.owner))
        except ValueError as error:
            raise SettingsError([f"the credentials {name!r}: {error}; `turns secrets set {name}`"]) from None
