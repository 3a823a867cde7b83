"""Writes down what a process runs of the product while a window is open (``tests.house.trace``).

The byte in ``window`` says which: 0 none, 255 nothing is asked, else the number of the message that is answered. For a
message it writes a line per function, code line and switch of file, each beginning with the stage; else the names of
the files.
"""

import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Any

_FOLDER = os.environ.get("HOUSE_TRACE", "")
#: As in ``tests.house.trace``, which this process cannot import.
_MESSAGES, _IDLE = 5, 255
_PRODUCT = os.environ.get("HOUSE_PRODUCT", "")
#: What judges; all else of a worker runs the agent and stores what it said.
_JUDGING = ("/worker/enforcement/", "/validation.py", "/validation_pool.py", "/after_validation.py")
#: What the relay needs only once the turn is stored.
_ANSWERING = "/api_client/web/streaming/"


def _start(folder: Path) -> None:
    with (folder / "window").open("rb") as file:
        window = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    opened = {
        number: os.open(folder / f"{number}.seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for number in (*range(1, _MESSAGES + 1), _IDLE)
    }
    ours: dict[str, bool] = {}
    seen: set[tuple[int, *tuple[str, ...]]] = set()
    last = threading.local()
    answered = 0
    serves = False

    def stage(name: str, which: int) -> str:
        nonlocal answered, serves
        if "/api_client/web/" in name:
            serves = True
        if serves:
            answered = which if _ANSWERING in name else answered
            return "answer" if answered == which else "request"
        return "judging" if any(part in name for part in _JUDGING) else "run"

    def once(which: int, *parts: str) -> None:
        if (which, *parts) not in seen:
            seen.add((which, *parts))
            os.write(opened[which], ("\t".join(parts) + "\n").encode())

    def note(frame: Any, event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not (which := window[0]) or not ours.setdefault(name, name.startswith(_PRODUCT)):
            return None
        if which == _IDLE:
            once(which, "file", name)
            return None
        now = stage(name, which)
        if event == "line":
            once(which, "line", now, name, str(frame.f_lineno))
        elif event == "call":
            once(which, "function", now, name, str(frame.f_code.co_firstlineno))
            if getattr(last, "name", name) != name:
                os.write(opened[which], f"switch\t{now}\n".encode())
            last.name = name
        return note

    threading.settrace(note)
    sys.settrace(note)


if _FOLDER:
    _start(Path(_FOLDER))
