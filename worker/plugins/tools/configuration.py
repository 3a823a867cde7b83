"""The MCP servers that a run may use: blocks ``[tools.NAME]`` of the settings file, chosen by model, key and owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from api_client.contract.owners import parse_owner
from api_client.contract.settings import Settings
from worker.plugins.tools.call_policy import CallRule

#: Field of a question that the gateway asks, not the agent's own hook.
ASKED_BY = "asked_by"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServer:
    """An MCP server, with its limits and its policy.

    Attributes:
        url: its address, for a server that runs elsewhere.
        command: the command that starts it, for a server that speaks over standard streams.
        environment: variables of the command, besides PATH and HOME; no secrets.
        credentials: name of its credentials; empty for none.
        models, keys: patterns of those who may use it; none named: all.
        owners: who may use it: names of keys, or owners as operators see them; none named: all.
        writes: what happens to calls of tools that are not read-only, if no rule matches.
        timeout_seconds: longest wait for a call's result.
        folders: folders that the command sees besides the system's, relative to HELIX_ROOT.
        network: whether the command's sandbox has the machine's network.
    """

    name: str
    url: str = ""
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    credentials: str = ""
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

    def serves(self, model: str, key: str, owner: str) -> bool:
        """Return True if turns of this model, key and owner may use the server."""
        wanted = ((self.models, model), (self.keys, key))
        fits = all(not names or any(fnmatchcase(value, name) for name in names) for names, value in wanted)
        return fits and (not self.owners or owner in map(parse_owner, self.owners))

    def to_dict(self) -> dict[str, Any]:
        """Return the server as a JSON-ready dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToolServer:
        """Create a server from its dictionary, or from a block of the settings file and its name."""
        rules = tuple(CallRule(**rule) for rule in data.get("rules", ()))
        lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list | tuple)}
        return cls(**{**data, **lists, "rules": rules})


def choose_servers(settings: Settings, model: str, key: str, owner: str) -> list[ToolServer]:
    """Return the servers that turns of this model, key and owner may use, by name."""
    return [server for server in list_servers(settings) if server.serves(model, key, owner)]


def list_servers(settings: Settings) -> list[ToolServer]:
    """Return all configured servers, by name."""
    blocks = sorted(settings.tools_settings.items())
    return [ToolServer.from_dict({**block, "name": name}) for name, block in blocks]
