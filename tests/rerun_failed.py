"""Run pytest and repeat the few tests that failed, alone: ``python -m tests.rerun_failed PYTEST_ARGUMENTS``.

Tests here kill real processes on a machine that other programs use too. A test that fails twice is red. A test that
fails beside others and passes alone is *unsteady*: a defect to repair, named in the last lines with the first failure
above them. If more than MOST_AGAIN tests fail, none is repeated.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

#: So many failed tests get a second run.
MOST_AGAIN = 10
#: pytest's exit code for "tests were run, and some failed".
SOME_FAILED = 1


def failed_in(cache: Path) -> list[str]:
    """Return the ids of the failed tests from pytest's cache folder."""
    try:
        return sorted(json.loads((cache / "v" / "cache" / "lastfailed").read_text()))
    except FileNotFoundError:
        return []


def main(arguments: list[str]) -> int:
    """Run pytest, and failed tests a second time alone if they are few; return the exit code of the last run."""
    with tempfile.TemporaryDirectory(prefix="helix-tests-") as folder:
        cache = Path(folder, "first")
        code = _pytest([*arguments, "-o", f"cache_dir={cache}"])
        failed = failed_in(cache)
        if code != SOME_FAILED or not 0 < len(failed) <= MOST_AGAIN:
            return code
        print(f"\n{len(failed)} failed beside others; once more, alone: {', '.join(failed)}", flush=True)
        code = _pytest([*failed, "-o", f"cache_dir={Path(folder, 'second')}"])
        unsteady = sorted(set(failed) - set(failed_in(Path(folder, "second"))))
    for test in unsteady if code in (0, SOME_FAILED) else ():
        print(f"UNSTEADY {test}: failed beside others, passed alone. Its first failure is above.", flush=True)
    return code


def _pytest(arguments: list[str]) -> int:
    with subprocess.Popen([sys.executable, "-m", "pytest", *arguments]) as running:
        while True:
            try:
                return running.wait()
            except KeyboardInterrupt:  # pytest got it too, and prints what it has
                continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
