"""The guards of the engine and of the record, broken one by one in a copy of the sources: a test notices each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.fault.engine_mutants import MUTANTS, EngineMutant

ROOT = Path(__file__).parents[2]
#: What pytest says when tests failed; another code means that it could not run them.
_PASSED, _FAILED = 0, 1
#: A guard that is missing may make a test wait for ever: this is red too.
_SECONDS = 90


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the tests run."""
    copy = tmp_path_factory.mktemp("mutants") / "sources"
    copy.mkdir()
    for name in ("api_client", "worker", "tests", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def result_of(sources: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """A run of these tests on the copy."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--timeout={_SECONDS}", *tests],
        cwd=sources,
        env=os.environ | {"PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(900)
def test_without_a_mutant_the_copy_is_green(sources: Path) -> None:
    run = result_of(sources, sorted({mutant.tests for mutant in MUTANTS}))
    assert run.returncode == _PASSED, run.stdout[-3000:] + run.stderr[-2000:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_test_notices_this_mutant(sources: Path, mutant: EngineMutant) -> None:
    place = sources / mutant.path
    text = place.read_text()
    assert text.count(mutant.old) == 1, "its text no longer stands once in the file"
    place.write_text(text.replace(mutant.old, mutant.new))
    try:
        run = result_of(sources, [mutant.tests])
    finally:
        place.write_text(text)
    assert run.returncode == _FAILED, run.stdout[-3000:] + run.stderr[-2000:]
