"""Putting sessions apart on the disk: nothing that is written in one of them belongs to another one."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import struct
from pathlib import Path

from worker.files.safe_io import opened

_LONG = struct.calcsize("l") << 16
#: Reading and writing what ``lsattr`` shows and ``chattr`` changes.
_GET_FLAGS, _SET_FLAGS = 0x8000_6601 | _LONG, 0x4000_6602 | _LONG
_TOP_OF_TREES = 0x2_0000


def spread(folder: Path) -> None:
    """Have ext4 put the folders in ``folder`` apart, as ``chattr +T`` does; other file systems have nothing like it.

    Else they share a group of blocks: what is removed there is in the way of all that is made there next.
    """
    flags = ctypes.c_int()
    with contextlib.suppress(OSError), opened(folder) as fd:
        fcntl.ioctl(fd, _GET_FLAGS, flags)
        if not flags.value & _TOP_OF_TREES:
            flags.value |= _TOP_OF_TREES
            fcntl.ioctl(fd, _SET_FLAGS, flags)
