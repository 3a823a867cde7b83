"""The kernel without its plug-ins: a copy of the product without ``worker/plugins`` and without their entry points."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.installation import Installation

ROOT = Path(__file__).parents[2]
#: Imports every module that is left, and says which could not be, and which plug-ins are there all the same.
IMPORTS = """
import importlib, pkgutil, sys
import api_client, worker

CONNECTING = {"worker.app", "worker.celery_worker", "worker.isolated", "worker.cli.installation.flower"}
for top in (api_client, worker):
    for found in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
        if found.name not in CONNECTING:
            importlib.import_module(found.name)
print(worker.__file__)
print(sorted(name for name in sys.modules if name.startswith("worker.plugins")))
"""


def own_entry_points() -> str:
    """The entry points of the product that lead into the kernel."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = []
    for group, entries in groups.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {leads}" for name, leads in entries.items() if not leads.startswith("worker.plugins")]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy. Its own metadata, which is found first, names no plug-in."""
    copy = tmp_path_factory.mktemp("kernel")
    left_out = shutil.ignore_patterns("__pycache__", "plugins", "node_modules")
    for name in ("api_client", "worker", "tests", "docs", "compose"):
        shutil.copytree(ROOT / name, copy / name, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile"):
        shutil.copy(ROOT / name, copy)
    info = copy / "helix_turns-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: helix-turns\nVersion: 0\n")
    (info / "entry_points.txt").write_text(own_entry_points())
    assert not (copy / "worker" / "plugins").exists()
    return copy


def played(kernel: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with these words in the copy, to its end."""
    environ = {**os.environ, "PYTHONPATH": str(kernel)}
    return subprocess.run(
        [sys.executable, *words], cwd=kernel, env=environ, capture_output=True, text=True, timeout=1200, check=False
    )


def pass_in(kernel: Path, *words: str) -> None:
    """Run tests in the copy: they pass, and there are some."""
    done = played(kernel, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *words)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_every_module_of_the_kernel_imports_without_plugins(kernel: Path) -> None:
    done = played(kernel, "-c", IMPORTS)
    assert done.stdout.splitlines() == [str(kernel / "worker" / "__init__.py"), "[]"], done.stderr[-3000:]


def test_a_worker_without_plugins_answers_a_turn_of_the_scripted_runner(kernel: Path) -> None:
    pass_in(kernel, "tests/integration/test_whole_turns.py")


def test_the_command_line_without_plugins_lists_the_kernels_commands(kernel: Path) -> None:
    listed = played(kernel, "-c", "from worker.cli import main; main(['--help'])").stdout
    assert "  submit " in listed
    assert "plug-ins" not in listed
    missing = played(kernel, "-c", "from worker.cli import main; main(['data', 'backup', 'x'])")
    assert "the command 'data backup' is in the plug-in worker.plugins.backup, which is not installed" in missing.stderr


def test_an_idle_worker_imports_no_plugin(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # each import is a line of its log
    worker = installation.worker()
    imported = {line.rpartition("|")[2].strip() for line in worker.log_file.read_text().splitlines()}
    assert "worker.turns.engine" in imported
    tables = {"worker.plugins", "worker.plugins.analysis", "worker.plugins.notifications"}
    assert {name for name in imported if name.startswith("worker.plugins")} <= tables


@pytest.mark.long
@pytest.mark.parametrize("room", ["tests/unit/turns", "tests/unit/web", "tests/unit/verification", "tests/contract"])
def test_the_kernels_own_tests_of_make_test_pass_without_plugins(room: str, kernel: Path) -> None:
    of_plugins = [path for path in (kernel / room).rglob("test_*.py") if "worker.plugins" in path.read_text()]
    pass_in(kernel, room, "-m", "not long", *(f"--ignore={path.relative_to(kernel)}" for path in of_plugins))
