"""The filter of system calls, run by an interpreter of its own: what it answers to every call, on both machines."""

import errno
import re
import struct
from pathlib import Path

import pytest

from worker.runners.sandbox import seccomp
from worker.runners.sandbox.seccomp import compile_filter

ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003, "arm": 0x40000028}
MACHINES = ("x86_64", "aarch64")
ROWS = [line.split(maxsplit=3) for line in seccomp._TABLE.read_text().splitlines() if line and line[0] != "#"]
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def numbers(machine: str) -> dict[str, int]:
    return {row[0]: int(row[1 + MACHINES.index(machine)]) for row in ROWS if row[1 + MACHINES.index(machine)] != "-"}


def answer(machine: str, number: int, *arguments: int, manner: str = "") -> str:
    """What the kernel would answer: allowed, or the error's name."""
    given = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=iIQ6Q", number & 0x7FFFFFFF, ARCHITECTURE[manner or machine], 0, *given)
    program = compile_filter(machine)
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = loaded = 0
    while True:
        operation, then, other, value = steps[at]
        if operation == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif operation == 0x06:
            return "allowed" if value == 0x7FFF0000 else errno.errorcode[value & 0xFFFF]
        holds = {0x15: loaded == value, 0x25: loaded > value, 0x35: loaded >= value, 0x45: bool(loaded & value)}
        at += 1 + (then if holds.get(operation) else other)


@pytest.mark.parametrize("machine", MACHINES)
def test_only_what_the_table_names_exists(machine: str) -> None:
    named = numbers(machine)
    checked = {named[row[0]] for row in ROWS if len(row) > 3 and row[0] in named}
    for number in range(1000):
        expected = (
            {"allowed", "EPERM"} if number in checked else {"allowed"} if number in named.values() else {"ENOSYS"}
        )
        assert answer(machine, number) in expected, number


@pytest.mark.parametrize(("machine", "manner"), [("x86_64", "i386"), ("aarch64", "arm"), ("x86_64", "aarch64")])
def test_calls_in_the_manner_of_another_machine_do_not_exist(machine: str, manner: str) -> None:
    assert {answer(machine, number, manner=manner) for number in numbers(machine).values()} == {"ENOSYS"}


def test_calls_of_x32_do_not_exist() -> None:
    assert {answer("x86_64", 0x40000000 | number) for number in range(600)} == {"ENOSYS"}


SPACES = {"time": 0x80, "mounts": 0x20000, "cgroup": 0x2000000, "host": 0x4000000, "ipc": 0x8000000}
SPACES |= {"users": 0x10000000, "processes": 0x20000000, "network": 0x40000000}
THREAD, FORK = 0x3D0F00, 0x1200011  # as the C library starts them


@pytest.mark.parametrize("machine", MACHINES)
def test_no_call_makes_a_namespace(machine: str) -> None:
    call = numbers(machine)
    assert "clone3" not in call
    assert answer(machine, 435) == "ENOSYS"
    assert {answer(machine, call["clone"], flags) for flags in (THREAD, FORK, 0x4111)} == {"allowed"}
    assert answer(machine, call["unshare"], 0x600) == "allowed"
    for name, flag in SPACES.items():
        assert answer(machine, call["unshare"], flag | 0x200) == "EPERM", name
        if name != "time":  # of clone this bit is the number of a signal
            assert answer(machine, call["clone"], flag | 17) == "EPERM", name
            assert answer(machine, call["clone"], flag | 1 << 40) == "EPERM", name


@pytest.mark.parametrize("machine", MACHINES)
def test_what_arguments_may_be(machine: str) -> None:
    call = numbers(machine)
    families = {family for family in range(64) if answer(machine, call["socket"], family, 1, 0) == "allowed"}
    assert families == {1, 2, 10, 16}
    assert {p for p in range(32) if answer(machine, call["socket"], 16, 3, p) == "allowed"} == {0}
    assert answer(machine, call["socket"], 40 | 1 << 32, 1) == "EPERM", "the kernel reads 32 bits"
    assert {f for f in range(64) if answer(machine, call["socketpair"], f, 1) == "allowed"} == {1}
    asked = [answer(machine, call["ioctl"], 0, number) for number in (0x5412, 0x541C, 0x5412 | 1 << 32, 0x5401, 0x5413)]
    assert asked == ["EPERM", "EPERM", "EPERM", "allowed", "allowed"]
    personas = [answer(machine, call["personality"], p) for p in (0, 0x40000, 0xFFFFFFFF, 0x400000, 0x440000, 8)]
    assert personas == ["allowed"] * 3 + ["EPERM"] * 3


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("mode", "expected"), [(0o755, "allowed"), (0o1777, "allowed"), (0o4755, "EPERM"), (0o2755, "EPERM")]
)
def test_no_call_makes_a_set_user_id_program(machine: str, mode: int, expected: str) -> None:
    call = numbers(machine)
    makes, mode = 0o101, mode
    asked = [("chmod", 0, mode), ("fchmod", 0, mode), ("fchmodat", 0, 0, mode), ("fchmodat2", 0, 0, mode)]
    asked += [("mknod", 0, 0o100000 | mode), ("mknodat", 0, 0, 0o100000 | mode), ("creat", 0, mode)]
    asked += [("open", 0, makes, mode), ("openat", 0, 0, makes, mode), ("openat", 0, 0, 0o20200001, mode)]
    assert {answer(machine, call[name], *given) for name, *given in asked if name in call} == {expected}
    assert "openat2" not in call
    assert answer(machine, call["openat"], 0, 0, 0, 0o6777) == "allowed", "without O_CREAT nobody reads the mode"


@pytest.mark.parametrize("machine", MACHINES)
def test_the_table_has_the_kernels_numbers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers are not installed")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+) (\d+)$", HEADERS[machine].read_text(), re.MULTILINE)
    known = {{"fstatat": "newfstatat"}.get(name, name): int(number) for name, number in found}
    known["newfstatat"] = known.get("newfstatat", known.get("fstatat", 0))
    named = numbers(machine)
    assert {name: number for name, number in named.items() if number != known.get(name, number)} == {}
    assert len(set(named.values())) == len(named)


def test_a_machine_whose_calls_are_unknown_has_no_filter() -> None:
    assert compile_filter("riscv64") == b""
