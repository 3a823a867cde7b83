"""Plays the steps of a script, in the agent process or in tests. Standard library only, to start fast."""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: Prints one event as a JSON object: output, reset, tool, note, usage, error, result.
Say = Callable[[dict[str, Any]], None]

#: The nonce in a verifier's prompt; the last match counts, because files come before it.
_NONCE = re.compile(r'"nonce": "([0-9a-f]{8,64})"')
#: A line of the agent's earlier text, quoted in feedback.
_QUOTED = re.compile(r"^> (.*\S)", re.MULTILINE)
_PIECE_SECONDS = 0.04
_FLOOD_PIECE = 8192


class ScriptExit(Exception):
    """Raised when a step ends the run without a result. The process exits with ``code``."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ActionLog:
    """Logs the scripted agent's actions to a file, one JSON object per line."""

    def __init__(self, path: str, turn: str, attempt: int, delivery: int) -> None:
        self._path = path
        self._run = {"turn": turn, "attempt": attempt, "delivery": delivery}

    def append_fact(self, event: str, **facts: Any) -> None:
        """Append one line to the log, with the event's name and the given facts."""
        if not self._path:
            return
        line = {**self._run, "pid": os.getpid(), "event": event, "at": time.time(), "monotonic": time.monotonic()}
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, json.dumps({**line, **facts}).encode() + b"\n")
        finally:
            os.close(fd)


class ScriptPlayer:
    """Plays the steps of a script. Each public method implements one kind of step."""

    def __init__(self, emit: Say, directory: Path, mark: str, prompt: str = "") -> None:
        self.emit = emit
        self.directory = directory
        self.mark = mark
        self.prompt = prompt

    def play(self, steps: Iterable[tuple[str, dict[str, Any]]]) -> int:
        """Play all steps, report the result, and return the process's exit code."""
        try:
            for name, fields in steps:
                getattr(self, name)(**fields)
        except ScriptExit as left:
            return left.code
        self.emit({"event": "result"})
        return 0

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def say(self, text: str, seconds: float = 0.0, pieces: int = 0, goes_on: bool = False) -> None:
        """Print a text as the answer, in several pieces if ``seconds`` or ``pieces`` are given.

        With ``goes_on``, a continued answer starts at the last line quoted in the prompt.
        """
        text = self._rest_after_quote(text) if goes_on else text
        parts = split_text(text, pieces or (int(seconds / _PIECE_SECONDS) if seconds else 1))
        for number, part in enumerate(parts):
            if number:
                self.sleep(seconds / (len(parts) - 1))
            self.emit({"event": "output", "text": part})

    def _rest_after_quote(self, text: str) -> str:
        quoted = _QUOTED.findall(self.prompt)
        return text[max(text.rfind(quoted[-1]), 0) :] if quoted else text

    def wait(self, seconds: float) -> None:
        """Wait for this number of seconds without output."""
        self.sleep(seconds)

    def tool(self, name: str, detail: str = "") -> None:
        self.emit({"event": "tool", "text": name, "detail": detail})

    def note(self, text: str) -> None:
        """Report a note to people who are watching the run. The note is not part of the answer."""
        self.emit({"event": "note", "text": text})

    def reset(self, reason: str = "") -> None:
        """Reset the answer by withdrawing its text so far."""
        self.emit({"event": "reset", "text": reason})

    def verdict(self, success: bool, **said: Any) -> None:
        """Print a verifier's answer: a JSON object with the verdict and the nonce from the prompt."""
        nonce = _NONCE.findall(self.prompt)[-1:]
        self.say(json.dumps({"nonce": "".join(nonce), "success": success, **said}, ensure_ascii=False))

    def usage(self, **amounts: float) -> None:
        """Report the token usage and the cost of the run."""
        self.emit({"event": "usage", "usage": amounts})

    def error(self, kind: str, message: str = "", retry_after: float = 0.0) -> None:
        """Report an error of this kind and end the run."""
        self.emit({"event": "error", "kind": kind, "text": message, "retry_after": retry_after})
        raise ScriptExit(1)

    def refuse(self, text: str = "", filtered: bool = False) -> None:
        """End the run with a refusal, by the model or by its service's filter."""
        self.emit({"event": "refusal", "text": text, "filtered": filtered})
        raise ScriptExit(0)

    def exit(self, code: int = 0) -> None:
        """End the run with this exit code and without a result."""
        raise ScriptExit(code)

    def cut(self) -> None:
        """End the run with exit code 0 but without a result, as if the output were cut off."""
        raise ScriptExit(0)

    def flood(self, size: int, kind: str = "text") -> None:
        """Print ``size`` bytes as an answer, as meaningless lines, or as one endless line."""
        for start in range(0, size, _FLOOD_PIECE):
            self.pour("x" * min(_FLOOD_PIECE, size - start), kind)

    def pour(self, piece: str, kind: str) -> None:
        """Print one piece of the output that ``flood`` produces."""
        self.emit({"event": "output", "text": piece} if kind == "text" else {"event": "noise"})

    def write(self, path: str, content: str) -> None:
        """Write a file in the run's folder. The path must not lead out of the folder."""
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.resolve().is_relative_to(self.directory.resolve()):
            raise ValueError(f"{path} leads out of the delivery's directory")
        target.write_text(content, encoding="utf-8")

    def touch(self, path: str) -> None:
        """Create an empty file. Relative paths start at the run's folder."""
        (self.directory / path).touch()

    def wait_for(self, path: str) -> None:
        """Wait until a file exists. Relative paths start at the run's folder."""
        while not (self.directory / path).exists():
            self.sleep(0.01)

    def call_back(self, url: str) -> None:
        """Call ``url`` with a GET request and wait for the response. Report a failure as a note."""
        from urllib.request import Request, urlopen  # slow to import and rarely needed

        request = Request(url, headers={"Helix-Agent-Mark": self.mark})  # noqa: S310 - the script's own address
        try:
            with urlopen(request) as response:  # noqa: S310
                response.read()
        except OSError as error:
            self.note(f"call back failed: {error}")


def split_text(text: str, pieces: int) -> list[str]:
    """Split a text into at most ``pieces`` parts with similar numbers of words."""
    if pieces <= 1:
        return [text]
    words = re.findall(r"\s*\S+\s*?(?=\s|$)|\s+$", text) or [text]
    count = min(pieces, len(words))
    bounds = [round(len(words) * number / count) for number in range(count + 1)]
    return ["".join(words[start:end]) for start, end in itertools.pairwise(bounds)]
