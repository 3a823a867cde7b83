"""Run a server, and keep its append-only file whole and on the disk.

The server's own ``appendfsync everysec`` holds back its writes for up to two seconds while it waits for the disk, and
answers its clients all the same: killed in that moment, it has lost what it acknowledged. With ``appendfsync no`` each
write reaches the kernel before the answer leaves, where no kill of a process can undo it; the rest to do once a
second is asking the kernel to write it out, and that this module does beside the server.

A server that rewrote its file writes the new one without O_APPEND. Where a full disk takes a part of a write, the
server cuts that part off, and writes on behind the place where it was: zeros are left in between, and no server reads
such a file. So the file is rewritten once the disk has room again, while writes wait; and before a start the zeros are
cut out. Standard library only: run as a separate script, ``python -I -S append_only_file.py DIRECTORY COMMAND...``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

INTERVAL_SECONDS, _HURRY_SECONDS = 1.0, 0.05
_PR_SET_PDEATHSIG = 1
#: A rewrite that failed, mostly for lack of room, is tried again after this many seconds; writes do not wait for that.
_AGAIN_SECONDS = 10.0
#: What a hole looks like, also inside a text; the head of a command, and of each of its words.
_HOLE, _ZEROS = re.compile(rb"(?:\A|\n)\0+\*"), re.compile(rb"\0+")
_COMMAND, _WORD = re.compile(rb"\*(\d{1,9})\r\n"), re.compile(rb"\$(\d{1,9})\r\n")
_HEAD_BYTES = 12
#: In INFO: how often the server has refused a write for its disk; and that it rewrites its file, or is about to.
_REFUSED, _REWRITES = re.compile(rb"errorstat_MISCONF:count=\d+"), re.compile(rb"aof_rewrite_(in_progress|scheduled):1")


def files_in(directory: Path) -> list[Path]:
    """Return the files that commands are appended to."""
    return sorted(directory.glob("appendonlydir/*.incr.aof"))


def without_holes(content: bytes) -> bytes:
    """Cut out the zeros that stand exactly between two commands.

    Anything else than a command ends the search: the server refuses a file that is damaged otherwise.
    """
    pieces, begin, at = list[bytes](), 0, 0
    while _HOLE.search(content, max(0, at - 1)):
        while end := _end_of_command(content, at):
            at = end
        zeros = _ZEROS.match(content, at)
        if not zeros or not _end_of_command(content, zeros.end()):
            break
        pieces.append(content[begin:at])
        begin = at = zeros.end()
    return b"".join([*pieces, content[begin:]])


def _end_of_command(content: bytes, at: int) -> int:
    """Return where the command at ``at`` ends; one that is cut ends with the content. 0: there is none."""
    size = len(content)
    words = _COMMAND.match(content, at)
    if not words:
        return size if content[at : at + 1] == b"*" and size - at < _HEAD_BYTES else 0
    at = words.end()
    for _ in range(int(words[1])):
        word = _WORD.match(content, at)
        at = word.end() + int(word[1]) + 2 if word else at
        if at > size or (not word and size - at < _HEAD_BYTES):
            return size
        if not word or content[at - 2 : at] != b"\r\n":
            return 0
    return at


def repair(directory: Path) -> None:
    """Cut the holes out of each file, before the server starts. The file of before is kept in ``directory``."""
    for file in files_in(directory):
        whole = without_holes(content := file.read_bytes())
        if whole == content:
            continue
        made, kept = file.with_suffix(".made"), directory / f"{file.name}.{time.time_ns()}"
        with made.open("wb") as opened:
            opened.write(whole)
            opened.flush()
            os.fsync(opened.fileno())
        os.link(file, kept)
        made.replace(file)
        cut = len(content) - len(whole)
        sys.stderr.write(f"append_only_file: a full disk left {cut} zeros in {file}: cut out; it was {kept}\n")


def sync(directory: Path) -> int:
    """Wait until every append-only file below ``directory`` is on the disk; returns how many there are."""
    files = files_in(directory)
    for file in files:
        # One that the server has just replaced is gone, and its successor is synced by the server itself.
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(file, os.O_RDONLY)
            try:
                os.fdatasync(handle)
            finally:
                os.close(handle)
    return len(files)


class Healing:
    """Has a server rewrite its file after a write that its disk did not take. Writes wait for the new file."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._began = self._again = False
        self._refused = list[bytes]()
        self.damaged, self.rests_until = False, 0.0

    def look(self) -> None:
        """Look once, and do the next step. Raises ``OSError``: the server does not answer."""
        state = self._asked("INFO persistence errorstats")
        failing, refused = b"aof_last_write_status:err" in state, _REFUSED.findall(state)
        if failing or refused != self._refused:  # it has failed, and may have healed since
            self.damaged, self._again, self._refused = True, True, refused
        if not self.damaged or time.monotonic() < self.rests_until:
            return
        self._asked("CLIENT PAUSE 5000 WRITE")  # on a full disk they are refused all the same
        if failing or _REWRITES.search(state):
            return
        if not self._began:
            self._began, self._again = self._asked("BGREWRITEAOF").startswith(b"+"), False
            return
        failed = b"aof_last_bgrewrite_status:ok" not in state
        self._began, self.damaged = False, failed or self._again
        self.rests_until = time.monotonic() + _AGAIN_SECONDS * failed
        self._asked("CLIENT UNPAUSE")

    def _asked(self, words: str) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(self._address)
            connection.sendall(f"{words}\r\n".encode())
            with connection.makefile("rb") as reply:
                line = reply.readline()
                return reply.read(int(line[1:])) if line.startswith(b"$") else line


def keep(directory: Path, server: int, address: str) -> None:
    """Sync every second for as long as process ``server``, our parent, lives. A stop is its affair: ignored here."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for stop in signal.SIGINT, signal.SIGTERM:
        signal.signal(stop, signal.SIG_IGN)
    healing = Healing(address)
    while os.getppid() == server:
        started = time.monotonic()
        try:
            sync(directory)
        except OSError as error:
            sys.stderr.write(f"append_only_file: {directory}: {error}\n")
        with contextlib.suppress(OSError):  # it starts, or ends
            healing.look()
        interval = _HURRY_SECONDS if healing.damaged and started > healing.rests_until else INTERVAL_SECONDS
        time.sleep(max(0.0, interval - (time.monotonic() - started)))


def main(directory: str, command: list[str]) -> None:
    """Become ``command``, with a child process beside it, unless the server syncs itself. Neither call returns."""
    try:
        repair(Path(directory))
    except OSError as error:
        sys.exit(f"append_only_file: a hole cannot be cut out: {error}. Make room on the disk, and start again")
    server, address = os.getpid(), command[command.index("--unixsocket") + 1]
    if "always" in command or os.fork():
        os.execv(command[0], command)  # noqa: S606 - no shell is meant
    os.closerange(3, 1024)  # among them the lock that says that the server runs
    # A separate program: nobody who looks for the server's command line finds this process too.
    beside = ["--beside", str(server), directory, address]
    os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, *beside])  # noqa: S606


if __name__ == "__main__":
    if sys.argv[1] == "--beside":
        keep(Path(sys.argv[3]), int(sys.argv[2]), sys.argv[4])
    else:
        main(sys.argv[1], sys.argv[2:])
