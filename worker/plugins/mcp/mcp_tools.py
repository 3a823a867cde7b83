"""The tools of ``turns run mcp``, which send requests to the relay."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict
from urllib.parse import quote

import anyio

from api_client.contract.turn import check_turn_id

_STATUS = {
    "suspended": "input_required",
    "passed": "completed",
    "passed_after_retry": "completed",
    "passed_by_fallback": "completed",
    "passed_by_human": "completed",
    "cancelled": "cancelled",
}
#: HTTP statuses worth a retry; 429 is a limit of the owner that will pass.
_LATER = frozenset({429, 502, 503, 504})
_FIRST_LOOK, _LAST_LOOK = 0.2, 2.0
#: Metadata in which Claude Code names the model's tool call, the same for a repeated call.
_CALL_ID = "claudecode/toolUseId"


class TurnTask(TypedDict):
    """A turn as MCP tools return it to the agent."""

    turn_id: str
    session_id: str
    status: str
    attempts: int
    answer: str
    error: str


class RelayError(Exception):
    """Raised when the relay refuses a request or does not answer in time."""


@dataclass(frozen=True)
class RelayAccess:
    """Sends requests with an API key to the relay.

    ``patience`` is the longest outage to wait for, in seconds.
    """

    url: str
    key: str
    patience: float

    async def send_request(self, method: str, path: str, body: Mapping[str, Any] | None = None, name: str = "") -> Any:
        """Send a request to the relay and return the reply. Retry while the relay is unavailable.

        ``name`` is the idempotency key of a submit. Raises ``RelayError``.
        """
        import httpx2

        head = {"authorization": f"Bearer {self.key}"} if self.key else {}
        head |= {"idempotency-key": name} if name else {}
        ends, delay = anyio.current_time() + self.patience, _FIRST_LOOK
        async with httpx2.AsyncClient(base_url=self.url, headers=head, timeout=30) as client:
            while True:
                try:
                    answer = await client.request(method, path, json=body)
                    if answer.status_code not in _LATER:
                        return _read_response(answer)
                    said = f"it answers {answer.status_code}"
                except httpx2.TransportError as error:
                    said = str(error) or type(error).__name__
                if anyio.current_time() > ends:
                    raise RelayError(f"no answer from {self.url} for {self.patience:g} s: {said}")
                await anyio.sleep(delay)
                delay = min(2 * delay, _LAST_LOOK)


def _read_response(answer: Any) -> Any:
    try:
        data = answer.json()
    except ValueError:
        raise RelayError(f"the answer is not JSON: HTTP {answer.status_code}") from None
    if answer.is_error:
        error = data.get("error", {})
        raise RelayError(f"{error.get('message', answer.status_code)} [{error.get('code')}]")
    return data


def _quote_turn_id(turn_id: str) -> str:
    try:
        check_turn_id(turn_id)
    except ValueError as error:
        raise RelayError(str(error)) from None
    return quote(turn_id, safe="")


def build_turn_task(turn: Mapping[str, Any]) -> TurnTask:
    """Build the tool result that describes a turn from the turn's record."""
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
    """Implements the MCP tools that submit, follow and cancel turns, and answer their questions, through the relay."""

    def __init__(self, relay: RelayAccess, model: str, wait: float) -> None:
        self._relay, self._model, self._wait = relay, model, wait
        self._process = secrets.token_hex(16)

    def idempotency_key(self, request: Any) -> str:
        """Return the same key for every repetition of a tool call, so that a repetition creates no second turn."""
        meta = request.meta if isinstance(request.meta, Mapping) else {}
        named = str(meta.get(_CALL_ID) or f"{self._process}:{request.request_id}")
        return f"mcp-{hashlib.sha256(named.encode()).hexdigest()[:40]}"

    async def submit_and_wait(
        self, request: Any, progress: Any, message: str, model: str, session: str, key: str, wait: float | None
    ) -> TurnTask:
        """Submit a turn, wait until it ends or ``wait`` seconds pass, and return its state."""
        return await self.await_turn(await self.submit_turn(request, message, model, session, key), progress, wait)

    async def submit_turn(self, request: Any, message: str, model: str, session: str, key: str) -> str:
        body: dict[str, Any] = {"model": model or self._model, "messages": [{"role": "user", "content": message}]}
        body |= {"session_id": session} if session else {}
        turn = await self._relay.send_request(
            "POST", "/v1/turns", body, f"mcp-{quote(key, safe='')}" if key else self.idempotency_key(request)
        )
        return str(turn["turn_id"])

    async def fetch_turn(self, turn_id: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._relay.send_request("GET", f"/v1/turns/{_quote_turn_id(turn_id)}")
        return found

    async def await_turn(self, turn_id: str, progress: Any, wait: float | None) -> TurnTask:
        """Wait until a turn ends or needs a person, for ``wait`` seconds at most, and return its state."""
        ends, delay, looks = anyio.current_time() + (self._wait if wait is None else wait), _FIRST_LOOK, 0
        while True:
            task = build_turn_task(await self.fetch_turn(turn_id))
            if task["status"] != "working" or anyio.current_time() > ends:
                return task
            looks += 1
            await progress(looks, message=f"{turn_id}: attempt {task['attempts']}" if task["attempts"] else turn_id)
            await anyio.sleep(delay)
            delay = min(1.5 * delay, _LAST_LOOK)

    async def cancel_turn(self, turn_id: str) -> TurnTask:
        """Cancel a turn and return its state. Cancelling twice is harmless."""
        await self._relay.send_request("POST", f"/v1/turns/{_quote_turn_id(turn_id)}/cancel")
        return build_turn_task(await self.fetch_turn(turn_id))

    async def submit_decision(self, turn: Mapping[str, Any], decision: str) -> None:
        """Submit a person's decision about a suspended turn. Do nothing if the turn has already continued."""
        body = {"decision": decision, "suspended_at": turn["suspended_at"]}
        try:
            await self._relay.send_request("POST", f"/v1/inbox/{_quote_turn_id(turn['turn_id'])}/decision", body)
        except RelayError as error:
            if "[turn_not_suspended]" not in str(error):
                raise
