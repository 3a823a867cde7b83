"""What a release is made of: the wheel is the same every time, and its papers name what they are about."""

import gzip
import hashlib
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.lab.supply import image, release

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


def test_an_image_is_the_same_every_time_and_each_digest_names_its_bytes(tmp_path: Path) -> None:
    layers = [tmp_path / "base.tar", tmp_path / "application.tar"]
    for layer in layers:
        layer.write_bytes(layer.name.encode() * 1000)
    config = image.describe_image(layers, "1700000000", "1.2.3", "c" * 40)
    written = [tmp_path / name for name in ("a.tar", "b.tar")]
    for target in written:
        image.write_archive(layers, config, target, "1.2.3")
    assert release.digest_of(written[0]) == release.digest_of(written[1])
    with tarfile.open(written[0]) as archive:
        blobs = {name: archive.extractfile(name).read() for name in archive.getnames()}

    def blob(named: dict[str, str]) -> bytes:
        data = blobs[f"blobs/sha256/{named['digest'].removeprefix('sha256:')}"]
        assert (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") == (named["size"], named["digest"])
        return data

    [named] = json.loads(blobs["index.json"])["manifests"]
    manifest = json.loads(blob(named))
    stored = json.loads(blob(manifest["config"]))
    assert stored == json.loads(json.dumps(config))
    assert [gzip.decompress(blob(layer)) for layer in manifest["layers"]] == [layer.read_bytes() for layer in layers]
    assert stored["rootfs"]["diff_ids"] == [f"sha256:{release.digest_of(layer)}" for layer in layers]


def test_the_image_runs_as_the_dockerfile_says() -> None:
    config = image.describe_image([], "1700000000", "1.2.3", "c" * 40)["config"]
    dockerfile = (ROOT / "compose" / "Dockerfile").read_text()
    assert f"USER {config['User']}" in dockerfile
    assert f"CMD {json.dumps(config['Cmd'])}" in dockerfile
    assert f"WORKDIR {config['WorkingDir']}" in dockerfile
    assert f"STOPSIGNAL {config['StopSignal']}" in dockerfile
    assert all(variable in dockerfile for variable in config["Env"][1:])


def test_the_image_has_what_the_lock_names_for_its_python() -> None:
    lock = (ROOT / release.LOCK).read_text()
    chosen = {python: image.select_requirements(lock, python) for python in ("3.11.2", "3.11.7")}
    assert "async-timeout==" in chosen["3.11.2"]
    assert "async-timeout==" not in chosen["3.11.7"]
    assert not re.search(r"pywin32|[;]", chosen["3.11.2"])
    names = re.findall(r"^([\w.-]+)==", chosen["3.11.2"], re.MULTILINE)
    assert {"mcp", "cryptography", "redis"} <= {*names}
    assert chosen["3.11.2"].count("--hash=") >= len(names) > 60
