"""A rule of an installed package: offered to every request of a real installation, active only where asked for."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import httpx2
import pytest

from tests.installation import turns
from tests.integration.test_up import Up
from tests.support import wait_for

RULE = """
    import os, sys
    from worker.enforcement import ResponseValidator, ValidationIssue

    with open(os.environ["IMPORTED_BY"], "a") as told:
        told.write(" ".join(open(f"/proc/{os.getpid()}/cmdline").read().split("\\0")) + "\\n")

    class CitesSource(ResponseValidator):
        name = "cites_source"

        def validate(self, response, context):
            return [] if "](http" in response else [ValidationIssue("MISSING_SOURCE", "Keine Quelle", "Nenne eine")]
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A third party's package, installed as pip leaves it: a module and its metadata with an entry point."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sources_rule.py").write_text(dedent(RULE))
    info = folder / "sources_rule-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sources-rule\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[helix_turns.validators]\ncites_source = sources_rule:CitesSource\n")
    return folder


@pytest.fixture(scope="module")
def installation(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    root = tmp_path_factory.mktemp("root")
    started = Up(root, PYTHONPATH=str(package), IMPORTED_BY=str(package / "imported"))
    yield started
    started.end()
    wait_for(lambda: not started.processes())


def command(installation: Up, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        turns(*arguments), env=installation.environ, capture_output=True, text=True, check=False, input=given
    )


def codes(installation: Up, turn_id: str) -> set[str]:
    told = json.loads(command(installation, "turn", "attempts", turn_id, "--json").stdout)
    return {issue["code"] for attempt in told for issue in attempt["issues"]}


def test_one_request_uses_it_through_the_command_line(installation: Up) -> None:
    done = command(installation, "submit", "hello", "--validator", "cites_source", "--wait", "--json")
    turn = json.loads(done.stdout)
    assert turn["validators"] == ["cites_source"]
    assert "MISSING_SOURCE" in codes(installation, turn["turn_id"])


def test_one_request_uses_it_through_the_api_and_the_next_one_does_not(installation: Up, package: Path) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
    with httpx2.Client(base_url=installation.told["web_url"], timeout=60) as web:
        asked = web.post("/v1/chat/completions", json={**body, "validators": ["step_marker", "cites_source"]})
        assert asked.status_code == 422
        assert "MISSING_SOURCE" in asked.json()["error"]["message"]
        plain = web.post("/v1/chat/completions", json=body)
        assert plain.status_code == 200
        turn = web.get(f"/v1/turns/{plain.headers['x-turn-id']}").json()
        assert turn["validators"] == ["step_marker", "adr_structure", "file_existence"]
    importers = (package / "imported").read_text().splitlines()
    assert importers
    assert not [line for line in importers if " run relay --host " in line]  # the relay reads metadata, it runs no rule


def test_a_name_nobody_offers_is_refused_with_all_that_are(installation: Up) -> None:
    offered = "(offered: step_marker, adr_structure, file_existence, cites_source)"
    done = command(installation, "submit", "hello", "--validator", "cites_sources")
    assert done.returncode == 2
    assert done.stderr == (
        f"turns: unknown validator 'cites_sources'; did you mean 'cites_source'? {offered} [unknown_validator]\n"
    )
    done = command(installation, "validate", "-", "--validator", "cites_sources", given="x")
    assert (done.returncode, offered in done.stderr) == (2, True)
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], "validators": ["cites_sources"]}
    answer = httpx2.post(f"{installation.told['web_url']}/v1/turns", json=body, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_validator", "validators[0]")
    assert offered in error["message"]


def test_validate_uses_what_is_active_and_any_offered_one_that_is_named(installation: Up) -> None:
    text = "Antwort.\n\n<!-- STEP: done -->\n"
    assert command(installation, "validate", "-", given=text).returncode == 0
    named = command(installation, "validate", "-", "--validator", "cites_source", given=text)
    assert (named.returncode, "MISSING_SOURCE" in named.stdout) == (1, True)
    active = {**installation.environ, "HELIX_VALIDATORS": "cites_source"}
    done = subprocess.run(turns("validate", "-"), env=active, capture_output=True, text=True, input=text, check=False)
    assert (done.returncode, "MISSING_SOURCE" in done.stdout) == (1, True)
    active["HELIX_VALIDATORS"] = "step_marker,grammar"
    done = subprocess.run(turns("validate", "-"), env=active, capture_output=True, text=True, input=text, check=False)
    assert done.returncode == 2
    assert "HELIX_VALIDATORS: unknown validator 'grammar' (offered: " in done.stderr


def test_doctor_says_what_is_active_and_what_is_offered_besides(installation: Up) -> None:
    rows = {row["check"]: row for row in json.loads(command(installation, "doctor", "--json").stdout)["findings"]}
    assert rows["validators"]["state"] == "ok"
    assert rows["validators"]["message"] == (
        "active: step_marker, adr_structure, file_existence; offered besides: cites_source"
    )
    assert rows["validators offered"]["state"] == "ok"
    bare = {name: value for name, value in installation.environ.items() if name != "PYTHONPATH"}
    bare |= {"HELIX_VALIDATORS": "cites_source"}
    done = subprocess.run(turns("doctor", "--json"), env=bare, capture_output=True, text=True, check=False)
    rows = {row["check"]: row for row in json.loads(done.stdout)["findings"]}
    assert rows["validators"]["state"] == "wrong"
    assert rows["validators"]["message"] == "active, but not offered on this machine: cites_source"
