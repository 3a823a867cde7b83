"""Compile the sandbox's seccomp filter: the system calls an agent may make, as a classic BPF program."""

from __future__ import annotations

import errno
import functools
import os
import platform
import struct
from pathlib import Path

_TABLE = Path(__file__).with_name("syscalls.txt")
#: Machine -> column of the table, and its kernel number (linux/audit.h).
_MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}

_Step = tuple[int, int, int, int]  # operation, skip if true, skip if false, value
# Operations (linux/bpf_common.h). A load names an offset in ``struct seccomp_data``, little-endian.
_LOAD, _EQUAL, _ABOVE, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW: _Step = (_RETURN, 0, 0, 0x7FFF0000)
_REFUSE: _Step = (_RETURN, 0, 0, 0x00050000 | errno.EPERM)
_UNKNOWN: _Step = (_RETURN, 0, 0, 0x00050000 | errno.ENOSYS)
#: Comparison sign in the table -> operation, and whether the operation must be true.
_SIGNS = {"=": (_EQUAL, True), "!": (_EQUAL, False), "~": (_ANY_BIT, False)}


def compile_filter(machine: str) -> bytes:
    """Compile the system call filter for a machine type, or return empty bytes for unknown machines.

    Unknown calls fail with ENOSYS, for which the C library has fallbacks.
    """
    if machine not in _MACHINES:
        return b""
    column, architecture = _MACHINES[machine]
    rows = [line.split(maxsplit=3) for line in _TABLE.read_text().splitlines() if line and line[0] != "#"]
    calls = sorted((int(row[column]), "".join(row[3:])) for row in rows if row[column] != "-")
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), _UNKNOWN, (_LOAD, 0, 0, _NUMBER)]
    for number, rule in calls:
        if rule:
            check = _compile_check(rule)
            code += [(_EQUAL, 0, len(check), number), *check]
    for first, last in _group_ranges([number for number, rule in calls if not rule]):
        code += [(_AT_LEAST, 0, 2, first), (_ABOVE, 1, 0, last), _ALLOW]
    return b"".join(struct.pack("=HBBI", *step) for step in [*code, _UNKNOWN])


def _compile_check(rule: str) -> list[_Step]:
    code: list[_Step] = []
    for alternative in rule.split("|"):
        tests = alternative.split()
        for place, test in enumerate(tests, 1):
            (operation, wanted), to_next = _SIGNS[test[1]], 2 * (len(tests) - place) + 1
            skips = (0, to_next) if wanted else (to_next, 0)
            code += [(_LOAD, 0, 0, _ARGUMENTS + 8 * int(test[0])), (operation, *skips, int(test[2:], 0))]
        code.append(_ALLOW)
    return [*code, _REFUSE]


def _group_ranges(numbers: list[int]) -> list[list[int]]:
    found = [[numbers[0], numbers[0]]]
    for number in numbers[1:]:
        if number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def filter_path() -> str:
    """Return a path to this machine's compiled filter, valid while this process lives."""
    return _cached_filter_path(os.getpid())


@functools.cache
def _cached_filter_path(process: int) -> str:
    if not (program := compile_filter(platform.machine())):
        return ""
    file = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    os.write(file, program)
    return f"/proc/{process}/fd/{file}"
