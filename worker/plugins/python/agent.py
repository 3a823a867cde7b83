"""The process of a Python agent: calls one function, reports JSON lines, imports only the standard library."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import signal
import sys
import traceback
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class AgentContext:
    """The input of a Python function that serves as an agent.

    Attributes:
        prompt: the user's message, or feedback on the last answer.
        messages: the conversation, oldest first, with ``role`` and ``content``; the user's message is last.
        feedback: True if ``prompt`` is feedback.
        answer_so_far: the interrupted answer to continue; empty for none.
        model: the part after the second ``:`` in the model's runner.
        attempt: number of the attempt, from 1.
        directory: the run's folder; files for the user belong in ``output/``.
        state: a folder that the session's next run gets back if this run is complete.
        instructions: the session's CLAUDE.md and the model's instruction files; empty without any.
    """

    prompt: str
    messages: tuple[dict[str, str], ...]
    feedback: bool
    answer_so_far: str
    model: str
    language: str
    turn_id: str
    session_id: str
    attempt: int
    directory: Path
    state: Path
    instructions: str
    _say: Callable[..., None] = field(repr=False)

    def tool(self, name: str, detail: str = "") -> None:
        """Report to the user that the agent calls a tool."""
        self._say("tool", text=str(name), detail=str(detail))

    def usage(self, *, input_tokens: int = 0, output_tokens: int = 0, cost_usd: float = 0.0) -> None:
        """Report the total usage of the run so far. ``cost_usd`` is in US dollars."""
        named = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cost_usd": cost_usd}
        self._say("usage", usage={name: value for name, value in named.items() if value})

    def list_tools(self) -> list[dict[str, Any]]:
        """Return the tools of the run's MCP servers, as MCP describes them. Blocks."""
        found: list[dict[str, Any]] = _ask_gateway("tools/list")["tools"]
        return found

    def call_tool(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Call the tool ``SERVER__TOOL`` and return MCP's result: ``content``, and ``isError`` if it failed. Blocks."""
        return _ask_gateway("tools/call", name=name, arguments=arguments)


def _ask_gateway(method: str, **params: Any) -> dict[str, Any]:
    if not (url := os.environ.get("HELIX_TOOLS_URL")):
        raise LookupError("this run has no tools")
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    head = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, body, head)  # noqa: S310 - the worker's own URL
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        said = json.load(answer)
    if "error" in said:
        raise RuntimeError(said["error"].get("message"))
    result: dict[str, Any] = said["result"]
    return result


class _InvalidAgent(Exception):
    pass


def main() -> int:
    """Run the agent function that the JSON on standard input names, and return the exit code."""
    given = json.loads(sys.stdin.buffer.read())
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # printed output is not part of the answer

    def print_event(event: str, **more: Any) -> None:
        out.write(json.dumps({"event": event, **more}).encode() + b"\n")

    sys.path.append(given["root"])
    try:
        if "--check" in sys.argv:
            _load_agent(given["module"], given["function"])
            print_event("result")
            return 0
        context = {**given["context"], "messages": tuple(given["context"]["messages"])}
        context |= {name: Path(context[name]) for name in ("directory", "state")}
        asyncio.run(
            _call_agent(
                _load_agent(given["module"], given["function"]), AgentContext(**context, _say=print_event), print_event
            )
        )
    except _InvalidAgent as error:
        print_event("error", kind="config", text=str(error))
    except (ConnectionError, TimeoutError) as error:
        traceback.print_exc()
        print_event("error", kind="transient", text=f"{type(error).__name__}: {error}")
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except Exception:
        traceback.print_exc()
        return 1
    else:
        print_event("evidence", facts={"agent_session": "kept"})
        print_event("result")
    return 0


def _load_agent(module: str, function: str) -> Callable[[AgentContext], Any]:
    try:
        found = importlib.import_module(module)
    except Exception as error:
        traceback.print_exc()
        raise _InvalidAgent(f"{module} cannot be imported: {error!r}") from error
    made = getattr(found, function, None)
    if not callable(made):
        raise _InvalidAgent(f"{module} has no function {function!r}")
    try:
        inspect.signature(made).bind(None)
    except TypeError as error:
        raise _InvalidAgent(f"{module}.{function} does not take the context alone: {error}") from error
    except ValueError:  # the callable has no signature
        pass
    return made  # type: ignore[no-any-return]


async def _call_agent(agent: Callable[[AgentContext], Any], context: AgentContext, say: Callable[..., None]) -> None:
    if task := asyncio.current_task():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async for piece in _text_pieces(agent(context)):
        if not isinstance(piece, str):
            raise _InvalidAgent(f"the agent gave {type(piece).__name__}, not a text")
        if piece:
            say("output", text=piece)


async def _text_pieces(made: Any) -> AsyncIterator[Any]:
    if inspect.isasyncgen(made):
        async for piece in made:
            yield piece
    elif inspect.isgenerator(made):
        for piece in made:
            yield piece
    else:
        yield await made if inspect.isawaitable(made) else made


if __name__ == "__main__":
    sys.exit(main())
