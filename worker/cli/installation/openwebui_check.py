"""Checks the relay with requests like Open WebUI's, and evaluates the last request of the real Open WebUI."""

from __future__ import annotations

import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from typing import Any

from api_client.contract.errors import HelixError
from api_client.contract.settings import Settings
from api_client.relay_state.openwebui_seen import SeenRequest
from worker.cli.checks.finding import Finding
from worker.cli.store_access import run_with_client

#: User agent that tells these requests from those of Open WebUI.
AGENT = "turns-openwebui-check"
_KEY_FIX = "make one with `turns keys create webui --forwards-users`, and give it with --key"
_PRINT_FIX = (
    "its OPENAI_API_CONFIGS is missing, or is not JSON any more: `docker run --env-file` keeps quotes, so use "
    "`turns openwebui print docker` there; where it ran before, its database wins: ENABLE_PERSISTENT_CONFIG=False"
)


@dataclass(frozen=True, slots=True)
class RelayAddress:
    """The URL of a relay, with an API key and a timeout in seconds for requests to it."""

    url: str
    key: str
    timeout: float

    def open_request(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
        """Send a request to the relay and return the open response, whose body is not read yet."""
        head = {"authorization": f"Bearer {self.key}", "user-agent": AGENT, "content-type": "application/json"}
        head |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url.rstrip('/')}{path}", data, head)  # noqa: S310 - the operator's own
        return urllib.request.urlopen(request, timeout=self.timeout)  # noqa: S310


def check_open_webui(settings: Settings, relay: RelayAddress, model: str, *, ask: bool) -> Iterator[Finding]:
    """Check that the relay answers as Open WebUI expects, and yield findings. Stop at the first failure."""
    try:
        with relay.open_request("/models") as answer:
            models = [entry["id"] for entry in json.load(answer)["data"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield report_unreachable(relay, error)
        return
    yield Finding("address", "ok", f"{relay.url} answers")
    if model not in models:
        message = f"{model} is not offered to this key; there is: {', '.join(models)}"
        yield Finding("models", "wrong", message, "choose a model with --model")
        return
    yield Finding("models", "ok", ", ".join(models))
    looks = [check_background_request, *([check_turn] if ask else [])]
    for look in looks:
        try:
            yield look(relay, model)
        except (OSError, ValueError) as error:
            yield report_unreachable(relay, error, look.__name__)
            return
    if settings.store_url:
        yield from check_last_request(settings)


def report_unreachable(relay: RelayAddress, error: Exception, check: str = "address") -> Finding:
    """Return the finding about a failed request to the relay."""
    if isinstance(error, urllib.error.HTTPError):
        with error:
            reason = _error_message(error.read(4096))
        fix = _KEY_FIX if error.code in {401, 403} else "the address ends in /v1" if error.code == 404 else ""
        return Finding(check, "wrong", f"{relay.url} says {error.code}: {reason}", fix)
    if isinstance(error, OSError):
        fix = "is `turns run relay` running there? In a container localhost is the container: http://host.docker.internal:PORT/v1"
        return Finding(check, "wrong", f"{relay.url} does not answer: {error}", fix)
    return Finding(check, "wrong", f"what answers at {relay.url} is not a relay", "the address ends in /v1")


def _error_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason"


def check_background_request(relay: RelayAddress, model: str) -> Finding:
    """Check that a request for a chat title is answered without a turn, and return the finding."""
    prompt = "### Task:\nGenerate a concise title\n<chat_history>\nUSER: Why a cache?\n</chat_history>"
    body = {"model": model, "stream": False, "messages": [{"role": "user", "content": prompt}]}
    head = {"x_owui_task": "title_generation", "x_owui_message_id": "", "x_owui_user_id": AGENT}
    with relay.open_request("/chat/completions", body, **head) as answer:
        answered: Message = answer.headers
        text = json.load(answer)["choices"][0]["message"]["content"]
    if answered["x-turn-id"] or "title" not in text:
        return Finding("background requests", "wrong", "a request for a title became a turn", "is this another server?")
    return Finding("background requests", "ok", f"a title was generated without a turn: {text}")


def check_turn(relay: RelayAddress, model: str) -> Finding:
    """Check that a chat message gets a complete answer with progress and text, and return the finding."""
    name = secrets.token_hex(6)
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Say hello in one sentence."}]}
    head = {
        "x_owui_task": "",
        "x_owui_chat_id": f"check-{name}",
        "x_owui_message_id": f"answer-{name}",
        "x_owui_user_message_id": f"question-{name}",
        "x_owui_user_id": AGENT,
    }
    began, page = time.monotonic(), StreamView()
    with relay.open_request("/chat/completions", body, **head) as answer:
        turn_id = answer.headers["x-turn-id"]
        for line in answer:
            page.read_line(line.decode())
            if time.monotonic() - began > relay.timeout:
                fix = "is a worker running? `turns turn watch` shows the turn; a slow agent needs a longer --timeout"
                return Finding("turn", "wrong", f"{turn_id} has not ended after {relay.timeout:g} s", fix)
    if page.error or not page.done:
        message = page.error or "the stream ended without an end marker"
        return Finding("turn", "wrong", f"{turn_id}: {message}", f"`turns turn show {turn_id}`")
    seconds = time.monotonic() - began
    return Finding("turn", "ok", f"{turn_id}: answered in {seconds:.1f} s, {page.lines} status lines")


class StreamView:
    """Collects what a user of Open WebUI would see of a streamed response: status lines, error and end."""

    def __init__(self) -> None:
        self.error = ""
        self.lines = 0
        self.done = False

    def read_line(self, line: str) -> None:
        """Process a line of the response (server-sent events)."""
        data = line.removeprefix("data: ").strip()
        if data == "[DONE]":
            self.done = True
        elif line.startswith("data: {"):
            payload = json.loads(data)
            self.lines += "event" in payload
            if "error" in payload:
                self.error = str(payload["error"]["message"])


def check_last_request(settings: Settings) -> Iterator[Finding]:
    """Report problems in the last request that Open WebUI sent to this installation."""
    try:
        found = run_with_client(lambda client: client.openwebui_seen.read_last())
    except HelixError as error:
        yield Finding("Open WebUI", "wrong", str(error), "see `turns doctor`")
        return
    if found is None:
        yield Finding(
            "Open WebUI", "warning", "has not sent a request yet", "send a message in Open WebUI, and check again"
        )
        return
    yield from report_request(found[0], max(0.0, time.time() - found[1]))


def report_request(request: SeenRequest, seconds: float) -> Iterator[Finding]:
    """Yield findings about Open WebUI's settings, from a request that Open WebUI sent ``seconds`` ago."""
    when = f"last asked {seconds / 60:.0f} min ago"
    if not request.task or not request.chat:
        missing = "the header templates (X-Owui-Task ...)" if not request.task else "the chat's id"
        yield Finding("Open WebUI", "wrong", f"{when}, without {missing}", _PRINT_FIX)
    else:
        yield Finding("Open WebUI", "ok", f"{when}, with every header that is needed")
    if not request.user:
        fix = "ENABLE_FORWARD_USER_INFO_HEADERS=true, or X-Owui-User-Id as `turns openwebui print env` has it"
        yield Finding("users", "warning", "requests do not say which user they are for", fix)
    if request.tools:
        fix = "Workspace > Models > Import what `turns openwebui print models` writes"
        yield Finding("tools", "warning", f"requests carry {request.tools} tools, which no agent here calls", fix)
