"""A runner that was written by following docs/runners.md, in a package of its own: the kit certifies it."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.installation import turns

PAGE = Path(__file__).parents[2] / "docs" / "runners.md"
#: Kinds of endings that are tried at once; all others with the real agents.
SOME = ("normal answer", "output limit", "HTTP 429", "content filter", "exit code 0 forced", "leaves a process")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package of the page, as a package manager would install it; its files are the page's blocks of code."""
    agent, runner, entry = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE.read_text(), re.DOTALL)[:3]
    package, known = tmp_path / "my_package", tmp_path / "my_package-1.dist-info"
    for folder in (package, known):
        folder.mkdir()
    (package / "__init__.py").touch()
    (package / "agent.py").write_text(agent)
    (package / "runner.py").write_text(runner)
    group, line = re.fullmatch(r'\[project\.entry-points\."(.+)"\]\n(\w+ = ".+")\n', entry).groups()  # type: ignore[union-attr]
    (known / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n")
    return tmp_path


@pytest.mark.parametrize("only", [SOME, pytest.param((), marks=pytest.mark.long)], ids=["some", "all"])
def test_a_runner_written_by_the_page_is_certified(installed: Path, only: tuple[str, ...]) -> None:
    words = [word for text in only for word in ("--only", text)]
    done = subprocess.run(
        turns("worker", "certify", "mine:stub", "--json", *words),
        env={**os.environ, "PYTHONPATH": str(installed), "HELIX_ROOT": str(installed)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert [each for each in found["situations"] if each["problem"]] == [], done.stderr
    assert done.returncode == 0
    counts = found["counts"]
    assert counts["ours"]["false_complete"] == 0
    assert counts["ours"]["kept"] == counts["ours"]["true_ends"] > 0
    assert counts["agents"]["false_complete"] > 0, "its own word is worth less"
