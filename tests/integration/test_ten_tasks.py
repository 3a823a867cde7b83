"""The ten first tasks of docs/README.md, with the words of the pages, in one installation as `turns up` makes it."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browsing import installation
from tests.installation import turns
from tests.support import wait_for

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
DOCS, README = ROOT / "docs", ROOT / "README.md"
_ROW = re.compile(r"^\| ([^|]+) \| \[[^]]+\]\(([^)#]+)[^)]*\) \| `([^`]+)` \| \S+ \|$", re.MULTILINE)
TASKS = {task: ((DOCS / page).resolve(), words) for task, page, words in _ROW.findall((DOCS / "README.md").read_text())}
SCRIPT = """
- attempts:
    - - say: "{\\"city\\": \\"Bonn\\", \\"people\\": \\"three\\"}"
    - - say: "{\\"city\\": \\"Bonn\\", \\"people\\": 3}"
"""


def links_of(page: Path) -> set[Path]:
    """The pages that a page links to."""
    found = re.findall(r"\]\(([^)#:]+\.md)[^)]*\)", page.read_text(encoding="utf-8"))
    return {(page.parent / each).resolve() for each in found}


def test_each_task_is_two_links_from_the_readme_and_its_page_has_its_words() -> None:
    assert len(TASKS) == 10
    near = {README, *links_of(README)}
    near |= {page for each in near for page in links_of(each)}
    for task, (page, words) in TASKS.items():
        assert page in near, task
        assert words in page.read_text(), task


def test_eight_tasks_are_done_with_the_words_of_their_pages(tmp_path: Path) -> None:
    root, took = tmp_path / "project", dict[str, float]()
    (root / ".helix").mkdir(parents=True)
    (root / "city.yaml").write_text(SCRIPT)
    operations = (DOCS / "operations.md").read_text()
    [budgets] = re.findall(r"```toml\n(budgets = .*)\n```", operations)
    (root / ".helix" / "helix.toml").write_text(budgets.replace(', "key:webui" = 50, "model:opus" = 100', "") + "\n")
    models = f"scripted=scripted,helix=scripted:{root / 'city.yaml'}"
    with installation(root, "--no-flower", HELIX_MODELS=models) as told:

        def run(*words: str) -> str:
            done = subprocess.run(turns(*words), env=told["environ"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr + done.stdout
            return done.stdout

        def timed(task: str, do: Callable[[], Any]) -> Any:
            begun = time.monotonic()
            found = do()
            took[task] = time.monotonic() - begun
            return found

        [question] = re.findall(r'turns submit --watch "([^"]+)"', README.read_text())
        watched = timed("ask", lambda: run("submit", "--watch", question))
        assert "asking again" in watched
        assert "passed_after_retry" in watched

        why = timed("see why an answer was rejected", lambda: run("turn", "attempts", "last"))
        assert "MISSING_STEP_MARKER" in why

        page = (DOCS / "clients.md").read_text()
        [example] = re.findall(r"```python\n(from pydantic .*?)```", page, re.DOTALL)
        given = f'from openai import OpenAI\nclient = OpenAI(base_url="{told["web_url"]}/v1", api_key="none")\n'
        given += 'messages = [{"role": "user", "content": "Which city?"}]\n'
        example = given + re.sub(r"^client\.(.*)$", r"print(client.\1)", example, flags=re.MULTILINE)
        program = [sys.executable, "-c", example]
        asked = timed("JSON of a schema", lambda: subprocess.run(program, capture_output=True, text=True, check=False))
        assert asked.stdout == "city='Bonn' people=3\n" * 2, asked.stderr

        spent = timed("a budget", lambda: run("stats", "budgets"))
        assert re.search(r"^all\b.*200", spent, re.MULTILINE), spent

        def connect() -> str:
            key = run("keys", "create", "webui", "--forwards-users").strip()
            assert "OPENAI_API_KEY" in run("openwebui", "print", "env", "--key", key, "--url", told["web_url"])
            return run("openwebui", "check", "--key", key, "--url", told["web_url"])

        timed("Open WebUI", connect)

        def add_worker() -> None:
            alone = len(json.loads(run("worker", "list", "--json"))["workers"])
            environ = told["environ"] | {"REDIS_URL": told["redis_url"]}
            with subprocess.Popen(turns("run", "worker"), env=environ, stderr=subprocess.DEVNULL) as second:
                try:
                    wait_for(lambda: len(json.loads(run("worker", "list", "--json"))["workers"]) > alone)
                finally:
                    second.terminate()

        timed("a second worker", add_worker)
        timed("a backup", lambda: run("data", "backup", str(tmp_path / "turns-backup")))
        assert (tmp_path / "turns-backup").stat().st_mode & 0o777 == 0o600
        builds = timed("upgrade", lambda: run("worker", "list"))
        assert re.search(r"\d+\.\d+\.\d+\+[0-9a-f]{7}", builds), builds
    print("\n".join(f"| {task} | {seconds:.1f} |" for task, seconds in took.items()))
    assert [*took] == [*TASKS][:8]
