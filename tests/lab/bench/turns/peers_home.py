"""Where the other queues are installed: an environment of the bench, outside of the project's."""

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[4]
REQUIREMENTS = ROOT / "tests" / "lab" / "bench" / "peers" / "requirements.txt"
DURABLE = REQUIREMENTS.with_name("durable.txt")
_RESTATE = "@restatedev/restate-server@1.7.12"


class NoPeers(Exception):
    """The other queues could not be installed; the bench can measure helix-turns alone."""


def home(root: Path = ROOT, requirements: Path = REQUIREMENTS) -> Path:
    """The folder of the environment: another one for each list of versions."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    return root / ".helix-tools" / f"bench-{version}-{digest}"


def installed(requirements: Path = REQUIREMENTS) -> bool:
    """Whether the other queues are there."""
    return (home(requirements=requirements) / "installed").exists()


def python_of_peers(requirements: Path = REQUIREMENTS) -> Path:
    """The interpreter that has the other queues; installs them if need be (half a minute, once).

    Raises:
        NoPeers: they could not be installed.
    """
    folder = home(requirements=requirements)
    python = folder / "bin" / "python"
    if (folder / "installed").exists():
        return python
    print(f"Installing what is measured beside us into {folder} (once) ...", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoPeers(f"they could not be installed: {done.stderr.strip().splitlines()[-1:]}")
    (folder / "installed").touch()
    return python


def restate_server() -> Path:
    """The program of the Restate server; installs it if need be (once).

    Raises:
        NoPeers: it could not be installed.
    """
    folder = home(requirements=DURABLE) / "restate"
    found = list(folder.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if found:
        return found[0]
    npm = shutil.which("npm")
    if npm is None:
        raise NoPeers("the Restate server could not be installed: npm is not installed")
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel", "error", _RESTATE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = list(folder.glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if done.returncode or not found:
        raise NoPeers(f"the Restate server could not be installed: {done.stderr.strip().splitlines()[-1:]}")
    return found[0]
