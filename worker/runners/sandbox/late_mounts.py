"""Mount files and folders into a sandbox that is already running. Needs Linux 5.12 or later."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path

from worker.runners.sandbox.process_tags import children_of

#: System calls, whose numbers are the same on all supported machines (asm-generic/unistd.h), and their flags.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_HERE, _EMPTY_PATH, _RECURSIVE = -100, 0x1000, 0x8000
_CLONE_TREE, _FROM_DESCRIPTOR = 1, 4
_RDONLY, _NOSUID, _NODEV = 1, 2, 4
_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000
_GET_OWNER = 0xB701
#: Seconds between two looks for the program in a sandbox.
_PAUSE = 0.002
_LIBC = ctypes.CDLL(None, use_errno=True)


def add_mounts(bubblewrap: int, mounts: Iterable[tuple[str, bool]]) -> None:
    """Mount each path, writable or read-only, under its own name into a bubblewrap process's sandbox.

    Missing paths are left out. The calling process must have one thread, and must end afterwards: it enters the
    namespaces of the sandbox. Raises ``OSError``.
    """
    while not (agent := find_agent(bubblewrap)):
        time.sleep(_PAUSE)
    inside = os.open(f"/proc/{agent}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    if find_agent(bubblewrap) != agent:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    outside = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    if not os.path.sameopenfile(owner := fcntl.ioctl(inside, _GET_OWNER), fcntl.ioctl(outside, _GET_OWNER)):
        _check(_LIBC.setns(owner, _NEW_USERS))
    # Copies of mounts can be made only in a mount namespace of the user namespace that was just entered.
    _check(_LIBC.unshare(_NEW_MOUNTS))
    trees = []
    for path, writable in mounts:
        with contextlib.suppress(FileNotFoundError):
            tree = _call(_OPEN_TREE, _HERE, path.encode(), _CLONE_TREE | os.O_CLOEXEC | _RECURSIVE)
            _set_attributes(tree, _NOSUID | _NODEV | (0 if writable else _RDONLY), 0, _RECURSIVE)
            trees.append((Path(path), tree, Path(path).is_dir()))
    _check(_LIBC.setns(inside, _NEW_MOUNTS))
    for target, tree, is_folder in trees:
        _make_mount_point(target, is_folder=is_folder)
        _call(_MOVE_MOUNT, tree, b"", _HERE, bytes(target), _FROM_DESCRIPTOR)


def find_agent(bubblewrap: int) -> int:
    """Return the process id of the program in a sandbox, or 0 while the sandbox is incomplete. Raises ``OSError``."""
    program = Path(f"/proc/{bubblewrap}/exe")
    agents = [agent for first in children_of(bubblewrap) for agent in children_of(first)]
    return next((agent for agent in agents if not program.samefile(f"/proc/{agent}/exe")), 0)


def _make_mount_point(path: Path, *, is_folder: bool) -> None:
    """Create an empty folder or file in the sandbox. Its processes continue to see a read-only file system."""
    around = next(parent for parent in [path, *path.parents] if parent.exists())
    if around == path:
        return
    folder = _call(_OPEN_TREE, _HERE, bytes(around), _CLONE_TREE | os.O_CLOEXEC)
    _set_attributes(folder, 0, _RDONLY, 0)
    *names, last = path.relative_to(around).parts
    for name in [*names, last] if is_folder else names:
        os.mkdir(name, dir_fd=folder)
        folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    if not is_folder:
        os.open(last, os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=folder)


def _set_attributes(mount: int, added: int, cleared: int, flags: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(added, cleared, 0, 0)
    _call(_MOUNT_SETATTR, mount, b"", _EMPTY_PATH | flags, attributes, ctypes.sizeof(attributes))


def _call(number: int, *given: int | bytes | ctypes.Array[ctypes.c_uint64]) -> int:
    values = [ctypes.c_long(each) if isinstance(each, int) else each for each in given]
    return _check(_LIBC.syscall(ctypes.c_long(number), *values))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
