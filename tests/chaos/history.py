"""The history of a run: what every party did and saw, one JSON object a line, one writer per process.

Each line has ``t`` (CLOCK_MONOTONIC, ns: one clock for the whole machine), ``wall`` (s), ``pid``, ``f`` (what) and
``type``: ``invoke`` (begun), ``ok`` (surely done), ``fail`` (surely not done), ``info`` (nobody knows; it may still
happen). A timeout is ``info``, never ``fail``. The agents write their own file, the action log. Standard library only.
"""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Self

HISTORY = "history.jsonl"
ACTION_LOG = "action_log.jsonl"
LOGS = "logs"


class Recorder:
    """Writes one process's part of a history; every line is in the file when ``write`` returns."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / HISTORY).open("a", encoding="utf-8", buffering=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, f: str, type_: str = "ok", **facts: Any) -> None:
        """Append one line."""
        line = {"t": time.monotonic_ns(), "wall": time.time(), "pid": os.getpid(), "f": f, "type": type_}
        self._file.write(json.dumps(line | facts, separators=(",", ":")) + "\n")


def digest(event: dict[str, Any]) -> str:
    """What two who saw the same event agree on; not its time, which is told as a float by some."""
    said = [event["seq"], event["epoch"], event["kind"], event["data"]]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def read(directory: Path) -> list[dict[str, Any]]:
    """All lines of a stored history in the order of their time; the agents' lines have ``f`` = ``execution``.

    Raises:
        OSError: there is no history. ValueError: a line in the middle is no JSON object.
    """
    lines = _lines(directory / HISTORY)
    action_log = directory / ACTION_LOG
    if action_log.exists():
        for line in _lines(action_log):
            lines.append({**line, "f": "execution", "type": line["event"], "t": int(line["monotonic"] * 1e9)})
    return sorted(lines, key=lambda line: line["t"])


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; a last one that was cut off by its writer's death is left out."""
    texts = path.read_text(encoding="utf-8").splitlines()
    found: list[dict[str, Any]] = []
    for number, text in enumerate(texts, 1):
        try:
            found.append(json.loads(text))
        except ValueError as error:
            if number == len(texts):
                break
            raise ValueError(f"{path}, line {number}: {error}") from error
    return found
