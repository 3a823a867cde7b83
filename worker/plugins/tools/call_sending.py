"""Sends a tool call to its server, and describes the outcome: result, state, size, duration, cost."""

from __future__ import annotations

import time
from dataclasses import replace

import structlog
from mcp_types import CallToolResult, TextContent

from api_client.contract.tool_call_row import CallRow, CallState
from api_client.tools.tool_grants import GrantEnded
from worker.plugins.tools.call_policy import GatewayCall
from worker.plugins.tools.gateway_words import say_to_agent
from worker.plugins.tools.upstream import (
    CallRefused,
    MalformedResult,
    OutcomeUnknown,
    ServerUnreachable,
    SessionGone,
    UpstreamSession,
)
from worker.plugins.tools.upstream_pool import UpstreamPool

log = structlog.get_logger(__name__)

#: Largest cost of a call that is believed, in US dollars.
_MOST_COST = 10_000


async def send_call(
    upstreams: UpstreamPool, session: UpstreamSession, call: GatewayCall, row: CallRow, locale: str
) -> tuple[CallRow, CallToolResult, GrantEnded | None]:
    """Send a tool call. Return its log row with the outcome, the result for the agent, and any sign-in needed first.

    No error of the server is raised.
    """
    began, state, needs = time.monotonic(), CallState.DONE, None
    try:
        result = await _send_in_session(upstreams, session, call)
    except (ServerUnreachable, SessionGone, GrantEnded) as error:
        needs = error if isinstance(error, GrantEnded) else None
        result, state = build_answer("unreachable", locale, server=call.server, why=str(error)), CallState.FAILED
    except OutcomeUnknown as error:
        log.warning("tools.outcome_unknown", server=call.server, tool=call.tool, error=str(error))
        result, state = build_answer("unknown", locale), CallState.UNKNOWN
    except CallRefused as error:
        result, state = build_answer("failed", locale, why=str(error)[:500]), CallState.FAILED
    except MalformedResult as error:
        result = build_answer("malformed", locale, why=str(error))
    cost, size, most = read_cost(result), len(write_result(result).encode()), session.server.max_result_bytes
    if size > most:
        result = build_answer("too_large", locale, most=most)
    took = int((time.monotonic() - began) * 1000)
    row = replace(row, state=state, took_ms=took, result_bytes=size, is_error=bool(result.is_error), cost_usd=cost)
    return row, result, needs


async def _send_in_session(upstreams: UpstreamPool, session: UpstreamSession, call: GatewayCall) -> CallToolResult:
    """Send a tool call. If the server no longer knows the session, send the call once more in a new session."""
    try:
        return await session.call_tool(call.tool, call.arguments)
    except SessionGone:
        session = await upstreams.find_session(session.server, call.owner)
        await session.find_tool(call.tool)  # the SDK reads the list after a call of an unlisted tool
        return await session.call_tool(call.tool, call.arguments)


def write_result(result: CallToolResult) -> str:
    return result.model_dump_json(by_alias=True, exclude_none=True)


def build_answer(word: str, locale: str, **values: object) -> CallToolResult:
    """Return an error result that tells the agent why a tool call has no result. ``word`` is the message's key."""
    text = say_to_agent(word, locale, **values)
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def read_cost(result: CallToolResult) -> float:
    """Return the cost of a call in US dollars, from ``cost_usd`` in its ``_meta``; 0 without a valid amount."""
    said = (result.meta or {}).get("cost_usd")
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= _MOST_COST:
        return 0.0
    return float(said)
