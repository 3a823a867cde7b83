"""``python -m tests.lab.wheel [3.13 uv ...]`` (``make test-wheel``): the wheel as its users get it, not this checkout.

Builds the wheel, installs it into an empty environment as the README says, on each supported Python that is there, and
runs ``turns doctor`` and ``turns demo`` from it, in a folder whose own modules bear the names of ours. Then ``uv tool``
and ``pipx`` install it. One line each; exit code 1 when one of them failed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SECONDS = 600
#: Modules of a user's own that must not be taken for ours.
_NAMESAKES = ("worker", "api_client", "celery", "redis", "click")
#: Installer of programs -> its command, and what says where it puts them (below the folder of the run).
_INSTALLERS = {
    "uv": (["uv", "tool", "install", "--python"], {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin"}),
    "pipx": (["pipx", "install", "--python"], {"PIPX_HOME": "tools", "PIPX_BIN_DIR": "bin"}),
}
#: What an installation needs of our environment: where the package index is, and nothing of a developer's.
_KEPT = ("PATH", "LANG", "TMPDIR", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
#: How installers say that they reach no package index. uv does not read pip's settings.
_NO_INDEX = re.compile(r"Failed to fetch|No matching distribution found for (?:uv|pipx)\b")


class Failed(Exception):
    """A step ended with an exit code other than 0; the text is its output."""


def main(wanted: list[str]) -> None:
    """Try every Python and installer, or those that are named; ends the process."""
    with tempfile.TemporaryDirectory(prefix="wheel-") as made:
        folder = Path(made)
        wheel = build(folder)
        extras = readme_extras((ROOT / "README.md").read_text(encoding="utf-8"))
        print(f"{wheel.name}[{extras}], as the README installs it:", flush=True)
        with ThreadPoolExecutor() as all_at_once:  # an installation mostly waits
            versions = [each for each in supported() if each in wanted or not wanted]
            fine = list(all_at_once.map(lambda version: tried(version, wheel, extras, folder), versions))
        fine += [tried_as_tool(name, wheel, extras, folder) for name in _INSTALLERS if name in wanted or not wanted]
    sys.exit(0 if all(fine) else 1)


def supported() -> list[str]:
    """The versions of Python that pyproject.toml names, such as ``3.11``."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        lines = tomllib.load(file)["project"]["classifiers"]
    return [
        line.rpartition(" ")[2] for line in lines if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", line)
    ]


def readme_extras(text: str) -> str:
    """The extras of the README's ``pip install`` command.

    Raises:
        ValueError: the README has no such command, or several.
    """
    found = set(re.findall(r'pip install "\.\[([a-z,]+)\]"', text))
    if len(found) != 1:
        raise ValueError(f'README.md must name one `pip install ".[...]"`, and names {sorted(found)}')
    return found.pop()


def build(folder: Path) -> Path:
    """Build the wheel of this checkout; what is in it is the product and nothing else."""
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT, dict(os.environ))
    [wheel] = folder.glob("*.whl")
    names = run([sys.executable, "-m", "zipfile", "-l", str(wheel)], folder, dict(os.environ))
    strays = [line for line in names.splitlines()[1:] if not re.match(r"(api_client|worker|helix_turns-[^/]+)/", line)]
    if strays:
        raise Failed(f"the wheel holds more than the product: {strays}")
    return wheel


def tried(version: str, wheel: Path, extras: str, folder: Path) -> bool:
    """Install and run on one Python, and say how it went; True also when that Python is not there."""
    python = python_of(version)
    if not python:
        print(f"  {version}  skipped: no python{version} with venv on PATH or in pyenv", flush=True)
        return True
    home, environ = furnish(folder / version)
    turns = home / "venv" / "bin" / "turns"
    begun = time.monotonic()
    try:
        run([python, "-m", "venv", str(home / "venv")], home, environ)
        pip = [str(turns.with_name("pip")), "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", f"{wheel}[{extras}]"], home, environ)
        run([*pip, "check"], home, environ)
        installed = time.monotonic()
        with installation(turns, home, environ):
            run([str(turns), "doctor"], home, environ)
        demo = run([str(turns), "demo"], home, environ)
    except (Failed, subprocess.TimeoutExpired) as error:
        print(f"  {version}  FAILED after {time.monotonic() - begun:.0f} s\n{error}", flush=True)
        return False
    played = len(re.findall(r"^\([a-z]\) ", demo, re.MULTILINE))
    took = f"installed in {installed - begun:.0f} s, ran in {time.monotonic() - installed:.0f} s"
    print(f"  {version}  turns doctor and turns demo ({played} scenes) fine; {took}", flush=True)
    return True


def tried_as_tool(name: str, wheel: Path, extras: str, folder: Path) -> bool:
    """Install by a program that keeps other programs apart, run ``turns doctor``, and say how it went."""
    home, environ = furnish(folder / name)
    command, places = _INSTALLERS[name]
    environ |= {variable: str(home / place) for variable, place in places.items()}
    try:
        run([sys.executable, "-m", "venv", str(home / "own")], home, environ)
        run([str(home / "own/bin/pip"), "install", "--quiet", name], home, environ)
        program = [str(home / "own/bin" / command[0]), *command[1:], sys.executable]
        run([*program, f"{wheel}[{extras}]"], home, environ)
        with installation(home / "bin/turns", home, environ):
            run([str(home / "bin/turns"), "doctor"], home, environ)
    except (Failed, subprocess.TimeoutExpired) as error:
        if said := _NO_INDEX.search(str(error)):
            print(f"  {name}  skipped: the package index does not answer here: {said[0]}", flush=True)
            return True
        print(f"  {name}  FAILED\n{error}", flush=True)
        return False
    print(f"  {name}  installs it; turns doctor fine", flush=True)
    return True


def furnish(home: Path) -> tuple[Path, dict[str, str]]:
    """Make an empty home that has a user's own modules, and return it with its environment."""
    home.mkdir()
    for name in _NAMESAKES:
        (home / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the user was imported')\n")
    environ = {name: os.environ[name] for name in _KEPT if name in os.environ} | {"HOME": str(home)}
    return home, environ | {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_INDEX", "SSL_CERT_"))
    }


@contextmanager
def installation(turns: Path, home: Path, environ: dict[str, str]) -> Iterator[None]:
    """`turns up` in the folder, on free ports, until the block ends: without one doctor finds that there is none."""
    command = [str(turns), "up", "--json", "--port", "0", "--no-flower"]
    with subprocess.Popen(command, cwd=home, env=environ, stdout=subprocess.PIPE, text=True) as up:
        try:
            if not (up.stdout and up.stdout.readline()):
                raise Failed(f"{turns} up ended with {up.wait(60)}")
            yield
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(60)


def python_of(version: str) -> str | None:
    """A Python of this version that runs and has venv; a name on PATH alone proves nothing (pyenv leaves dead ones)."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")))]
    for python in filter(None, found):
        if not subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode:
            return python
    return None


def run(command: list[str], directory: Path, environ: dict[str, str]) -> str:
    """What a step wrote.

    Raises:
        Failed: with the command and all it wrote. subprocess.TimeoutExpired: it took too long.
    """
    done = subprocess.run(
        command, cwd=directory, env=environ, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
