"""The MCP servers that a run may use: blocks ``[tools.NAME]`` of the settings file, chosen by model, key and owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.tools.server_choice import list_usable
from api_client.tools.sign_in_server import SignInServer
from worker.plugins.tools.call_policy import CallRule

#: Field that marks a question of the gateway, as opposed to one of the agent's own hook.
ASKED_BY = "asked_by"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServer:
    """An MCP server, with its limits and its policy.

    Attributes:
        url: its address, for a server that runs elsewhere.
        command: the command that starts it, for a server that speaks over standard streams.
        environment: variables of the command, besides PATH and HOME; no secrets.
        credentials: name of its credentials; empty for none.
        oauth: the OAuth client whose secret the credentials are, or how people sign in; empty for none.
        models, keys, owners: patterns of models and keys, and names of owners that may use it; empty: all.
        writes: reaction to calls of tools that are not read-only, if no rule matches.
        timeout_seconds: longest wait for a call's result.
        folders: folders that the command sees besides the system's, relative to HELIX_ROOT.
        network: whether the command's sandbox has the machine's network.
    """

    name: str
    url: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    credentials: str = ""
    oauth: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    writes: str = "ask"
    rules: tuple[CallRule, ...] = ()
    timeout_seconds: int = 60
    max_result_bytes: int = 2**20
    max_memory_mb: int = 1_024
    max_processes: int = 256
    folders: tuple[str, ...] = ()
    network: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolServer:
        """Create a server from its dictionary, or from a block of the settings file and its name."""
        rules = tuple(CallRule(**rule) for rule in data.get("rules", ()))
        lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list | tuple)}
        return cls(**{**data, **lists, "rules": rules})

    @property
    def sign_in(self) -> SignInServer | None:
        """Return the server's sign-in settings, or None if people do not sign in to it."""
        block = {"url": self.url, "credentials": self.credentials, "oauth": self.oauth}
        return SignInServer.from_block(self.name, block)


def choose_servers(settings: Settings, request: TurnRequest, model: str) -> list[ToolServer]:
    """Return the MCP servers that a turn may use while ``model`` works on it, sorted by name."""
    usable = list_usable(settings, request, model)
    return [server for server in list_servers(settings) if server.name in usable]


def list_servers(settings: Settings) -> list[ToolServer]:
    blocks = sorted(settings.tools_settings.items())
    return [ToolServer.from_dict({**block, "name": name}) for name, block in blocks]
