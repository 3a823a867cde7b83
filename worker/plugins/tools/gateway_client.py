"""The worker's side of the gateway process: starts it, opens and closes runs, and handles their messages."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import structlog

from api_client.contract.settings import Settings
from worker.runners.sandbox.guard_client import SOURCE_ROOT

log = structlog.get_logger(__name__)

#: Time limits for a reply, and for the process to end by itself, in seconds.
_PATIENCE, _TO_END = 60.0, 2.0

#: Handles a message about a run, whose ``do`` is use_up, suspend, report or gone.
Handle = Callable[[Mapping[str, Any]], Any]


class GatewayProcess:
    """The connection to the process that serves this worker's tool gateways. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.owner, self.gone = os.getpid(), False
        self._numbers = itertools.count(1)
        self._replies: dict[int, Future[Any]] = {}
        self._handlers: dict[str, Handle] = {}
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
        config = os.environ.get("HELIX_CONFIG")
        environment |= settings.to_environment() | ({"HELIX_CONFIG": config} if config else {})
        guard = ("-P", "-m", "worker.plugins.tools.gateway_guard", str(theirs.fileno()), str(self.owner))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *guard],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**environment, "PYTHONPATH": SOURCE_ROOT},
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._socket = ours
        threading.Thread(target=self._read_messages, name="tool-gateway", daemon=True).start()

    def open_run(self, spec: Mapping[str, Any], handle: Handle) -> tuple[str, str]:
        """Open the gateway of a run, and return its socket and its secret. Raises ``OSError``."""
        opened = self._send_request({"do": "open", "spec": spec})
        with self._lock:
            self._handlers[opened["secret"]] = handle
            if self.gone:  # it died before it could be told so
                raise ConnectionError("the tool gateway's process has ended")
        return opened["socket"], opened["secret"]

    def close_run(self, secret: str) -> None:
        with self._lock:
            self._handlers.pop(secret, None)
        with contextlib.suppress(OSError):
            self._send_request({"do": "close", "run": secret})
        if self.gone:  # the next delivery must not meet the servers of this one
            self._await_servers()

    def _await_servers(self) -> None:
        """Wait until the guard process has stopped the MCP servers of a gateway that has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TO_END)

    def _send_request(self, message: Mapping[str, Any]) -> Any:
        number, reply = next(self._numbers), Future[Any]()
        with self._lock:
            self._replies[number] = reply
        self._send_message({**message, "number": number})
        try:
            return reply.result(_PATIENCE)
        except TimeoutError:
            self._process.kill()  # the next run starts another one
            raise OSError("the tool gateway does not answer") from None

    def _send_message(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            if self.gone:
                raise ConnectionError("the tool gateway's process has ended")
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _read_messages(self) -> None:
        with self._socket.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                message = json.loads(line)
                if "reply" in message:
                    self._take_reply(message)
                elif "number" in message:  # the handler of a request may block
                    threading.Thread(target=self._handle_message, args=(message,), daemon=True).start()
                else:
                    self._handle_message(message)
        self._note_end()

    def _take_reply(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            reply = self._replies.pop(message["reply"], None)
        if reply and "error" in message:
            reply.set_exception(OSError(f"the tool gateway: {message['error']}"))
        elif reply:
            reply.set_result(message["value"])

    def _handle_message(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            handle = self._handlers.get(message["run"])
        value = None
        try:
            value = handle(message) if handle else None
        except Exception as error:  # without a reply, the call does not run
            log.warning("tools.not_handled", what=message["do"], error=f"{type(error).__name__}: {error}"[:200])
        if "number" in message:
            with contextlib.suppress(OSError):
                self._send_message({"reply": message["number"], "value": value})

    def _note_end(self) -> None:
        with self._lock:
            self.gone = True
            replies, handlers = list(self._replies.values()), list(self._handlers.values())
        for reply in replies:
            reply.set_exception(ConnectionError("the tool gateway's process has ended"))
        for handle in handlers:  # at once, before agents give up by themselves
            handle({"do": "gone"})
        self._await_servers()
        if handlers:
            log.error("tools.gateway_died", pid=self.pid, exit_code=self._process.returncode, runs=len(handlers))


_lock = threading.Lock()
_current: list[GatewayProcess] = []


def shared_gateway(settings: Settings) -> GatewayProcess:
    """Return the gateway process of this worker, starting it if necessary. May block."""
    with _lock:
        if not _current or _current[0].gone or _current[0].owner != os.getpid():
            _current[:] = [GatewayProcess(settings)]
        return _current[0]
