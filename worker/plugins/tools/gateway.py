"""Serves the tools of a run as one MCP server: each call passes the policy and the call log, then leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog
from mcp_types import CallToolResult, TextContent, Tool

from api_client.contract.errors import StoreUnavailable
from api_client.contract.tool_call_row import CallRow, CallState
from api_client.contract.tool_calls import WaitingCall
from worker.enforcement.tool_call_log import find_identifiers
from worker.plugins.tools.call_matching import find_known_deliveries, find_recorded_call, was_unknown
from worker.plugins.tools.call_policy import CallDecision, CallReaction, GatewayCall, decide_call
from worker.plugins.tools.call_store import CallStore, RunFenced
from worker.plugins.tools.configuration import ASKED_BY, ToolServer
from worker.plugins.tools.gateway_words import say_to_agent
from worker.plugins.tools.upstream import (
    CallRefused,
    MalformedResult,
    OutcomeUnknown,
    ServerUnreachable,
    SessionGone,
    UpstreamPool,
    UpstreamSession,
)
from worker.runners.approval import digest_call

log = structlog.get_logger(__name__)

#: Between the names of server and tool.
_OF = "__"
#: Longest arguments that a row keeps, in characters of JSON.
_SHOWN = 4_096
#: Largest cost of a call that is believed, in US dollars.
_MOST_COST = 10_000
#: How long a call that a person is asked about is held; its run ends meanwhile.
_HELD_SECONDS = 60.0
#: Most calls of a run: their rows and results are kept.
_MOST_CALLS = 5_000
#: Longest wait for the tools of one server, in seconds: agents give up after 30, and then have no tools at all.
_LIST_SECONDS = 20.0
#: Seconds between attempts to store a result, and the most attempts.
_AGAIN_SECONDS, _TRIES = 1.0, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The facts about a run that its tool gateway needs.

    Attributes:
        token: the lease's fencing token.
        continues: delivery of this attempt whose agent session the run continues; 0 for none.
        fresh: whether the agent has no session at all.
        folder: the delivery's folder, whose name does not count in arguments.
        asks: whether a person can be asked.
        approved, rejected: digest of the call that a person decided on; empty for none.
        secrets: values hidden from questions, longest first.
    """

    turn_id: str
    attempt: int
    delivery: int
    token: str = field(repr=False)
    owner: str
    locale: str
    folder: str
    continues: int = 0
    fresh: bool = True
    asks: bool = True
    approved: str = ""
    rejected: str = ""
    servers: tuple[ToolServer, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)


class RunOwner(Protocol):
    """Interface to the worker that owns a run."""

    async def use_up_approval(self) -> bool:
        """Mark the person's approval as used, and return True if the call may be executed."""

    async def suspend_run(self, question: Mapping[str, Any]) -> None:
        """End the run and ask a person the given question (``Interruption.to_dict``)."""

    async def report_call(self, row: CallRow) -> None:
        """Report a finished tool call."""


class GatewayRun:
    """Answers the MCP requests of one agent run."""

    def __init__(
        self,
        spec: RunSpec,
        rows: list[CallRow],
        gateway: str,
        calls: CallStore,
        upstreams: UpstreamPool,
        owner: RunOwner,
    ) -> None:
        self.spec, self._gateway, self._calls, self._upstreams, self._owner = spec, gateway, calls, upstreams, owner
        self._rows = {row.name: row for row in rows}
        self._known = find_known_deliveries(rows, spec.continues)
        own = [row.number for row in rows if (row.attempt, row.delivery) == (spec.attempt, spec.delivery)]
        self._last = max(own, default=0)
        self._servers = {server.name: server for server in spec.servers}
        self._approved = spec.approved
        self._deciding = asyncio.Lock()
        self._ended = asyncio.Event()
        self._asked = asyncio.Event()
        #: By name of the row: set when the agent left without its answer; set when the call under way has ended.
        self._gone, self._running = dict[str, asyncio.Event](), dict[str, asyncio.Event]()
        #: The tasks of calls that are under way.
        self.under_way = set[asyncio.Task[Any]]()
        self._starting = [asyncio.create_task(self._list_tools_of(server)) for server in spec.servers]

    def end_run(self) -> None:
        """Start no more tool calls."""
        self._ended.set()

    async def list_tools(self) -> list[Tool]:
        """Return the tools of all servers, named ``SERVER__TOOL``. Unreachable servers are left out."""
        lists = await asyncio.gather(*map(self._list_tools_of, self.spec.servers))
        return [tool for tools in lists for tool in tools]

    async def _list_tools_of(self, server: ToolServer) -> list[Tool]:
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                session = await self._upstreams.find_session(server, self.spec.owner)
                tools = await session.list_tools()
        except (ServerUnreachable, TimeoutError) as error:
            log.warning("tools.unreachable", server=server.name, error=str(error)[:200])
            return []
        # Without a schema of the output, a client accepts a recorded result whose mark is a text.
        own = {"output_schema": None}
        return [tool.model_copy(update={**own, "name": f"{server.name}{_OF}{tool.name}"}) for tool in tools]

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], gone: asyncio.Event | None = None
    ) -> CallToolResult:
        """Carry out an agent's tool call, unless the policy, a person or the call log already decides the result.

        ``gone`` is set when the agent leaves before its answer came: it may make the call again.
        """
        if task := asyncio.current_task():
            self.under_way.add(task)
            task.add_done_callback(self.under_way.discard)
        try:
            return await self._answer_call(name, arguments, gone or asyncio.Event())
        except RunFenced:
            return self._say("ended")
        except StoreUnavailable as error:
            log.warning("tools.not_recorded", turn_id=self.spec.turn_id, error=str(error)[:200])
            return self._say("unrecorded")

    async def _answer_call(self, name: str, arguments: Mapping[str, Any], gone: asyncio.Event) -> CallToolResult:
        place, _, tool = name.partition(_OF)
        server = self._servers.get(place)
        if server is None:
            return self._say("no_tool", name=name[:200])
        try:
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        except ValueError:  # what the server gets would differ from what is shown
            return self._say("unsendable")
        try:
            session = await self._upstreams.find_session(server, self.spec.owner)
            listed = await session.find_tool(tool)
        except ServerUnreachable as error:
            return self._say("unreachable", server=place, why=str(error))
        if listed is None:
            return self._say("no_tool", name=name[:200])
        hints = listed.annotations
        call = GatewayCall(
            server=place,
            tool=tool,
            arguments=arguments,
            owner=self.spec.owner,
            read_only=bool(hints and hints.read_only_hint),
            destructive=not (hints and hints.destructive_hint is False),
        )
        async with self._deciding:
            if self._ended.is_set() or self._asked.is_set():  # one question at a time: the agent is being stopped
                return self._say("ended")
            if self._last >= _MOST_CALLS:
                return self._say("too_many", most=_MOST_CALLS)
            row = self._new_row(call)
            self._gone[row.name] = gone
            answer = await self._answer_without_call(call, row, server)
        if isinstance(answer, CallRow) and answer.earlier:
            try:
                answer = await self._answer_from_log(answer)
            except StoreUnavailable:  # the earlier call has answered nothing
                del self._rows[row.name]
                raise
        elif isinstance(answer, CallRow):
            answer = await self._make_call(session, call, answer)
        if self._asked.is_set():
            with contextlib.suppress(TimeoutError):  # held, so that the agent asks its model nothing more
                await asyncio.wait_for(self._ended.wait(), _HELD_SECONDS)
        return answer

    def _new_row(self, call: GatewayCall) -> CallRow:
        self._last += 1
        said = json.dumps(call.arguments, ensure_ascii=False)
        return CallRow(
            number=self._last,
            attempt=self.spec.attempt,
            delivery=self.spec.delivery,
            gateway=self._gateway,
            server=call.server,
            tool=call.tool,
            digest=digest_call(f"{call.server}.{call.tool}", call.arguments, self.spec.folder),
            read_only=call.read_only,
            continues=self.spec.continues,
            at=time.time(),
            arguments=said if len(said) <= _SHOWN else "",
        )

    async def _answer_without_call(
        self, call: GatewayCall, row: CallRow, server: ToolServer
    ) -> CallToolResult | CallRow:
        """Return the result of a call, or the row of one that must be made now or that an earlier call answers."""
        rows = [replace(row, unseen=True) if self._has_left(row) else row for row in self._rows.values()]
        decision = decide_call(call, server.rules, server.writes)
        if decision.reaction is CallReaction.DENY:
            return await self._answer(row, CallState.DENIED, "denied")
        if earlier := find_recorded_call(rows, row, self._known, fresh=self.spec.fresh):
            self._rows[row.name] = row = replace(row, state=CallState.RECORDED, earlier=earlier.name)
            return row
        if row.digest == self.spec.rejected:
            return await self._answer(row, CallState.DENIED, "refused")
        if decision.reaction is CallReaction.ALLOW and was_unknown(rows, row):
            decision = replace(decision, reaction=CallReaction.ASK)
        if decision.reaction is CallReaction.ASK:
            if row.digest != self._approved or not await self._use_up_approval():
                return await self._ask_person(call, row, decision)
            row = replace(row, approved=True)
        await self._write(row)
        return row

    async def _use_up_approval(self) -> bool:
        self._approved = ""
        return await self._owner.use_up_approval()

    def _has_left(self, row: CallRow) -> bool:
        return row.name in self._gone and self._gone[row.name].is_set()

    async def _answer_from_log(self, row: CallRow) -> CallToolResult:
        if running := self._running.get(row.earlier):  # the agent has left meanwhile
            await running.wait()
        state, stored = self._rows[row.earlier].state, None
        if state is CallState.FAILED:
            return await self._answer(row, CallState.FAILED, "again")
        if state is CallState.DONE:
            stored = await self._calls.read_result(self.spec.turn_id, row.earlier)
        if stored is None:
            return await self._answer(row, CallState.UNKNOWN, "unknown")
        result = CallToolResult.model_validate(stored)
        mark = TextContent(type="text", text=say_to_agent("recorded", self.spec.locale))
        result = result.model_copy(update={"content": [*result.content, mark], "structured_content": None})
        names = self._rows[row.earlier].names
        await self._end(replace(row, is_error=bool(result.is_error), names=names), None)
        return result

    async def _ask_person(self, call: GatewayCall, row: CallRow, decision: CallDecision) -> CallToolResult:
        if not self.spec.asks:
            return await self._answer(row, CallState.DENIED, "unasked")
        waits = WaitingCall(
            call=row.digest,
            tool=f"{call.server}.{call.tool}",
            arguments=json.loads(json.dumps(call.arguments).replace(self.spec.folder, ".")),
            digest=row.digest,
            wait_seconds=decision.wait_seconds,
            who=decision.who,
        )
        await self._end(replace(row, state=CallState.ASKED), None)
        self._asked.set()
        if running := [asyncio.create_task(each.wait()) for each in self._running.values()]:
            await asyncio.wait(running, timeout=_HELD_SECONDS)  # what was made is known before the agent ends
        question = waits.to_interruption(self.spec.secrets)
        await self._owner.suspend_run(replace(question, asked={**question.asked, ASKED_BY: "gateway"}).to_dict())
        return self._say("waits")

    async def _make_call(self, session: UpstreamSession, call: GatewayCall, row: CallRow) -> CallToolResult:
        self._running[row.name] = asyncio.Event()
        try:
            return await self._make_recorded_call(session, call, row)
        finally:
            self._running.pop(row.name).set()

    async def _send_call(self, session: UpstreamSession, call: GatewayCall) -> CallToolResult:
        """Send a call to its server; once more in a new session if the server refused it for its session."""
        try:
            return await session.call_tool(call.tool, call.arguments)
        except SessionGone:
            session = await self._upstreams.find_session(session.server, call.owner)
            await session.find_tool(call.tool)  # the SDK reads the list after a call of an unlisted tool
            return await session.call_tool(call.tool, call.arguments)

    async def _make_recorded_call(self, session: UpstreamSession, call: GatewayCall, row: CallRow) -> CallToolResult:
        began, state = time.monotonic(), CallState.DONE
        most = session.server.max_result_bytes
        try:
            result = await self._send_call(session, call)
        except (ServerUnreachable, SessionGone) as error:
            result, state = self._say("unreachable", server=call.server, why=str(error)), CallState.FAILED
        except OutcomeUnknown as error:
            log.warning("tools.outcome_unknown", server=call.server, tool=call.tool, error=str(error))
            result, state = self._say("unknown"), CallState.UNKNOWN
        except CallRefused as error:
            result, state = self._say("failed", why=str(error)[:500]), CallState.FAILED
        except MalformedResult as error:
            result = self._say("malformed", why=str(error))
        cost = read_cost(result)
        said = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        size = len(json.dumps(said).encode())
        if size > most:
            result = self._say("too_large", most=most)
            said = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        took = int((time.monotonic() - began) * 1000)
        row = replace(row, state=state, took_ms=took, result_bytes=size, is_error=bool(result.is_error), cost_usd=cost)
        row = replace(row, unseen=self._has_left(row) or self._asked.is_set())
        if not row.read_only:
            row = replace(row, names=find_identifiers(f"{json.dumps(call.arguments)} {json.dumps(said)}"))
        try:
            await self._end(row, None if row.read_only else said, tries=_TRIES)
        except StoreUnavailable:  # the row still says that the call is under way
            return self._say("unknown")
        return result

    async def _answer(self, row: CallRow, state: CallState, word: str) -> CallToolResult:
        await self._end(replace(row, state=state, is_error=True), None)
        return self._say(word)

    async def _end(self, row: CallRow, result: Mapping[str, Any] | None, tries: int = 1) -> None:
        """Record a finished call before the agent gets its result, and report the call."""
        for left in reversed(range(tries)):
            try:
                await self._write(row, result)
                break
            except StoreUnavailable:
                if not left:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)
        await self._owner.report_call(row)

    async def _write(self, row: CallRow, result: Mapping[str, Any] | None = None) -> None:
        await self._calls.write_call(self.spec.turn_id, self.spec.token, row, result)
        self._rows[row.name] = row

    def _say(self, word: str, **values: object) -> CallToolResult:
        text = say_to_agent(word, self.spec.locale, **values)
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


def read_cost(result: CallToolResult) -> float:
    """Return the cost of a call in US dollars, from ``cost_usd`` in its ``_meta``; 0 without a valid amount."""
    said = (result.meta or {}).get("cost_usd")
    if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= _MOST_COST:
        return 0.0
    return float(said)
