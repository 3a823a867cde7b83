"""Runs a store server, syncs its append-only file to disk, and repairs the file after a full disk.

With ``appendfsync no`` each write reaches the kernel before the answer, and this module syncs the file once a second.
After a full disk the file is rewritten, and holes of zeros, which no server can read, are cut out before a start.
Standard library only: run as ``python -I -S append_only_file.py DIRECTORY COMMAND...``.
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
#: Delay before a failed rewrite is tried again, in seconds.
_AGAIN_SECONDS = 10.0
#: A hole, also inside a text; the start of a command, and of each word.
_HOLE, _ZEROS = re.compile(rb"(?:\A|\n)\0+\*"), re.compile(rb"\0+")
_COMMAND, _WORD = re.compile(rb"\*(\d{1,9})\r\n"), re.compile(rb"\$(\d{1,9})\r\n")
_HEAD_BYTES = 12
#: Fields of INFO: writes refused because of the disk; a rewrite in progress or scheduled.
_REFUSED, _REWRITES = re.compile(rb"errorstat_MISCONF:count=\d+"), re.compile(rb"aof_rewrite_(in_progress|scheduled):1")


def find_append_only_files(directory: Path) -> list[Path]:
    """Return the paths of the append-only files below the store server's data directory, in order."""
    return sorted(directory.glob("appendonlydir/*.incr.aof"))


def remove_holes(content: bytes) -> bytes:
    """Return an append-only file's content without runs of zero bytes between commands."""
    pieces, begin, at = list[bytes](), 0, 0
    while _HOLE.search(content, max(0, at - 1)):
        while end := _find_command_end(content, at):
            at = end
        zeros = _ZEROS.match(content, at)
        if not zeros or not _find_command_end(content, zeros.end()):
            break
        pieces.append(content[begin:at])
        begin = at = zeros.end()
    return b"".join([*pieces, content[begin:]])


def _find_command_end(content: bytes, at: int) -> int:
    """Return the end position of the command that starts at ``at``, or 0 if no command starts there."""
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


def repair_files(directory: Path) -> None:
    """Cut runs of zero bytes out of every append-only file of a stopped server.

    Damaged originals are kept in ``directory``.
    """
    for file in find_append_only_files(directory):
        whole = remove_holes(content := file.read_bytes())
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


def sync_files(directory: Path) -> int:
    """Sync every append-only file below the directory to disk, and return the number of files."""
    files = find_append_only_files(directory)
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(file, os.O_RDONLY)
            try:
                os.fdatasync(handle)
            finally:
                os.close(handle)
    return len(files)


class FailedWriteRecovery:
    """Makes a store server rewrite its append-only file after a failed disk write, while other writes wait."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._began = self._again = False
        self._refused = list[bytes]()
        self.damaged, self.rests_until = False, 0.0

    def check_server(self) -> None:
        """Check the server, and start, await or finish the rewrite of its append-only file. Raises ``OSError``."""
        state = self._send_command("INFO persistence errorstats")
        failing, refused = b"aof_last_write_status:err" in state, _REFUSED.findall(state)
        if failing or refused != self._refused:  # it failed, and may have recovered since
            self.damaged, self._again, self._refused = True, True, refused
        if not self.damaged or time.monotonic() < self.rests_until:
            return
        self._send_command("CLIENT PAUSE 5000 WRITE")  # a full disk refuses writes anyway
        if failing or _REWRITES.search(state):
            return
        if not self._began:
            self._began, self._again = self._send_command("BGREWRITEAOF").startswith(b"+"), False
            return
        failed = b"aof_last_bgrewrite_status:ok" not in state
        self._began, self.damaged = False, failed or self._again
        self.rests_until = time.monotonic() + _AGAIN_SECONDS * failed
        self._send_command("CLIENT UNPAUSE")

    def _send_command(self, words: str) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(self._address)
            connection.sendall(f"{words}\r\n".encode())
            with connection.makefile("rb") as reply:
                line = reply.readline()
                return reply.read(int(line[1:])) if line.startswith(b"$") else line


def sync_while_server_runs(directory: Path, server: int, address: str) -> None:
    """Sync the append-only files to disk every second while the parent process ``server`` is alive."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for stop in signal.SIGINT, signal.SIGTERM:
        signal.signal(stop, signal.SIG_IGN)
    healing = FailedWriteRecovery(address)
    while os.getppid() == server:
        started = time.monotonic()
        try:
            sync_files(directory)
        except OSError as error:
            sys.stderr.write(f"append_only_file: {directory}: {error}\n")
        with contextlib.suppress(OSError):
            healing.check_server()
        interval = _HURRY_SECONDS if healing.damaged and started > healing.rests_until else INTERVAL_SECONDS
        time.sleep(max(0.0, interval - (time.monotonic() - started)))


def main(directory: str, command: list[str]) -> None:
    """Repair a Redis server's append-only files, start the process that syncs them, and become the server.

    ``command`` is the server's command line; the files are in ``directory``.
    """
    try:
        repair_files(Path(directory))
    except OSError as error:
        sys.exit(f"append_only_file: a hole cannot be cut out: {error}. Make room on the disk, and start again")
    server, address = os.getpid(), command[command.index("--unixsocket") + 1]
    if "always" in command or os.fork():
        os.execv(command[0], command)  # noqa: S606 - no shell is meant
    os.closerange(3, 1024)
    # A separate program, because a search for the server's command line must not find this process.
    beside = ["--beside", str(server), directory, address]
    os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, *beside])  # noqa: S606


if __name__ == "__main__":
    if sys.argv[1] == "--beside":
        sync_while_server_runs(Path(sys.argv[3]), int(sys.argv[2]), sys.argv[4])
    else:
        main(sys.argv[1], sys.argv[2:])
