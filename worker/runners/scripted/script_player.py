"""Playing the steps of a script: for the agent process, and for tests without one.

Standard library only, few imports: the agent process starts with this.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: What an agent says, one JSON object a line: output, reset, tool, note, usage, error, result.
Say = Callable[[dict[str, Any]], None]

#: How a verifier's prompt names the nonce its verdict must repeat; the last place counts, because files come before it.
_NONCE = re.compile(r'"nonce": "([0-9a-f]{8,64})"')
#: A line of its text that the feedback quotes to an agent that broke off.
_QUOTED = re.compile(r"^> (.*\S)", re.MULTILINE)
#: Shortest time between two pieces of a text that takes some seconds.
_PIECE_SECONDS = 0.04
_FLOOD_PIECE = 8192


class ScriptLeft(Exception):
    """The script ends the run here, without a result. ``code`` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Witness:
    """Records what was really executed: one line a fact, appended in one write. Nobody else writes it."""

    def __init__(self, path: str, turn: str, attempt: int, delivery: int) -> None:
        self._path = path
        self._run = {"turn": turn, "attempt": attempt, "delivery": delivery}

    def record(self, event: str, **facts: Any) -> None:
        """Append one fact."""
        if not self._path:
            return
        line = {**self._run, "pid": os.getpid(), "event": event, "at": time.time(), "monotonic": time.monotonic()}
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, json.dumps({**line, **facts}).encode() + b"\n")
        finally:
            os.close(fd)


class Player:
    """Plays one list of steps. Each method is a step; its arguments are the step's fields (docs/scripted-agent.md)."""

    def __init__(self, emit: Say, directory: Path, mark: str, prompt: str = "") -> None:
        self.emit = emit
        self.directory = directory
        self.mark = mark
        self.prompt = prompt

    def play(self, steps: Iterable[tuple[str, dict[str, Any]]]) -> int:
        """Play all steps, then tell the result; returns the exit code."""
        try:
            for name, fields in steps:
                getattr(self, name)(**fields)
        except ScriptLeft as left:
            return left.code
        self.emit({"event": "result"})
        return 0

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def say(self, text: str, seconds: float = 0.0, pieces: int = 0, goes_on: bool = False) -> None:
        """Tell a text, in pieces when it takes ``seconds`` or a number of pieces is given.

        With ``goes_on``, and asked to go on from a break, it begins with the last line that the prompt quotes.
        """
        text = self._rest(text) if goes_on else text
        parts = split(text, pieces or (int(seconds / _PIECE_SECONDS) if seconds else 1))
        for number, part in enumerate(parts):
            if number:
                self.sleep(seconds / (len(parts) - 1))
            self.emit({"event": "output", "text": part})

    def _rest(self, text: str) -> str:
        quoted = _QUOTED.findall(self.prompt)
        return text[max(text.rfind(quoted[-1]), 0) :] if quoted else text

    def wait(self, seconds: float) -> None:
        """Say nothing for a while."""
        self.sleep(seconds)

    def tool(self, name: str, detail: str = "") -> None:
        """Report a tool that is used."""
        self.emit({"event": "tool", "text": name, "detail": detail})

    def note(self, text: str) -> None:
        """Report something that is not part of the answer."""
        self.emit({"event": "note", "text": text})

    def reset(self, reason: str = "") -> None:
        """Take back all that was said."""
        self.emit({"event": "reset", "text": reason})

    def verdict(self, success: bool, **said: Any) -> None:
        """Answer as a verifier: one JSON object with the nonce of its prompt, or of ``said``."""
        nonce = _NONCE.findall(self.prompt)[-1:]
        self.say(json.dumps({"nonce": "".join(nonce), "success": success, **said}, ensure_ascii=False))

    def usage(self, **amounts: float) -> None:
        """Report what the run used: tokens, money."""
        self.emit({"event": "usage", "usage": amounts})

    def error(self, kind: str, message: str = "", retry_after: float = 0.0) -> None:
        """End with an error of a certain kind."""
        self.emit({"event": "error", "kind": kind, "text": message, "retry_after": retry_after})
        raise ScriptLeft(1)

    def refuse(self, text: str = "", filtered: bool = False) -> None:
        """Refuse as a provider tells it: the model in its own words, or its service's filter."""
        self.emit({"event": "refusal", "text": text, "filtered": filtered})
        raise ScriptLeft(0)

    def exit(self, code: int = 0) -> None:
        """End with an exit code and without a result."""
        raise ScriptLeft(code)

    def cut(self) -> None:
        """End in mid-answer as if all were well: exit code 0, but no result."""
        raise ScriptLeft(0)

    def flood(self, size: int, kind: str = "text") -> None:
        """Pour out bytes: as answer, as lines that mean nothing, or as one line without an end."""
        for start in range(0, size, _FLOOD_PIECE):
            self.pour("x" * min(_FLOOD_PIECE, size - start), kind)

    def pour(self, piece: str, kind: str) -> None:
        """One piece of a flood."""
        self.emit({"event": "output", "text": piece} if kind == "text" else {"event": "noise"})

    def write(self, path: str, content: str) -> None:
        """Write a file below the delivery's directory."""
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.resolve().is_relative_to(self.directory.resolve()):
            raise ValueError(f"{path} leads out of the delivery's directory")
        target.write_text(content, encoding="utf-8")

    def touch(self, path: str) -> None:
        """Make an empty file; a relative path is below the delivery's directory."""
        (self.directory / path).touch()

    def wait_for(self, path: str) -> None:
        """Wait until a file exists; a relative path is below the delivery's directory."""
        while not (self.directory / path).exists():
            self.sleep(0.01)

    def call_back(self, url: str) -> None:
        """GET an address and wait for its answer; a failure becomes a note."""
        from urllib.request import Request, urlopen  # slow to import, seldom needed

        request = Request(url, headers={"Helix-Agent-Mark": self.mark})  # noqa: S310 - the script's own address
        try:
            with urlopen(request) as response:  # noqa: S310
                response.read()
        except OSError as error:
            self.note(f"call back failed: {error}")


def split(text: str, pieces: int) -> list[str]:
    """A text in at most ``pieces`` parts of about the same number of words; joined they are the text."""
    if pieces <= 1:
        return [text]
    words = re.findall(r"\s*\S+\s*?(?=\s|$)|\s+$", text) or [text]
    count = min(pieces, len(words))
    bounds = [round(len(words) * number / count) for number in range(count + 1)]
    return ["".join(words[start:end]) for start, end in itertools.pairwise(bounds)]
