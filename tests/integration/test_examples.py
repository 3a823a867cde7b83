"""Every example of docs/examples runs as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installation import turns
from tests.integration.test_up import Up
from tests.ports import free_port
from tests.support import wait_for

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MODELS = f"invoices=scripted:{EXAMPLES}/agent.yaml,writer=scripted:{EXAMPLES}/phases/agent.yaml"
QUESTION = "Where is the invoice?"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    installation = Up(tmp_path_factory.mktemp("examples"), HELIX_MODELS=MODELS, HELIX_LOCALE="en")
    yield installation
    installation.end()
    wait_for(lambda: not installation.processes())


def run(*command: str, **environ: str) -> str:
    """Run an example as a reader would, with our ``turns`` first on PATH; returns its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HELIX_", "REDIS_URL"))}
    ran = subprocess.run(
        command, env=clean | {"PATH": path} | environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def needs(program: str) -> str:
    if not (found := shutil.which(program)):
        pytest.skip(f"{program} is not installed")
    return found


def test_the_library_submits_resumes_and_cancels(up: Up) -> None:
    lines = run(sys.executable, f"{EXAMPLES}/library.py", QUESTION, HELIX_ROOT=str(up.root)).splitlines()
    numbers = [int(line.split()[0]) for line in lines if line[:1].isdigit()]
    assert numbers == list(range(1, len(numbers) + 1)), "each event once, also after it was read anew"
    assert "passed_after_retry" in lines
    assert lines[-1] in {"cancelled", "passed", "passed_after_retry"}


def test_enforcement_alone_needs_one_process() -> None:
    output = run(sys.executable, f"{EXAMPLES}/enforcement_alone.py")
    assert "accepted after 2 attempts\nInvoices are in the archive." in output


def test_an_own_rule_is_found_once_its_package_is_installed(tmp_path: Path) -> None:
    source = shutil.copytree(EXAMPLES / "own_rule", tmp_path / "own_rule")
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    run(sys.executable, *pip, "--target", f"{tmp_path}/installed", str(source))
    answer = tmp_path / "answer.md"
    command = (*turns("validate"), str(answer), "--validator", "cites_source")
    answer.write_text("See [the archive](https://example.org).\n")
    assert run(*command, PYTHONPATH=f"{tmp_path}/installed") == f"{answer}: ok\n"
    answer.write_text("It is in the archive.\n")
    with pytest.raises(AssertionError, match="MISSING_SOURCE: The answer names no source"):
        run(*command, PYTHONPATH=f"{tmp_path}/installed")


def test_the_client_in_python_prints_the_accepted_answer(up: Up) -> None:
    output = run(sys.executable, f"{EXAMPLES}/client.py", QUESTION, HELIX_URL=up.told["web_url"])
    assert output == "The invoice is in the archive.\n"


def test_the_client_in_node_takes_the_rejected_draft_back(up: Up) -> None:
    output = run(needs("node"), f"{EXAMPLES}/client.mjs", QUESTION, HELIX_URL=up.told["web_url"])
    assert output.startswith("taken back: The invoice is in the archive.\npassed_after_retry: The invoice")


def test_the_client_in_curl_follows_the_turn_to_the_end(up: Up) -> None:
    needs("curl")
    output = run("sh", f"{EXAMPLES}/client.sh", QUESTION, HELIX_URL=up.told["web_url"])
    assert output.startswith("turn turn-")
    assert '"outcome":"passed_after_retry"' in output.splitlines()[-1].replace(" ", "")


def test_the_phase_passes_once_its_link_leads_somewhere(up: Up, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "phases", up.root / "phases")
    output = run(*turns("phase", "run", "--watch", str(folder)), HELIX_ROOT=str(up.root))
    assert "BROKEN_LINK" in output
    assert "passed_after_retry" in output


def test_workers_on_another_host_answer_what_the_relays_host_submits() -> None:
    output = run("sh", f"{EXAMPLES}/two_hosts.sh", PORT=str(free_port()))
    assert "The invoice is in the archive." in output


def test_every_file_is_in_the_list_of_examples() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        assert path.name == "README.md" or f"]({path.name}" in listed, path.name
