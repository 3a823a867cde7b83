"""Chooses the MCP servers that a turn may use: those that the settings allow, limited to those that it requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from api_client.contract.admission import Admission, Submission
from api_client.contract.errors import BadRequest
from api_client.contract.owners import parse_owner
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.store import Store

#: Request field, and name of its attachment: the servers that the turn may use.
TOOL_SERVERS = "tool_servers"


def list_usable(settings: Settings, request: TurnRequest, model: str) -> list[str]:
    """Return the names of the MCP servers that a turn may use while the model ``model`` works on it."""
    named = request.attached.get(TOOL_SERVERS)
    return [name for name in _list_allowed(settings, request, model) if named is None or name in named]


def check_names(named: Iterable[str], known: Collection[str]) -> None:
    for name in named:
        if name not in known:
            message = f"no server {name[:80]!r} for this request; there is: {', '.join(known) or 'none'}"
            raise BadRequest(f"{TOOL_SERVERS}: {message}", param=TOOL_SERVERS, code="unknown_tool_server")


def read_tool_servers(settings: Settings, named: Sequence[str]) -> dict[str, Any]:
    """Return the request field that limits a turn to the MCP servers named on the command line.

    A single empty name allows no server. Without names there is no field, and the settings alone decide. Raises
    ``BadRequest`` for a server that the settings do not have.
    """
    names = [name for name in dict.fromkeys(named) if name]
    check_names(names, sorted(settings.tools_settings))
    return {TOOL_SERVERS: names} if named else {}


class ToolChoice(Admission):
    """Refuses requests for MCP servers that the request's model, API key or owner may not use."""

    setting = "tools_settings"

    def __init__(self, store: Store) -> None:
        self._settings = store.settings

    async def admit(self, turn: Submission) -> TurnRequest:
        if named := turn.request.attached.get(TOOL_SERVERS):
            check_names(named, _list_allowed(self._settings, turn.request, turn.request.model))
        return turn.request


def _list_allowed(settings: Settings, request: TurnRequest, model: str) -> list[str]:
    found = []
    for name, block in sorted(settings.tools_settings.items()):
        owners = block.get("owners", ())
        wanted = ((block.get("models"), model), (block.get("keys"), request.key))
        fits = all(not names or any(fnmatchcase(value, each) for each in names) for names, value in wanted)
        if fits and (not owners or request.owner in map(parse_owner, owners)):
            found.append(name)
    return found
