"""The demo, as the README promises it: every turn comes out as expected, and nothing is left running."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.installation import turns
from tests.support import processes_with, wait_for
from worker.cli import main


@pytest.mark.timeout(600)
def test_the_demo_comes_out_as_expected_in_both_languages_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HELIX_", "REDIS_"))}
    playing = [
        subprocess.Popen(
            turns("demo", "--json", "--locale", locale),
            env={**environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for locale in ("en", "de")
    ]
    for each in playing:
        output, errors = each.communicate(timeout=540)
        assert each.returncode == 0, errors
        check(output)
    wait_for(lambda: not processes_with(str(tmp_path)))
    assert list(tmp_path.glob("helix-demo-*")) == []


def check(output: str) -> None:
    """Every turn of a demo, as it is printed."""
    results = [json.loads(line) for line in output.splitlines()]
    told = [(line["outcome"], line["attempts"], line["deliveries"]) for line in results]
    assert told == [
        ("passed", 1, 1),
        ("passed_after_retry", 2, 2),
        ("passed_after_retry", 2, 2),
        ("passed_after_retry", 2, 2),
        ("passed_by_fallback", 3, 3),
        ("failed", 3, 3),
        ("passed", 1, 2),
    ]
    assert all(set(line) >= {"turn_id", "outcome", "attempts", "deliveries", "seconds"} for line in results)
    assert len({line["turn_id"] for line in results}) == len(results)


def test_without_the_openai_client_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("worker.cli.installation.demo.find_spec", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        main(["demo"])
    assert ended.value.code == 2
    assert 'the demo needs the openai client: pip install ".[demo]"' in capsys.readouterr().err
