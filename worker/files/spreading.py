"""Spreads the folders of sessions over the disk."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import struct
from pathlib import Path

from worker.files.safe_io import open_folder

_LONG = struct.calcsize("l") << 16
#: ioctls that ``lsattr`` and ``chattr`` use.
_GET_FLAGS, _SET_FLAGS = 0x8000_6601 | _LONG, 0x4000_6602 | _LONG
_TOP_OF_TREES = 0x2_0000


def spread_folders(folder: Path) -> None:
    """Make ext4 spread the subfolders of a folder over the disk (like ``chattr +T``), for faster writing."""
    flags = ctypes.c_int()
    with contextlib.suppress(OSError), open_folder(folder) as fd:
        fcntl.ioctl(fd, _GET_FLAGS, flags)
        if not flags.value & _TOP_OF_TREES:
            flags.value |= _TOP_OF_TREES
            fcntl.ioctl(fd, _SET_FLAGS, flags)
