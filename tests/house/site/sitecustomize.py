"""Writes down which files of the product a process runs while a window is open (``tests.house.trace``).

The byte in ``window`` says which: 0 none, 1 a message is answered, 2 nothing is asked. Each has a list of its files.
"""

import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Any

_FOLDER = os.environ.get("HOUSE_TRACE", "")
_PRODUCT = os.environ.get("HOUSE_PRODUCT", "")


def _start(folder: Path) -> None:
    with (folder / "window").open("rb") as file:
        window = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    names = {1: "files", 2: "idle"}
    outputs = {n: os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for n, name in names.items()}
    seen: set[tuple[int, str]] = set()

    def note(frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and (which := window[0]):
            name = frame.f_code.co_filename
            if (which, name) not in seen:
                seen.add((which, name))
                if name.startswith(_PRODUCT):
                    os.write(outputs[which], f"{name}\n".encode())

    threading.setprofile(note)
    sys.setprofile(note)


if _FOLDER:
    _start(Path(_FOLDER))
