"""MCP's tasks extension (SEP-2663, revision 2026-07-28), which the SDK lacks: a turn is a task, without other state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field

from api_client.contract.interruption import Answerer, Interruption
from api_client.interruptions.question import QuestionView
from api_client.interruptions.registry import show_question
from worker.plugins.mcp.mcp_tools import RelayError, TurnTools, build_turn_task

if TYPE_CHECKING:
    from mcp.server.extension import Extension


TASKS = "io.modelcontextprotocol/tasks"
_POLL_MS = 1000
Turn = dict[str, Any]


def build_task(turn: Turn) -> dict[str, Any]:
    """Build an MCP task from a turn's record. A failed turn becomes a completed call with an error."""
    task = build_turn_task(turn)
    since = datetime.fromtimestamp(turn["created_at"], UTC).isoformat()
    status, asked = task["status"], Interruption.from_dict(turn.get("interruption") or {})
    found: dict[str, Any] = {
        "taskId": task["turn_id"],
        "status": status,
        "createdAt": since,
        "lastUpdatedAt": datetime.now(UTC).isoformat(),
        "ttlMs": None,
        "pollIntervalMs": _POLL_MS,
    }
    if status == "input_required" and asked and asked.who != Answerer.OPERATOR and show_question(asked).chat:
        found["inputRequests"] = {_question_name(turn): _build_elicitation(show_question(asked))}
    elif status == "input_required":  # the question is for an operator
        found |= {"status": "working", "statusMessage": task["error"]}
    elif status in {"completed", "failed"}:
        text = task["answer"] or task["error"]
        call = {"content": [{"type": "text", "text": text}], "structuredContent": task, "isError": status == "failed"}
        found |= {"status": "completed", "result": call}
    return found


def _question_name(turn: Turn) -> str:
    return f"{turn['suspended_at']!r}"


def _build_elicitation(question: QuestionView) -> dict[str, Any]:
    decision = {"type": "string", "enum": [each.decision for each in question.direct_choices if not each.takes]}
    schema = {"type": "object", "properties": {"decision": decision}, "required": ["decision"]}
    params = {"mode": "form", "message": f"{question.title}\n{question.chat}", "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def read_decision(response: dict[str, Any], turn: Turn) -> str:
    """Return the decision in a user's response, or an empty string for a declined question."""
    asked = Interruption.from_dict(turn.get("interruption") or {})
    if not asked or not response:
        return ""
    if response.get("action") == "decline":
        return asked.silence
    said = (response.get("content") or {}).get("decision") if response.get("action") == "accept" else ""
    return said if said in {each.decision for each in show_question(asked).direct_choices if not each.takes} else ""


def build_extension(tools: TurnTools) -> Extension:
    """Build the extension that lets MCP clients follow turns as tasks."""
    from mcp.server.extension import Extension, MethodBinding
    from mcp.shared.exceptions import MCPError
    from mcp_types import INVALID_PARAMS, RequestParams

    class TaskParams(RequestParams):
        model_config = ConfigDict(extra="ignore", populate_by_name=True)
        task_id: str = Field(alias="taskId")
        input_responses: dict[str, dict[str, Any]] = Field(default={}, alias="inputResponses")

    def bind_method(name: str, handle: Callable[[TaskParams], Awaitable[dict[str, Any]]]) -> MethodBinding:
        async def handler(_: Any, params: Any) -> dict[str, Any]:
            try:
                return {"resultType": "complete", **await handle(params)}
            except RelayError as error:
                raise MCPError(code=INVALID_PARAMS, message=str(error)) from None

        return MethodBinding(name, TaskParams, handler)

    async def get_task(params: TaskParams) -> dict[str, Any]:
        return build_task(await tools.fetch_turn(params.task_id))

    async def update_task(params: TaskParams) -> dict[str, Any]:
        turn = await tools.fetch_turn(params.task_id)
        said = read_decision(params.input_responses.get(_question_name(turn), {}), turn)
        if said and turn["state"] == "suspended":
            await tools.submit_decision(turn, said)
        return {}

    async def cancel_task(params: TaskParams) -> dict[str, Any]:
        await tools.cancel_turn(params.task_id)
        return {}

    class Tasks(Extension):
        identifier = TASKS

        def methods(self) -> list[MethodBinding]:
            return [
                bind_method("tasks/get", get_task),
                bind_method("tasks/update", update_task),
                bind_method("tasks/cancel", cancel_task),
            ]

        async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
            """Return a task at once if the client supports tasks. Otherwise the tool call waits for the turn."""
            able, given = ctx.session.client_capabilities, params.arguments or {}
            takes = able and TASKS in (able.extensions or {})
            if params.name != "submit_turn" or not takes or "message" not in given:
                return await call_next(ctx)
            words = {name: str(given.get(name) or "") for name in ("message", "model", "session", "key")}
            try:
                turn_id = await tools.submit_turn(ctx, **words)
                return {"resultType": "task", **build_task(await tools.fetch_turn(turn_id)), "status": "working"}
            except RelayError as error:
                content = [{"type": "text", "text": str(error)}]
                return {"resultType": "complete", "content": content, "isError": True}

    return Tasks()
