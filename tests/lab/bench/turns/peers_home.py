"""Where the other queues are installed: an environment of the bench, outside of the project's."""

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[4]
REQUIREMENTS = ROOT / "tests" / "lab" / "bench" / "peers" / "requirements.txt"


class NoPeers(Exception):
    """The other queues could not be installed; the bench can measure helix-turns alone."""


def home(root: Path = ROOT, requirements: Path = REQUIREMENTS) -> Path:
    """The folder of the environment: another one for each list of versions."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    return root / ".helix-tools" / f"bench-{version}-{digest}"


def installed() -> bool:
    """Whether the other queues are there."""
    return (home() / "installed").exists()


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
