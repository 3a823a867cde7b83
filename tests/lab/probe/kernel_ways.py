"""The ways out that lead through the kernel: calls, keys, odd sockets, namespaces, mounts. As ``ways``, and used by it.

A call is open where the kernel did it, or refused its arguments, which are wrong where the right ones would do damage,
after it had let its caller make it.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

Target = dict[str, str]
Way = Callable[[Target], object]

LIBC = ctypes.CDLL(None, use_errno=True)
_ARM = platform.machine() == "aarch64"
#: Numbers of calls on x86_64 and aarch64; those from 424 on are the same everywhere.
_NUMBERS = {
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "clone": (56, 220),
    "setns": (308, 268),
    "pivot_root": (155, 41),
    "open_by_handle_at": (304, 265),
    "process_vm_readv": (310, 270),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "clone3": (435, 435),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
}
_NEW_TIME, _NEW_MOUNTS, _NEW_USERS, _NEW_NETWORK = 0x80, 0x20000, 0x10000000, 0x40000000
_REMOUNT_BOUND = 0x1020
_HERE = -100  # AT_FDCWD
_USER_KEYRING, _PROCESS_KEYRING = -4, -2


def call(name: str | int, *arguments: object, fine: tuple[int, ...] = ()) -> int:
    """What a call returns; -1 for one that failed with an error that is ``fine``. Raises ``OSError``: another one."""
    number = name if isinstance(name, int) else _NUMBERS[name][_ARM]
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    done = int(LIBC.syscall(ctypes.c_long(number), *given))
    if done < 0 and ctypes.get_errno() not in fine:
        raise OSError(ctypes.get_errno(), str(name))
    return done


def gets(name: str, *arguments: object) -> bool:
    """A call that returns a descriptor."""
    os.close(call(name, *arguments))
    return True


def passes(name: str, *arguments: object, fine: tuple[int, ...] = ()) -> bool:
    """A call that its caller may make."""
    call(name, *arguments, fine=fine)
    return True


def in_child(way: Callable[[], object]) -> bool:
    """What changes its process, tried in a child: open where it neither fails nor says False."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os._exit(0 if way() is not False else 1)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def opens(family: int, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> bool:
    """A socket that can be had."""
    socket.socket(family, kind, protocol).close()
    return True


def opens_any(families: tuple[int, ...]) -> bool:
    """A socket of one of these families, of any kind."""
    for family in families:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            with contextlib.suppress(OSError):
                return opens(family, kind, 2 if family == 15 else 0)
    return False


def _perf() -> bool:
    about = struct.pack("=IIQQQQQ", 1, 112, 0, 0, 0, 0, 0x60).ljust(112, b"\0")
    return gets("perf_event_open", about, 0, -1, -1, 0)


def _foreign_code(_: Target) -> bool:
    """The call of i386 for one's process id, from a program of x86_64."""

    def ask() -> bool:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
        start = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return bool(ctypes.CFUNCTYPE(ctypes.c_int)(start)() == os.getpid())

    return not _ARM and in_child(ask)


def _key_read(at: Target) -> bool:
    found = call("keyctl", 10, _USER_KEYRING, b"user", at["key"].encode(), 0)
    content = ctypes.create_string_buffer(64)
    call("keyctl", 11, found, content, 64)
    return content.value == b"SECRET"


def _vsock(connect: bool) -> bool:
    with socket.socket(40, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        try:
            if connect:
                client.connect((2, 1))
            else:
                client.bind((0xFFFFFFFF, 0xFFFFFFFF))
        except ConnectionError:  # somebody answered
            return True
    return True


def unshares(flags: int) -> bool:
    """Namespaces of one's own."""
    return in_child(lambda: LIBC.unshare(flags) == 0)


def _clones(name: str) -> bool:
    asked = struct.pack("=11Q", _NEW_USERS, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    given = (asked, len(asked)) if name == "clone3" else (_NEW_USERS | signal.SIGCHLD, 0, 0, 0, 0)

    def begin() -> None:
        if (child := call(name, *given)) == 0:
            os._exit(0)
        os.waitpid(child, 0)

    return in_child(begin)


def _enters(_: Target) -> bool:
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return in_child(lambda: call("setns", own, _NEW_NETWORK))
    finally:
        os.close(own)


def _remounts(_: Target) -> bool:
    def remount() -> bool:
        LIBC.unshare(_NEW_MOUNTS)
        return bool(LIBC.mount(None, b"/", None, _REMOUNT_BOUND, None) == 0)

    return in_child(remount)


def _handle(_: Target) -> bool:
    below = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
    try:
        handle = struct.pack("=Ii8s", 8, 1, b"x")
        return passes("open_by_handle_at", below, handle, 0, fine=(errno.ESTALE, errno.EINVAL, errno.ELOOP))
    finally:
        os.close(below)


def _device(_: Target) -> bool:
    os.mknod("way-out-device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    Path("way-out-device").unlink()
    return True


def _reads_memory(at: Target) -> bool:
    buffer = ctypes.create_string_buffer(8)
    here = struct.pack("=QQ", ctypes.addressof(buffer), 8)
    there = struct.pack("=QQ", 8, 8)
    return passes("process_vm_readv", int(at["victim"]), here, 1, there, 1, 0, fine=(errno.EFAULT,))


def _takes_file(at: Target) -> bool:
    other = os.pidfd_open(int(at["victim"]))
    try:
        return gets("pidfd_getfd", other, 0, 0)
    finally:
        os.close(other)


def _types(_: Target) -> bool:
    """Input put into a terminal."""

    def type_in() -> None:
        os.setsid()
        _, terminal = os.openpty()
        fcntl.ioctl(terminal, 0x540E, 0)  # TIOCSCTTY
        fcntl.ioctl(terminal, 0x5412, b"x")  # TIOCSTI

    return in_child(type_in)


def _less_likely_killed() -> None:
    path = Path("/proc/self/oom_score_adj")
    path.write_text(str(int(path.read_text()) - 1))


def _set_uid(_: Target) -> bool:
    """A program that others run as the worker's user."""
    path = Path("output/way-out")
    path.write_text("#!/bin/sh\n")
    try:
        path.chmod(0o4755)
        return bool(path.stat().st_mode & stat.S_ISUID)
    finally:
        path.unlink()


def _inherited(_: Target) -> bool:
    """A descriptor beside standard input and output."""
    found = list(Path("/proc/self/fd").iterdir())
    return any(int(path.name) > 2 and os.path.lexists(path) for path in found)


def _opens(path: str, flags: int = os.O_RDONLY) -> bool:
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
    return True


def makes(path: str | Path) -> bool:
    """A file can be made."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    Path(path).unlink()
    return True


def leaves(path: str, make: Callable[[str], object]) -> bool:
    """Leave something in its output, or elsewhere; what became of it is seen from outside."""
    with contextlib.suppress(OSError):
        make(path)
    return False


KERNEL_WAYS: dict[str, Way] = {
    "calls: io_uring": lambda _: gets("io_uring_setup", 1, ctypes.create_string_buffer(120)),
    "calls: userfaultfd": lambda _: gets("userfaultfd", 1),
    "calls: bpf": lambda _: gets("bpf", 0, struct.pack("=5I", 2, 4, 4, 1, 0).ljust(72, b"\0"), 72),
    "calls: perf_event_open": lambda _: _perf(),
    "calls: kexec_load": lambda _: passes("kexec_load", 0, 0, None, 0xFFFF, fine=(errno.EINVAL,)),
    "calls: init_module": lambda _: passes("init_module", b"", 0, b"", fine=(errno.EINVAL, errno.ENOEXEC)),
    "calls: reboot": lambda _: passes("reboot", 0, 0, 0, None, fine=(errno.EINVAL,)),
    "calls: swapon": lambda _: passes("swapon", b"/way-out", 0, fine=(errno.ENOENT,)),
    "calls: quotactl": lambda _: passes("quotactl", 0x80000100, None, 0, None),
    "calls: acct": lambda _: passes("acct", b"/way-out/x", fine=(errno.ENOENT,)),
    "calls: the kernel's log": lambda _: passes("syslog", 10, None, 0),
    "calls: setting the clock": lambda _: passes("settimeofday", None, None),
    "calls: the host's name": lambda _: LIBC.sethostname(name := os.uname().nodename.encode(), len(name)) == 0,
    "calls: ports of devices": lambda _: not _ARM and in_child(lambda: call(173, 0x80, 1, 1)),
    "calls: another personality": lambda _: in_child(lambda: LIBC.personality(0x400000) >= 0),
    "calls: in the manner of x32": lambda _: not _ARM and call(0x40000000 | 39) == os.getpid(),
    "calls: in the manner of i386": _foreign_code,
    "keys: another sandbox's": _key_read,
    "keys: keyctl": lambda _: passes("keyctl", 0, _PROCESS_KEYRING, 1),
    "keys: add_key": lambda _: passes("add_key", b"user", b"helix-own", b"x", 1, _PROCESS_KEYRING),
    "keys: request_key": lambda _: passes("request_key", b"user", b"helix-none", None, 0, fine=(errno.ENOKEY,)),
    "keys: names of all": lambda at: bool(at["key"]) and at["key"] in Path("/proc/keys").read_text(),
    "sockets: vsock, a port": lambda _: _vsock(connect=False),
    "sockets: vsock, the hypervisor": lambda _: _vsock(connect=True),
    "sockets: packets of the network card": lambda _: opens(17, socket.SOCK_RAW, 0x0300),
    "sockets: raw IP": lambda _: opens(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "sockets: netlink, audit": lambda _: opens(16, socket.SOCK_RAW, 9),
    "sockets: any other family": lambda _: opens_any((38, 15, 44, 30)),
    "namespaces: unshare, users": lambda _: unshares(_NEW_USERS),
    "namespaces: unshare, mounts": lambda _: unshares(_NEW_MOUNTS),
    "namespaces: unshare, the network": lambda _: unshares(_NEW_NETWORK),
    "namespaces: unshare, time": lambda _: unshares(_NEW_TIME),
    "namespaces: clone, users": lambda _: _clones("clone"),
    "namespaces: clone3, users": lambda _: _clones("clone3"),
    "namespaces: setns": _enters,
    "mount: in a new namespace": lambda _: in_child(
        lambda: LIBC.unshare(_NEW_USERS | _NEW_MOUNTS) == 0 and LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0
    ),
    "mount: the system, writable": _remounts,
    "mount: fsopen": lambda _: gets("fsopen", b"tmpfs", 1),
    "mount: open_tree": lambda _: gets("open_tree", _HERE, b"/", 1),
    "mount: move_mount": lambda _: passes("move_mount", -1, b"", -1, b"", 0x44, fine=(errno.EBADF,)),
    "mount: mount_setattr": lambda _: passes("mount_setattr", _HERE, b"/", 0, bytes(32), 32),
    "mount: pivot_root": lambda _: passes("pivot_root", b"/", b"/", fine=(errno.EBUSY, errno.EINVAL)),
    "mount: chroot": lambda _: in_child(lambda: os.chroot("/")),
    "write: a new device": _device,
    "write: /": lambda _: makes("/way-out"),
    "write: HELIX_ROOT": lambda at: leaves(f"{at['root']}/way-out", lambda path: Path(path).touch()),
    "write: the folder above its own": lambda _: leaves("../way-out", lambda path: Path(path).touch()),
    "read: a file by its handle": _handle,
    "/proc: sysrq": lambda _: _opens("/proc/sysrq-trigger", os.O_WRONLY),
    "/proc: the kernel's memory": lambda _: _opens("/proc/kcore"),
    "processes: another agent's memory, by process_vm_readv": _reads_memory,
    "processes: an open file of another agent": _takes_file,
    "processes: input into a terminal": _types,
    "processes: less likely to be killed": lambda _: in_child(_less_likely_killed),
    "privileges: a limit raised": lambda _: in_child(lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1))),
    "privileges: a higher priority": lambda _: in_child(lambda: os.setpriority(0, 0, os.getpriority(0, 0) - 1)),
    "privileges: real time": lambda _: in_child(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
    "memory: a System V segment of the machine": lambda at: LIBC.shmget(int(at["segment"]), 0, 0) >= 0,
    "output: a set-user-id program": _set_uid,
    "environment: an open file of the worker's": _inherited,
}
