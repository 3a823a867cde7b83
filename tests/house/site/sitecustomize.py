"""Writes down which files of the product a process runs while the window is open (``tests.house.trace``)."""

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
    output = os.open(folder / "files", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    seen: set[str] = set()

    def note(frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and window[0] == 1:
            name = frame.f_code.co_filename
            if name not in seen:
                seen.add(name)
                if name.startswith(_PRODUCT):
                    os.write(output, f"{name}\n".encode())

    threading.setprofile(note)
    sys.setprofile(note)


if _FOLDER:
    _start(Path(_FOLDER))
