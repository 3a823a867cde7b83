"""The field ``tool_servers``: which MCP servers the turn may use."""

from __future__ import annotations

from typing import Any

from api_client.contract.errors import BadRequest
from api_client.contract.settings import Settings
from api_client.tools.server_choice import TOOL_SERVERS, check_names
from api_client.web.bodies.body_model import BodyField
from api_client.web.errors import bad_request


def _read_names(names: list[str], settings: Settings) -> dict[str, Any]:
    try:
        check_names(names, sorted(settings.tools_settings))
    except BadRequest as error:
        raise bad_request(str(error), param=error.param, code=error.code) from None
    return {TOOL_SERVERS: list(dict.fromkeys(names))}


FIELD = BodyField(TOOL_SERVERS, list[str], _read_names)
