"""Scenes: what a real Claude CLI does in one run, as the stub of its model asks, and what is true afterwards.

What is true is written here by hand. It is never read from the tool call log that the rule is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.claude.stub import Reply, calls

PASS_2 = "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): pass\n    def test_b(self): pass\n"
FAIL_1 = PASS_2 + "    def test_c(self): self.fail('no')\n"
UNITTEST = "python3 -m unittest -v test_app"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One run.

    Attributes:
        calls: its tool calls. before: files of the project's writable folder ``docs`` that are there already.
        written: files it wrote. unwritten: files that it did not, whether they are there or not.
        tests: passed tests of the last run of tests; -1 where that failed, 0 where none ran.
        ran: commands that ran -> whether the last run of each passed. not_ran: commands that it did not run.
        files: how many files it wrote.
    """

    name: str
    calls: tuple[Reply, ...]
    before: Mapping[str, str] = field(default_factory=dict)
    written: tuple[str, ...]
    unwritten: tuple[str, ...]
    tests: int
    ran: Mapping[str, bool]
    not_ran: tuple[str, ...]
    files: int


def _bash(command: str) -> Reply:
    return calls("Bash", command=command, description="run it")


def _write(path: str, content: str = "x = 1\n") -> Reply:
    return calls("Write", file_path=path, content=content)


SCENES = (
    Scene(
        name="writes and tests",
        calls=(
            _write("app.py"),
            _write("test_app.py", PASS_2),
            _bash(UNITTEST),
            _bash("python3 -m compileall -q app.py"),
        ),
        written=("app.py", "test_app.py"),
        unwritten=("src/server.py", "README.md"),
        tests=2,
        ran={UNITTEST: True, "python3 -m compileall -q app.py": True},
        not_ran=("make lint", "npm run build"),
        files=2,
    ),
    Scene(
        name="tests fail",
        calls=(_write("output/parser.py"), _write("test_app.py", FAIL_1), _bash(f"{UNITTEST} 2>&1 | tail -n 20")),
        written=("output/parser.py", "test_app.py"),
        unwritten=("config.yaml", "lib/util.ts"),
        tests=-1,
        ran={UNITTEST: False},
        not_ran=("ruff check .", "cargo build"),
        files=2,
    ),
    Scene(
        name="no tests",
        calls=(_write("notes.md", "# Notes\n"), _bash("ls -la"), _bash("cat notes.md")),
        written=("notes.md",),
        unwritten=("tests/test_notes.py", "main.go"),
        tests=0,
        ran={"ls -la": True},
        not_ran=("pytest -q", "make"),
        files=1,
    ),
    Scene(
        name="an edit that fails, a file that stays",
        before={"docs/guide.md": "# Guide\n", "docs/plan.md": "# Plan\n"},
        calls=(
            calls("Edit", file_path="missing.py", old_string="a", new_string="b"),
            _bash("echo more >> ../../../../../docs/guide.md"),
            _bash("python3 -c 'raise SystemExit(3)'"),
        ),
        written=("docs/guide.md",),
        unwritten=("missing.py", "docs/plan.md"),
        tests=0,
        ran={"python3 -c 'raise SystemExit(3)'": False},
        not_ran=("eslint src", "docker build ."),
        files=1,
    ),
    Scene(
        name="files by the shell",
        calls=(
            _bash("mkdir -p pkg && cat > pkg/core.py <<'END'\nx = 1\nEND\nprintf 'y\\n' > pkg/data.json"),
            _bash("sed -i 's/1/2/' pkg/core.py"),
            _bash("python3 pkg/core.py"),
        ),
        written=("pkg/core.py", "pkg/data.json"),
        unwritten=("pkg/cli.py", "setup.cfg"),
        tests=0,
        ran={"python3 pkg/core.py": True},
        not_ran=("mypy pkg", "go vet ./..."),
        files=2,
    ),
    Scene(
        name="fails, is mended, passes",
        calls=(
            _write("test_app.py", FAIL_1),
            _bash(UNITTEST),
            calls("Edit", file_path="test_app.py", old_string="self.fail('no')", new_string="pass"),
            _bash(UNITTEST),
            _write("CHANGES.md", "- done\n"),
        ),
        written=("test_app.py", "CHANGES.md"),
        unwritten=("app.rs", "index.html"),
        tests=3,
        ran={UNITTEST: True},
        not_ran=("prettier --check .", "tox"),
        files=2,
    ),
    Scene(
        name="passes, then fails",
        calls=(
            _write("test_app.py", PASS_2),
            _bash(UNITTEST),
            _write("test_app.py", FAIL_1),
            _bash(UNITTEST),
        ),
        written=("test_app.py",),
        unwritten=("tool.rb", "style.css"),
        tests=-1,
        ran={UNITTEST: False},
        not_ran=("npx tsc --noEmit", "pre-commit run"),
        files=1,
    ),
    Scene(
        name="nothing is done",
        calls=(calls("Read", file_path="nothing.txt"),),
        written=(),
        unwritten=("nothing.txt", "app/models.py"),
        tests=0,
        ran={},
        not_ran=("pytest", "make test"),
        files=0,
    ),
)
