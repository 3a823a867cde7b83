"""Gives agent runs their tool gateway, and suspends turns whose tool call needs a person's approval."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from api_client.contract.decision import DecisionKind
from api_client.contract.errors import SettingsError
from api_client.contract.interruption import Interruption
from api_client.contract.settings.redaction import list_secrets
from api_client.contract.tool_call_replies import reply_not_asked
from api_client.contract.tool_call_row import CallRow, CallState
from api_client.contract.tool_calls import MAX_QUESTIONS, TOOL_CALL, ToolQuestion
from api_client.contract.tool_sign_in import TOOL_SIGN_IN
from api_client.contract.work import find_work
from worker.enforcement.tool_call_log import MOST_CALLS, ToolCall, ToolCallLog
from worker.plugins.tools.gateway_client import shared_gateway
from worker.plugins.tools.gateway_words import say_to_agent
from worker.plugins.tools.tool_servers import ASKED_BY, ToolServer, choose_servers
from worker.runners.base import AgentEvent, Order, ToolAccess
from worker.turns.run_equipment import EquipmentContext, RunEquipment

#: Most calls shown in an attempt's evidence.
_MOST_SHOWN = 200
_EVIDENCE = (
    "server", "tool", "state", "read_only", "approved", "is_error", "took_ms", "result_bytes", "cost_usd", "digest",
)  # fmt: skip
_YES = DecisionKind.APPROVE.value


class ToolEquipment(RunEquipment):
    """Opens a tool gateway for each run whose model, key and owner may use an MCP server."""

    def equip_run(self, order: Order, context: EquipmentContext) -> AbstractAsyncContextManager[Order] | None:
        """Return the context manager of the run's gateway, or None for a run without tools."""
        if order.read_only or not context.settings.tools_settings:
            return None
        servers = choose_servers(context.settings, context.turn.request, order.model)
        return _open_gateway(order, context, servers) if servers else None


@contextlib.asynccontextmanager
async def _open_gateway(order: Order, context: EquipmentContext, servers: list[ToolServer]) -> AsyncIterator[Order]:
    if importlib.util.find_spec("mcp") is None:
        raise SettingsError(["[tools]: the MCP SDK is not installed; pip install 'helix-turns[mcp]'"])
    run = _RunHandler(context)
    spec = _describe_run(order, context, servers)
    gateway = await asyncio.to_thread(shared_gateway, context.settings)
    try:
        place, secret = await asyncio.to_thread(gateway.open_run, spec, run.handle_message)
    except ConnectionError:  # the process has just died
        gateway = await asyncio.to_thread(shared_gateway, context.settings)
        place, secret = await asyncio.to_thread(gateway.open_run, spec, run.handle_message)
    try:
        access = ToolAccess(socket=Path(place), secret=secret)
        # A kept agent would use the gateway of an earlier run.
        yield replace(_add_answer(order), tool_access=access, owner="")
    finally:
        await asyncio.to_thread(gateway.close_run, secret)
        context.control.evidence["tools"] = run.summarise_calls()
        context.control.observed = run.log_calls()


class _RunHandler:
    """Handles the gateway's messages about one run, in threads of the gateway client."""

    def __init__(self, context: EquipmentContext) -> None:
        self._context = context
        self._rows: list[CallRow] = []

    def handle_message(self, message: Mapping[str, Any]) -> Any:
        control = self._context.control
        match message["do"]:
            case "use_up":
                return self._context.use_up()
            case "suspend":
                if asked := Interruption.from_dict(message["question"]):
                    control.suspend_run(asked)
            case "report":
                self._report_call(CallRow.from_dict(message["row"]))
            case "gone":
                control.abort_run("the tool gateway ended in the middle of the run")
        return None

    def _report_call(self, row: CallRow) -> None:
        self._rows.append(row)
        said = f"{row.outcome}, {row.result_bytes} bytes in {row.took_ms} ms"
        self._context.control.report_event(
            AgentEvent(
                kind="tool",
                text=f"{row.server}.{row.tool}",
                detail=said,
                server=row.server,
                result_bytes=row.result_bytes,
            )
        )

    def summarise_calls(self) -> list[dict[str, Any]]:
        rows = [row.to_dict() for row in self._rows[:_MOST_SHOWN]]
        return [{name: row[name] for name in _EVIDENCE if row[name] not in (False, 0)} for row in rows]

    def log_calls(self) -> ToolCallLog:
        """Return the log of the run's tool calls, without calls that were denied or that wait for a person."""
        rows = [row for row in self._rows if row.state not in {CallState.ASKED, CallState.DENIED}]
        calls = tuple(
            ToolCall(
                kind="read" if row.read_only else "sent",
                what=f"{row.server}.{row.tool}",
                ok=None if row.state is CallState.UNKNOWN else row.outcome in {"done", "recorded"} and not row.is_error,
                ran=row.state is not CallState.FAILED,
                names=row.names,
            )
            for row in rows[-MOST_CALLS:]
        )
        return ToolCallLog(calls=calls, whole=len(rows) <= MOST_CALLS)


def _describe_run(order: Order, context: EquipmentContext, servers: list[ToolServer]) -> dict[str, Any]:
    turn = context.turn
    asked = _find_answered(order)
    digest = str(asked.asked.get("digest", "")) if asked else ""
    questions = sum(turn.interruptions.get(kind, {}).get("asked", 0) for kind in (TOOL_CALL, TOOL_SIGN_IN))
    refused = asked is not None and asked.answer != _YES
    return {
        "turn_id": order.turn_id,
        "attempt": order.attempt,
        "delivery": order.delivery,
        "token": context.token,
        "owner": turn.request.owner,
        "locale": order.locale,
        "folder": str(order.directory),
        "continues": order.interruption.delivery if order.interruption and order.agent_session else 0,
        "fresh": not order.agent_session,
        "asks": find_work(turn.request).in_session and questions < MAX_QUESTIONS,
        "approved": digest if asked and asked.answer == _YES and not turn.answer_used else "",
        "rejected": digest if refused else "",
        "declined": str(asked.asked.get("server", "")) if asked and refused else "",
        "servers": list(map(asdict, servers)),
        "secrets": list_secrets(context.settings),
    }


def _find_answered(order: Order) -> Interruption | None:
    asked = order.interruption
    return asked if asked and asked.asked.get(ASKED_BY) else None


def _add_answer(order: Order) -> Order:
    asked = _find_answered(order)
    if asked is None:
        return order
    yes = asked.answer == _YES
    if asked.kind == TOOL_SIGN_IN:
        said = say_to_agent("signed_in" if yes else "declined", order.locale, server=asked.asked.get("server", ""))
    else:
        call = ToolQuestion.from_interruption(asked)
        said = say_to_agent("approved" if yes else "rejected", order.locale, call=call.text)
        said = reply_not_asked(order.locale, call.refused) if call.refused else said
    if asked.note:
        said = f"{said}\n\n{asked.note}"
    message = order.messages[-1].get("content", "") if order.messages else order.prompt
    prompt = said if order.prompt == message else f"{order.prompt}\n\n{said}"
    tools = replace(order.tools, said="") if order.tools else None
    return replace(order, prompt=prompt, tools=tools, interruption=None)  # the agent itself asked nothing
