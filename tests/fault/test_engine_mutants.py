"""Mutants of the engine and of the record, applied one by one in a copy of the sources: a test notices each.

CI applies one in six, and checks that the text of each still occurs in the sources; ``make faults`` applies all.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fault.engine_mutants import MUTANTS, EngineMutant
from tests.fault.matrix import WHOLE

ROOT = Path(__file__).parents[2]
#: What pytest says when tests failed; another code means that it could not run them.
_PASSED, _FAILED = 0, 1
#: A guard that is missing may make a test wait for ever: this is red too. Without a mutant each takes a second or less.
_SECONDS, _SECONDS_GREEN = 15, 300
#: The mutants of this run.
BROKEN = MUTANTS if WHOLE else MUTANTS[3::6]


class Copy:
    """A copy of the sources and tests, and the process that runs tests in the copy."""

    def __init__(self, sources: Path) -> None:
        self.sources = sources
        for name in ("api_client", "worker", "tests", "docs"):
            shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        shutil.copy(ROOT / "pyproject.toml", sources)
        self._runner = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.mutant_runs"],
            cwd=sources,
            env=os.environ | {"PYTHONPATH": str(sources)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def result_of(self, tests: Iterable[str], seconds: float, *, broken: bool) -> tuple[int, str]:
        """Run these tests in the copy; return pytest's exit code and output."""
        assert self._runner.stdin
        assert self._runner.stdout
        self._runner.stdin.write(json.dumps({"tests": list(tests), "seconds": seconds, "broken": broken}) + "\n")
        self._runner.stdin.flush()
        found: dict[str, Any] = json.loads(self._runner.stdout.readline())
        return found["code"], found["output"]

    @contextmanager
    def broken(self, mutant: EngineMutant) -> Iterator[None]:
        """Apply the mutant to the copy during the ``with`` block."""
        place = self.sources / mutant.path
        text = place.read_text()
        place.write_text(text.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            place.write_text(text)

    def close(self) -> None:
        """End the process that runs tests, after the tests that it runs."""
        self._runner.communicate()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    made = Copy(tmp_path_factory.mktemp("mutants"))
    yield made
    made.close()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_what_a_mutant_names_still_stands(mutant: EngineMutant) -> None:
    assert (ROOT / mutant.path).read_text().count(mutant.old) == 1, "its text no longer stands once in the file"
    assert f"def {mutant.test.partition('[')[0]}(" in (ROOT / mutant.file).read_text()


@pytest.mark.timeout(900)
def test_without_a_mutant_the_copy_is_green(copy: Copy) -> None:
    code, output = copy.result_of(sorted({mutant.node for mutant in BROKEN}), _SECONDS_GREEN, broken=False)
    assert code == _PASSED, output[-3000:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", BROKEN, ids=[mutant.name for mutant in BROKEN])
def test_a_test_notifications_this_mutant(copy: Copy, mutant: EngineMutant) -> None:
    with copy.broken(mutant):
        code, output = copy.result_of([mutant.node], _SECONDS, broken=True)
    assert code == _FAILED, output[-3000:]
