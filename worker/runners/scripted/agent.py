"""The scripted agent's process, which plays the steps on its standard input."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from worker.runners.scripted.script_player import ActionLog, ScriptPlayer


class ProcessPlayer(ScriptPlayer):
    """Plays script steps that need a separate process, such as crashing or forking."""

    worker_pid = 0

    def die(self) -> None:
        """Crash this process with SIGABRT."""
        os.kill(os.getpid(), signal.SIGABRT)

    def hang(self) -> NoReturn:
        """Keep the process running forever without output."""
        while True:
            signal.pause()

    def ignore_sigterm(self) -> None:
        """Ignore SIGTERM, so that only SIGKILL ends the process."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def kill_parent(self) -> NoReturn:
        """Kill the worker process that started this agent, to simulate a turn that crashes its workers."""
        os.kill(self.worker_pid, signal.SIGKILL)
        self.hang()

    def fork(self, seconds: float = 600.0, scrub: bool = False) -> None:
        """Start a child that outlives this agent and keeps its output open. ``scrub`` empties its environment."""
        reader, writer = os.pipe()
        middle = os.fork()
        if middle:
            os.close(writer)
            os.waitpid(middle, 0)
            with os.fdopen(reader, "rb") as pipe:
                child = pipe.read().decode()
            self.emit({"event": "note", "text": "left behind", "detail": child})
            return
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            command = [sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"]
            os.execve(sys.executable, command, {} if scrub else dict(os.environ))  # noqa: S606 - a child to be found
        os._exit(0)

    def pour(self, piece: str, kind: str) -> None:
        """Write a piece of a large output to standard output. The piece need not be JSON."""
        if kind == "text":
            super().pour(piece, kind)
        else:
            _write_all(sys.stdout.fileno(), piece.encode() + (b"\n" if kind == "noise" else b""))


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _print_event(event: dict[str, Any]) -> None:
    _write_all(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def main() -> int:
    """Play the script steps that arrive as JSON on standard input, and return the exit code."""
    order = json.loads(sys.stdin.buffer.read())
    action_log = ActionLog(order["action_log"], order["turn"], order["attempt"], order["delivery"])
    # Exit normally on SIGTERM, so that the log records the end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    action_log.append_fact("start")
    player = ProcessPlayer(_print_event, Path(order["directory"]), order["mark"], order["prompt"])
    player.worker_pid = order["worker"]
    code: object = 1
    try:
        code = player.play(order["steps"])
    except SystemExit as stop:
        code = stop.code
        raise
    finally:
        action_log.append_fact("end", exit=code)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
