"""``python -m tests.clients.install FOLDER``: install other OpenAI clients, each below the folder, at a fixed version.

One line says what is installed and how long it took; what the installers print goes to FOLDER/install.log. The tests of
a client that cannot be installed are skipped.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

#: Runs a command, its output into the log.
Run: TypeAlias = Callable[[list[str | Path]], object]
#: For what pip resolves in minutes and uv in seconds.
_UV = "uv==0.13.9"
#: Folder of a program for Python -> what is installed. aider and LiteLLM have 0.6 GB each.
_PYTHON = {
    "llm": "llm==0.36",
    "aider": "aider-chat==0.86.2",
    "litellm": "litellm[proxy]==1.106.2",
    "langchain": "langchain-openai==1.7.4",
    "instructor": "instructor==1.17.0",
    "pydantic-ai": "pydantic-ai-slim[openai]==2.68.0",
}
#: Folder of a package for Node -> what is installed.
_NODE = {"node": "openai@6.49.0", "librechat": "@librechat/agents@3.2.21"}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "install.log").open("a") as log:
        run = partial(subprocess.run, stdout=log, stderr=subprocess.STDOUT, check=True)
        for name, package in _PYTHON.items():
            _once(folder / name, package, partial(_with_uv, run, folder / "uv"))
        for name, package in _NODE.items():
            _once(folder / name, package, partial(_with_npm, run))


def _once(place: Path, package: str, install: Callable[[str, Path], None]) -> None:
    done = place / ".installed"
    if done.exists() and done.read_text() == package:
        return
    began = time.monotonic()
    try:
        install(package, place)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(place, ignore_errors=True)
        print(f"skipped: {package} could not be installed ({error}); see {place.parent / 'install.log'}")
        return
    done.write_text(package)
    print(f"installed {package} in {time.monotonic() - began:.0f} s")


def _with_uv(run: Run, own: Path, package: str, place: Path) -> None:
    uv = own / "bin" / "uv"
    if not uv.exists():
        run([sys.executable, "-m", "venv", own])
        run([own / "bin" / "pip", "install", _UV])
    run([uv, "venv", "--clear", "--python", sys.executable, place])
    run([uv, "pip", "install", "--python", place / "bin" / "python", package])


def _with_npm(run: Run, package: str, place: Path) -> None:
    place.mkdir(exist_ok=True)
    run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", place, package])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
