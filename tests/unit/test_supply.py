"""Supply chain: what the audit says when it knows, when it does not, and that every pin's licence is listed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.supply.audit import Ask, audit, pip_audit
from tests.supply.licences import ROOT, licence_of, pins, table

BAD = {"name": "jinja2", "version": "2.4.1", "vulns": [{"id": "PYSEC-2014-8"}]}
FINE = {"name": "click", "version": "8.3.0", "vulns": []}
SKIPPED = {"name": "click", "skip_reason": "Dependency not found"}


def database(*entries: dict[str, Any], canary: dict[str, Any] = BAD) -> Ask:
    """A database that knows the canary, and these packages of a lock."""

    def ask(file: Path) -> str:
        return json.dumps({"dependencies": [canary] if file.name == "canary.txt" else list(entries)})

    return ask


def unreachable(_: Path) -> str:
    return ""


@pytest.mark.parametrize(
    ("ask", "strict", "code", "told"),
    [
        (database(FINE), False, 0, "1 packages, 0 advisories"),
        (database(FINE, BAD), False, 1, "jinja2 2.4.1: PYSEC-2014-8"),
        (database(SKIPPED), False, 0, "unknown: click"),
        (database(SKIPPED), True, 3, "unknown: click"),
        (database(SKIPPED, BAD), True, 1, "PYSEC-2014-8"),
        (unreachable, False, 0, "unknown: no advisory database could be reached"),
        (unreachable, True, 3, "unknown: no advisory database could be reached"),
        (database(FINE, canary=FINE), True, 3, "unknown: no advisory database could be reached"),
    ],
)
def test_an_audit_is_clean_only_when_a_database_knew_everything(ask: Ask, strict: bool, code: int, told: str) -> None:
    lines: list[str] = []
    assert audit([Path("requirements.lock")], ask, strict=strict, tell=lines.append) == code
    assert told in "\n".join(lines)


def test_a_program_that_is_missing_or_writes_nonsense_is_unknown(tmp_path: Path) -> None:
    program = tmp_path / "pip-audit"
    lines: list[str] = []
    assert audit([Path("x")], pip_audit(str(program)), strict=True, tell=lines.append) == 3
    program.write_text("#!/bin/sh\necho connection refused\nexit 1\n")
    program.chmod(0o755)
    assert audit([Path("x")], pip_audit(str(program)), strict=True, tell=lines.append) == 3


@pytest.mark.parametrize("lock", ["requirements.lock", "compose/requirements.lock"])
def test_every_pin_of_a_lock_is_read_and_has_a_hash(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert len(pins(ROOT / lock)) == len(re.findall(r"^\S+==", text, re.MULTILINE)) > 30
    assert len(re.findall(r"^    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)) >= len(pins(ROOT / lock))


def test_the_licences_of_all_pins_are_listed_and_none_forbids_our_own() -> None:
    rows = [line.split(" | ") for line in (ROOT / "docs" / "licences.md").read_text().splitlines() if "| " in line][1:]
    listed = {row[0].removeprefix("| "): (row[1], row[2]) for row in rows}
    pinned = pins(ROOT / "requirements.lock")
    assert {name: version for name, (version, _) in listed.items()} == {n: v for n, (v, _) in pinned.items()}, (
        "make licences"
    )
    for name, (_, licence) in listed.items():
        assert licence, name
        assert not re.search(r"\bA?GPL|proprietary|unknown", licence, re.IGNORECASE), (name, licence)
    for line in table().splitlines():
        name, _, licence = line.split(" | ")[:3] if line.startswith("| ") else ("", "", "")
        if licence and not {licence, listed.get(name[2:], ("", licence))[1]} & {"licence"}:
            told = listed[name[2:]][1]
            assert licence == told or "not installed here" in licence + told, name


def test_a_package_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    from importlib.metadata import PathDistribution

    folder = tmp_path / "x-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: x\nVersion: 1\n")
    assert licence_of(PathDistribution(folder)) == "unknown"


def test_pinning_writes_the_registrys_digests_beside_the_tags(tmp_path: Path) -> None:
    digest = "sha256:" + "a1" * 32
    (tmp_path / "docker").write_text(f"#!/bin/sh\necho {digest}\n")
    (tmp_path / "docker").chmod(0o755)
    file = tmp_path / "compose.yaml"
    original = (ROOT / "compose" / "compose.yaml").read_text()
    file.write_text(original)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run: Callable[[], Any] = lambda: subprocess.run(  # noqa: E731
        [ROOT / "compose" / "pin.sh", file], env=environ, capture_output=True, text=True, check=False
    )
    told = run()
    assert told.returncode == 0, told.stderr
    images = re.findall(r"^ +image: (.*)$", file.read_text(), re.MULTILINE)
    foreign = [image for image in images if not image.startswith("helix-turns:")]
    assert len(foreign) == 4
    assert all(image.endswith(f"@{digest}") for image in foreign)
    assert f"PYTHON_TAG=3.13-slim-bookworm@{digest}" in told.stdout
    pinned = file.read_text()
    assert (run().returncode, file.read_text()) == (0, pinned), "a second run changes nothing"
    assert pinned.replace(f"@{digest}", "") == original
    (tmp_path / "docker").write_text("#!/bin/sh\necho no such manifest\n")
    failed = run()
    assert (failed.returncode, "no digest" in failed.stderr) == (1, True)
