"""The question that asks a person to sign in to an MCP server."""

from __future__ import annotations

from collections.abc import Mapping

from api_client.contract.interruption import Interruption

TOOL_SIGN_IN = "tool_sign_in"
WAIT_SECONDS = 3_600.0


def ask_to_sign_in(server: str, host: str, who: str, more: Mapping[str, str]) -> Interruption:
    """Build the question that suspends a turn until a person has signed in to a server, or refuses to.

    ``host`` is the host name of the sign-in page, ``who`` an ``Answerer``, and ``more`` further data of the question.

    """
    asked = {"server": server, "host": host, **more}
    return Interruption(kind=TOOL_SIGN_IN, asked=asked, reason=TOOL_SIGN_IN, who=who, wait_seconds=WAIT_SECONDS)
