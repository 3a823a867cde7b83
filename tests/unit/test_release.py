"""What a release is made of: the wheel is the same every time, and its papers name what they are about."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.lab.supply import release

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def test_two_builds_of_the_committed_tree_are_one_file_whatever_lies_about(tmp_path: Path) -> None:
    wheels = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        wheels.append(release.build_wheel(tmp_path / name, "1700000000"))
    assert release.digest_of(wheels[0]) == release.digest_of(wheels[1])
    (tmp_path / "c").mkdir()
    assert release.digest_of(release.build_wheel(tmp_path / "c", "1800000000")) != release.digest_of(wheels[0])


@pytest.mark.parametrize("run", ["", "7"])
def test_provenance_names_files_source_locks_and_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    for name, value in {"SERVER_URL": "https://forge.example", "REPOSITORY": "a/b", "RUN_ID": run}.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(b"abc")
    found = release.describe_provenance([wheel], "c" * 40, "a/b")
    assert found["subject"] == [{"name": "x.whl", "digest": {"sha256": release.digest_of(wheel)}}]
    predicate = found["predicate"]
    source, *locks = predicate["buildDefinition"]["resolvedDependencies"]
    assert source == {"uri": "a/b", "digest": {"gitCommit": "c" * 40}}
    assert [each["uri"] for each in locks] == ["requirements.lock", release.LOCK]
    builder = "https://forge.example/a/b/actions" if run else "urn:helix-turns:local-build"
    assert predicate["runDetails"]["builder"]["id"] == builder
    assert json.loads(json.dumps(found))["_type"] == "https://in-toto.io/Statement/v1"


def test_the_workflow_is_valid_pins_each_action_by_commit_and_runs_targets_that_exist() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["release"]
    for used in (step["uses"] for step in job["steps"] if "uses" in step):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", used)
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"run: make ([\w-]+)", WORKFLOW.read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
