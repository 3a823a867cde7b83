"""Serves the tools of a run as one MCP server. Each call passes the policy and is logged before it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog
from mcp_types import CallToolResult, TextContent, Tool

from api_client.contract.errors import StoreUnavailable
from api_client.contract.settings.redaction import redact_value
from api_client.contract.tool_call_row import CallRow, CallState
from api_client.contract.tool_calls import WaitingCall
from api_client.contract.tool_sign_in import ask_to_sign_in
from api_client.tools.tool_grants import GrantEnded
from worker.enforcement.tool_call_log import find_identifiers
from worker.plugins.tools.call_matching import find_known_deliveries, find_recorded_call, was_unknown
from worker.plugins.tools.call_policy import CallDecision, CallReaction, GatewayCall, decide_call
from worker.plugins.tools.call_sending import build_answer, send_call, write_result
from worker.plugins.tools.call_store import CallStore, RunFenced
from worker.plugins.tools.gateway_words import say_to_agent
from worker.plugins.tools.run_spec import RunOwner, RunSpec
from worker.plugins.tools.tool_servers import ASKED_BY, ToolServer
from worker.plugins.tools.upstream import ServerUnreachable, UpstreamSession, mask_secrets
from worker.plugins.tools.upstream_pool import UpstreamPool
from worker.runners.approval_server import digest_call

log = structlog.get_logger(__name__)

#: Separator between the names of server and tool.
_OF = "__"
#: Name of the tool that stands for the tools of a server to which the person has not signed in.
SIGN_IN_TOOL = "sign_in"
#: Longest arguments that a row keeps, in characters of JSON.
_SHOWN = 4_096
#: How long a call that a person is asked about is held; its run ends meanwhile.
_HELD_SECONDS = 60.0
#: Most calls of a run.
_MOST_CALLS = 5_000
#: Longest wait for the tools of one server, in seconds. Agents give up after 30 seconds.
_LIST_SECONDS = 20.0
#: Seconds between attempts to store a result, and the most attempts.
_AGAIN_SECONDS, _TRIES = 1.0, 60


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
        own = [row.number for row in rows if row.delivery == spec.delivery]
        self._last = max(own, default=0)
        self._servers = {server.name: server for server in spec.servers}
        #: The schemas of listed tools' arguments.
        self.schemas = dict[str, Mapping[str, Any]]()
        self._approved = spec.approved
        self._deciding = asyncio.Lock()
        self._ended = asyncio.Event()
        self._asked = asyncio.Event()
        #: Events by row name: the agent left before its answer; the call under way has ended.
        self._gone, self._running = dict[str, asyncio.Event](), dict[str, asyncio.Event]()
        self.under_way = set[asyncio.Task[Any]]()
        self._starting = [asyncio.create_task(self._list_tools_of(server)) for server in spec.servers]

    def end_run(self) -> None:
        """Refuse all further tool calls of the run."""
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
        except GrantEnded:
            return [self._describe_sign_in(server)]
        except (ServerUnreachable, TimeoutError) as error:
            log.warning("tools.unreachable", server=server.name, error=str(error)[:200])
            return []
        # Without an output schema, a client accepts a recorded result whose note is a text.
        own = {"output_schema": None}
        named = [tool.model_copy(update={**own, "name": f"{server.name}{_OF}{tool.name}"}) for tool in tools]
        self.schemas |= {tool.name: tool.input_schema for tool in named}
        return named

    def _describe_sign_in(self, server: ToolServer) -> Tool:
        """Return the tool that stands for all tools of a server to which the person has not signed in."""
        return Tool(
            name=f"{server.name}{_OF}{SIGN_IN_TOOL}",
            description=say_to_agent("sign_in_tool", self.spec.locale, server=server.name),
            input_schema={"type": "object", "properties": {}},
        )

    async def call_tool(self, name: str, arguments: Mapping[str, Any], gone: asyncio.Event) -> CallToolResult:
        """Carry out an agent's tool call, unless the policy, a person or the call log already decides the result.

        ``gone`` is set when the agent leaves before its answer comes, and may make the call again.
        """
        if task := asyncio.current_task():
            self.under_way.add(task)
            task.add_done_callback(self.under_way.discard)
        try:
            return await self._answer_call(name, arguments, gone)
        except GrantEnded:
            return await self._ask_to_sign_in(self._servers[name.partition(_OF)[0]])
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
            known = server.sign_in is not None and tool == SIGN_IN_TOOL
            return self._say("signed_in", server=place) if known else self._say("no_tool", name=name[:200])
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
        await self._hold_answer()
        return answer

    async def _hold_answer(self) -> None:
        if self._asked.is_set():
            with contextlib.suppress(TimeoutError):  # held, so that the agent asks its model nothing more
                await asyncio.wait_for(self._ended.wait(), _HELD_SECONDS)

    async def _ask_to_sign_in(self, server: ToolServer) -> CallToolResult:
        """Ask the person to sign in to a server, unless nobody can be asked or the person has refused."""
        async with self._deciding:
            if self._ended.is_set() or self._asked.is_set() or server.sign_in is None:
                return self._say("ended")
            if server.name == self.spec.declined:
                return self._say("declined", server=server.name)
            if not self.spec.asks:
                return self._say("sign_in_unasked", server=server.name)
            self._asked.set()
            await self._await_running()
            signed = server.sign_in
            question = ask_to_sign_in(server.name, signed.issuer_host, signed.who, {ASKED_BY: "gateway"})
            await self._owner.suspend_run(question.to_dict())
        await self._hold_answer()
        return self._say("sign_in_first", server=server.name)

    async def _await_running(self) -> None:
        if running := [asyncio.create_task(each.wait()) for each in self._running.values()]:
            await asyncio.wait(running, timeout=_HELD_SECONDS)  # what was made is known before the agent ends

    def _new_row(self, call: GatewayCall) -> CallRow:
        self._last += 1
        said = self._show_arguments(call.arguments)
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
        """Return the result of a tool call that is denied or must wait for a person, or the row of any other call.

        A row in state ``RECORDED`` names an earlier call whose result answers this call. Otherwise the call must be
        sent now, and its row has been written.
        """
        equal = [each for each in self._rows.values() if each.digest == row.digest]
        left = {name for name, gone in self._gone.items() if gone.is_set()}
        rows = [replace(each, unseen=True) if each.name in left else each for each in equal] if left else equal
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

    async def _answer_from_log(self, row: CallRow) -> CallToolResult:
        if running := self._running.get(row.earlier):  # the agent has left meanwhile
            await running.wait()
        earlier, stored = self._rows[row.earlier], None
        if earlier.state is CallState.FAILED:
            return await self._answer(row, CallState.FAILED, "again")
        if earlier.state is CallState.DONE:
            stored = await self._calls.read_result(self.spec.turn_id, row.earlier)
        if stored is None:
            return await self._answer(row, CallState.UNKNOWN, "unknown")
        result = CallToolResult.model_validate(stored)
        mark = TextContent(type="text", text=say_to_agent("recorded", self.spec.locale))
        result = result.model_copy(update={"content": [*result.content, mark], "structured_content": None})
        await self._end(replace(row, is_error=bool(result.is_error), names=earlier.names))
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
        await self._end(replace(row, state=CallState.ASKED))
        self._asked.set()
        await self._await_running()
        question = waits.to_interruption(self._known_secrets())
        await self._owner.suspend_run(replace(question, asked={**question.asked, ASKED_BY: "gateway"}).to_dict())
        return self._say("waits")

    async def _make_call(self, session: UpstreamSession, call: GatewayCall, row: CallRow) -> CallToolResult:
        """Send a tool call that is already in the log, and log its outcome. Raises ``GrantEnded``."""
        self._running[row.name] = asyncio.Event()
        try:
            row, result, needs = await send_call(self._upstreams, session, call, row, self.spec.locale)
            said = "" if row.read_only else write_result(result)
            names = find_identifiers(f"{self._show_arguments(call.arguments)} {said}") if said else ()
            unseen = self._gone[row.name].is_set() or self._asked.is_set()
            await self._end(replace(row, unseen=unseen, names=names), said, tries=_TRIES)
        except StoreUnavailable:  # the row still says that the call is under way
            return self._say("unknown")
        finally:
            self._running.pop(row.name).set()
        if needs:
            raise needs
        return result

    async def _answer(self, row: CallRow, state: CallState, word: str) -> CallToolResult:
        await self._end(replace(row, state=state, is_error=True))
        return self._say(word)

    async def _end(self, row: CallRow, result: str = "", tries: int = 1) -> None:
        """Record a finished call before the agent gets its result, and report the call."""
        for left in reversed(range(tries)):
            try:
                await self._write(row, result)
                break
            except StoreUnavailable:
                if not left:
                    raise
                await asyncio.sleep(_AGAIN_SECONDS)
        self._owner.report_call(row)

    async def _write(self, row: CallRow, result: str = "") -> None:
        await self._calls.write_call(self.spec.turn_id, self.spec.token, row, result)
        self._rows[row.name] = row

    def _say(self, word: str, **values: object) -> CallToolResult:
        return build_answer(word, self.spec.locale, **values)

    def _known_secrets(self) -> list[str]:
        return sorted({*self.spec.secrets, *self._upstreams.list_secrets()}, key=len, reverse=True)

    def _show_arguments(self, arguments: Mapping[str, Any]) -> str:
        """Return a call's arguments as JSON, with the installation's and the servers' secrets masked."""
        mask = functools.partial(mask_secrets, self._known_secrets())
        return json.dumps(redact_value(arguments, mask), ensure_ascii=False)
