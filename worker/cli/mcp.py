"""``turns mcp``: other agents submit turns as tools. It speaks MCP over its standard streams, and HTTP with a relay.

So keys, owners, limits and budgets are the relay's, as for every program, and this process holds nothing: it may die at
any line. Each call has a key that its repeat has too, by which the relay knows it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict
from urllib.parse import quote

import anyio
import click
from pydantic import ConfigDict, Field

from api_client.contract.tool_calls import Answerer, ToolQuestion
from api_client.contract.turn import shard_of

#: Turn states and outcomes -> the status words of MCP's tasks. An outcome that is not here is a failure.
_STATUS = {
    "parked": "input_required",
    "passed": "completed",
    "passed_after_retry": "completed",
    "passed_by_fallback": "completed",
    "passed_by_human": "completed",
    "cancelled": "cancelled",
}
#: Answers that say: again later. 429 is one: the owner's limit is a matter of time.
_LATER = frozenset({429, 502, 503, 504})
#: Between two looks at a turn, and between two tries of a relay that does not answer, in seconds.
_FIRST_LOOK, _LAST_LOOK = 0.2, 2.0
#: How Claude Code names a tool call of its model: a repeat of the call has the same.
_CALL_ID = "claudecode/toolUseId"


class TurnTask(TypedDict):
    """One turn as a tool returns it.

    ``status``: working, input_required (a person has to decide), completed, failed or cancelled.
    """

    turn_id: str
    session_id: str
    status: str
    attempts: int
    answer: str
    error: str


class RelayError(Exception):
    """The relay refused, in its words, or did not answer in time."""


@dataclass(frozen=True)
class RelayAccess:
    """The relay as its caller with a key sees it; ``patience`` in seconds: how long it may be away."""

    url: str
    key: str
    patience: float

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, name: str = "") -> Any:
        """Send a request until it is answered; ``name`` makes a submit that comes twice one turn.

        Raises:
            RelayError: as the class says.
        """
        import httpx2

        head = {"authorization": f"Bearer {self.key}"} if self.key else {}
        head |= {"idempotency-key": name} if name else {}
        ends, pause = anyio.current_time() + self.patience, _FIRST_LOOK
        async with httpx2.AsyncClient(base_url=self.url, headers=head, timeout=30) as client:
            while True:
                try:
                    answer = await client.request(method, path, json=body)
                    if answer.status_code not in _LATER:
                        return _read(answer)
                    said = f"it answers {answer.status_code}"
                except httpx2.TransportError as error:
                    said = str(error) or type(error).__name__
                if anyio.current_time() > ends:
                    raise RelayError(f"no answer from {self.url} for {self.patience:g} s: {said}")
                await anyio.sleep(pause)
                pause = min(2 * pause, _LAST_LOOK)


def _read(answer: Any) -> Any:
    try:
        data = answer.json()
    except ValueError:
        raise RelayError(f"the answer is not JSON: HTTP {answer.status_code}") from None
    if answer.is_error:
        error = data.get("error", {})
        raise RelayError(f"{error.get('message', answer.status_code)} [{error.get('code')}]")
    return data


def _checked(turn_id: str) -> str:
    """Return a turn id as part of a path. Raises ``RelayError``: not a turn id, so it could name another route."""
    try:
        shard_of(turn_id)
    except ValueError as error:
        raise RelayError(str(error)) from None
    return quote(turn_id, safe="")


def task_of(turn: Mapping[str, Any]) -> TurnTask:
    """A turn's record as a task."""
    word = turn.get("outcome") or turn["state"]
    status = _STATUS.get(word, "failed" if turn.get("outcome") else "working")
    error = (turn.get("error") or {}).get("message", "")
    if status == "input_required":
        error = "a person has to decide about this turn, in the installation's inbox"
    return TurnTask(
        turn_id=turn["turn_id"],
        session_id=turn["session_id"],
        status=status,
        attempts=turn["attempt"],
        answer=turn["response"] if status == "completed" else "",
        error=error,
    )


class TurnTools:
    """The tools. ``model`` is asked where a call names none; ``wait``: how long a call waits by default, in seconds."""

    def __init__(self, relay: RelayAccess, model: str, wait: float) -> None:
        self._relay, self._model, self._wait = relay, model, wait
        self._process = secrets.token_hex(16)

    def name_of(self, request: Any) -> str:
        """The key of a call: the model's own name of it, else this process's number of it."""
        meta = request.meta if isinstance(request.meta, Mapping) else {}
        named = str(meta.get(_CALL_ID) or f"{self._process}:{request.request_id}")
        return f"mcp-{hashlib.sha256(named.encode()).hexdigest()[:40]}"

    async def submit(
        self, request: Any, progress: Any, message: str, model: str, session: str, key: str, wait: float | None
    ) -> TurnTask:
        """Submit a turn, and wait for its end."""
        return await self.followed(await self.submitted(request, message, model, session, key), progress, wait)

    async def submitted(self, request: Any, message: str, model: str, session: str, key: str) -> str:
        """Submit a turn; returns its id."""
        body: dict[str, Any] = {"model": model or self._model, "messages": [{"role": "user", "content": message}]}
        body |= {"session_id": session} if session else {}
        turn = await self._relay.ask(
            "POST", "/v1/turns", body, f"mcp-{quote(key, safe='')}" if key else self.name_of(request)
        )
        return str(turn["turn_id"])

    async def turn(self, turn_id: str) -> dict[str, Any]:
        """The turn's record."""
        found: dict[str, Any] = await self._relay.ask("GET", f"/v1/turns/{_checked(turn_id)}")
        return found

    async def followed(self, turn_id: str, progress: Any, wait: float | None) -> TurnTask:
        """The task after it ended, needs a person, or the time to wait is over."""
        ends, pause, looks = anyio.current_time() + (self._wait if wait is None else wait), _FIRST_LOOK, 0
        while True:
            task = task_of(await self.turn(turn_id))
            if task["status"] != "working" or anyio.current_time() > ends:
                return task
            looks += 1
            await progress(looks, message=f"{turn_id}: attempt {task['attempts']}" if task["attempts"] else turn_id)
            await anyio.sleep(pause)
            pause = min(1.5 * pause, _LAST_LOOK)

    async def cancel(self, turn_id: str) -> TurnTask:
        """Cancel a turn; once more changes nothing."""
        await self._relay.ask("POST", f"/v1/turns/{_checked(turn_id)}/cancel")
        return task_of(await self.turn(turn_id))

    async def decide(self, turn: Mapping[str, Any], decision: str) -> None:
        """Answer what this turn asks a person, unless it has gone on meanwhile."""
        body = {"decision": decision, "parked_at": turn["parked_at"]}
        try:
            await self._relay.ask("POST", f"/v1/inbox/{_checked(turn['turn_id'])}/decision", body)
        except RelayError as error:
            if "[turn_not_parked]" not in str(error):
                raise


def serve(tools: TurnTools, version: str) -> None:
    """Serve the tools over standard input and output, until that ends."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver.exceptions import ToolError

    async def submit_turn(
        message: str,
        ctx: Context[Any, Any],
        model: str = "",
        session: str = "",
        key: str = "",
        wait_seconds: float | None = None,
    ) -> TurnTask:
        try:
            request, progress = ctx.request_context, ctx.report_progress
            return await tools.submit(request, progress, message, model, session, key, wait_seconds)
        except RelayError as error:
            raise ToolError(str(error)) from None

    async def get_turn(turn_id: str, ctx: Context[Any, Any], wait_seconds: float = 0) -> TurnTask:
        try:
            return await tools.followed(turn_id, ctx.report_progress, wait_seconds)
        except RelayError as error:
            raise ToolError(str(error)) from None

    async def cancel_turn(turn_id: str) -> TurnTask:
        try:
            return await tools.cancel(turn_id)
        except RelayError as error:
            raise ToolError(str(error)) from None

    # The SDK reads the annotations by name, in the module's namespace.
    for tool in (submit_turn, get_turn):
        tool.__annotations__["ctx"] = Context
    server = MCPServer("helix-turns", version=version, log_level="WARNING", extensions=[extension(tools)])
    server.add_tool(
        submit_turn,
        description="Ask another agent, durably: its answer is checked, and asked again until it passes. Waits for the "
        "end; with status 'working' ask get_turn later. Calls with the same session are one conversation; calls "
        "with the same key are one turn.",
    )
    server.add_tool(get_turn, description="The state of a turn, and its answer; waits up to wait_seconds for its end.")
    server.add_tool(cancel_turn, description="Cancel a turn. Once more changes nothing.")
    server.run("stdio")


@click.command(epilog='In an agent\'s settings: {"mcpServers": {"turns": {"command": "turns", "args": ["mcp"]}}}')
@click.option("--url", envvar="TURNS_URL", default="http://127.0.0.1:8765", show_default=True, help="The relay.")
@click.option("--key", envvar="TURNS_KEY", default="", help="The relay's key; better in the environment: TURNS_KEY.")
@click.option("--model", default="helix-consultant", show_default=True, help="Asked where a call names none.")
@click.option("--wait", default=600.0, show_default=True, help="How long a call waits for a turn's end, in seconds.")
@click.option("--patience", default=600.0, show_default=True, help="How long the relay may be away, in seconds.")
def mcp(url: str, key: str, model: str, wait: float, patience: float) -> None:
    """Serve turns as tools to an agent that speaks MCP, over standard input and output.

    The turn goes on whatever becomes of this process. A call that is repeated under its name is the same turn.
    """
    from importlib.metadata import version
    from importlib.util import find_spec

    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url must begin with http:// or https://, not {url!r}")
    if find_spec("mcp") is None:
        raise click.UsageError("the MCP SDK is not installed: pip install '.[mcp]' in the checkout")
    serve(TurnTools(RelayAccess(url.rstrip("/"), key, patience), model, wait), version("helix-turns"))


# The tasks extension (SEP-2663, revision 2026-07-28): a turn as a task of the client's protocol; the SDK has no part of
# it yet. A client that names it is handed the turn at once, polls and cancels it, and answers what it asks a person.
# Nothing is kept here: a task is the turn of its id, and a question is named by the moment it was asked at.

if TYPE_CHECKING:
    from mcp.server.extension import Extension

TASKS = "io.modelcontextprotocol/tasks"
_POLL_MS = 1000
Turn = dict[str, Any]


def detailed(turn: Turn) -> dict[str, Any]:
    """The state of a turn's record as the extension writes it; a turn that failed is a call with an error."""
    task = task_of(turn)
    since = datetime.fromtimestamp(turn["created_at"], UTC).isoformat()
    status, asked = task["status"], turn.get("question") or {}
    found: dict[str, Any] = {
        "taskId": task["turn_id"],
        "status": status,
        "createdAt": since,
        "lastUpdatedAt": datetime.now(UTC).isoformat(),
        "ttlMs": None,
        "pollIntervalMs": _POLL_MS,
    }
    if status == "input_required" and asked.get("who", Answerer.OPERATOR) != Answerer.OPERATOR:
        found["inputRequests"] = {_question(turn): _elicitation(asked)}
    elif status == "input_required":  # not for this client: a person decides in the inbox
        found |= {"status": "working", "statusMessage": task["error"]}
    elif status in {"completed", "failed"}:
        text = task["answer"] or task["error"]
        call = {"content": [{"type": "text", "text": text}], "structuredContent": task, "isError": status == "failed"}
        found |= {"status": "completed", "result": call}
    return found


def _question(turn: Turn) -> str:
    return f"{turn['parked_at']!r}"


def _elicitation(asked: dict[str, Any]) -> dict[str, Any]:
    """May the agent make this call? As a form for the client's user."""
    question = ToolQuestion.from_dict(asked)
    message = f"May the agent do this?\n{question.text if question else ''}"
    decision = {"type": "string", "enum": ["approve", "reject"]}
    schema = {"type": "object", "properties": {"decision": decision}, "required": ["decision"]}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def decision(response: dict[str, Any]) -> str:
    """What the client's user said to a question: ``approve``, ``reject``, or empty where nobody decided."""
    said = (response.get("content") or {}).get("decision") if response.get("action") == "accept" else ""
    return "reject" if response.get("action") == "decline" else said if said in {"approve", "reject"} else ""


def extension(tools: TurnTools) -> Extension:
    """The extension over these tools, for ``MCPServer``."""
    from mcp.server.extension import Extension, MethodBinding
    from mcp.shared.exceptions import MCPError
    from mcp_types import INVALID_PARAMS, RequestParams

    class Named(RequestParams):
        model_config = ConfigDict(extra="ignore", populate_by_name=True)
        task_id: str = Field(alias="taskId")
        input_responses: dict[str, dict[str, Any]] = Field(default={}, alias="inputResponses")

    def method(name: str, handle: Callable[[Named], Awaitable[dict[str, Any]]]) -> MethodBinding:
        async def handler(_: Any, params: Any) -> dict[str, Any]:
            try:
                return {"resultType": "complete", **await handle(params)}
            except RelayError as error:
                raise MCPError(code=INVALID_PARAMS, message=str(error)) from None

        return MethodBinding(name, Named, handler)

    async def get(params: Named) -> dict[str, Any]:
        return detailed(await tools.turn(params.task_id))

    async def update(params: Named) -> dict[str, Any]:
        turn = await tools.turn(params.task_id)
        said = decision(params.input_responses.get(_question(turn), {}))
        if said and turn["state"] == "parked":
            await tools.decide(turn, said)
        return {}

    async def cancel(params: Named) -> dict[str, Any]:
        await tools.cancel(params.task_id)
        return {}

    class Tasks(Extension):
        identifier = TASKS

        def methods(self) -> list[MethodBinding]:
            return [method("tasks/get", get), method("tasks/update", update), method("tasks/cancel", cancel)]

        async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
            """Hand out the turn as a task where the client can take one; else wait for it, as the tool does."""
            able, given = ctx.session.client_capabilities, params.arguments or {}
            takes = able and TASKS in (able.extensions or {})
            if params.name != "submit_turn" or not takes or "message" not in given:
                return await call_next(ctx)
            words = {name: str(given.get(name) or "") for name in ("message", "model", "session", "key")}
            try:
                turn_id = await tools.submitted(ctx, **words)
                return {"resultType": "task", **detailed(await tools.turn(turn_id)), "status": "working"}
            except RelayError as error:
                content = [{"type": "text", "text": str(error)}]
                return {"resultType": "complete", "content": content, "isError": True}

    return Tasks()
