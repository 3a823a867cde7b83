"""Writes down what a process runs of the product while a window is open (``tests.house.trace``).

The byte in ``window`` says which: 0 none, 1 a message is answered, 2 nothing is asked. For 1 it writes a line per
function, code line and switch of file, each beginning with the stage; for 2 the names of the files.
"""

import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Any

_FOLDER = os.environ.get("HOUSE_TRACE", "")
_PRODUCT = os.environ.get("HOUSE_PRODUCT", "")
#: What judges; all else of a worker runs the agent and stores what it said.
_JUDGING = ("/worker/enforcement/", "/validation.py", "/judges.py", "/judging.py")
#: What the relay needs only once the turn is stored.
_ANSWERING = "/api_client/web/streaming/"


def _start(folder: Path) -> None:
    with (folder / "window").open("rb") as file:
        window = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    opened = {name: os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in ("asked", "idle")}
    ours: dict[str, bool] = {}
    seen: set[tuple[str, ...]] = set()
    last = threading.local()
    relay = {"answering": False}
    serves = False

    def stage(name: str) -> str:
        nonlocal serves
        if "/api_client/web/" in name:
            serves = True
        if serves:
            relay["answering"] = relay["answering"] or _ANSWERING in name
            return "answer" if relay["answering"] else "request"
        return "judging" if any(part in name for part in _JUDGING) else "run"

    def once(where: str, *parts: str) -> None:
        if parts not in seen:
            seen.add(parts)
            os.write(opened[where], ("\t".join(parts) + "\n").encode())

    def note(frame: Any, event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not (which := window[0]) or not ours.setdefault(name, name.startswith(_PRODUCT)):
            return None
        if which == 2:
            once("idle", "file", name)
            return None
        now = stage(name)
        if event == "line":
            once("asked", "line", now, name, str(frame.f_lineno))
        elif event == "call":
            once("asked", "function", now, name, str(frame.f_code.co_firstlineno))
            if getattr(last, "name", name) != name:
                os.write(opened["asked"], f"switch\t{now}\n".encode())
            last.name = name
        return note

    threading.settrace(note)
    sys.settrace(note)


if _FOLDER:
    _start(Path(_FOLDER))
