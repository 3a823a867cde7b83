"""An agent with a shell in a sandbox: what it gets at is what docs/security.md says, and nothing more."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.probe.trial import reached
from tests.lab.probe.ways import WAYS
from tests.support import processes_with, wait_for
from worker.runners.sandbox import bubblewrap

SECURITY = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")

#: What a sandbox does not close, each for the reason docs/security.md gives.
OPEN = {"write: its own marks", "write: its own transcript"}
#: What stays closed without a sandbox.
ALWAYS_CLOSED = {
    "environment: the broker's address",
    "environment: a secret of the worker's",
    "processes: a child in its own session stays",
    "processes: a child with a wiped environment stays",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """In /tmp, because that is what a sandbox replaces."""
    with tempfile.TemporaryDirectory(prefix="helix-probe-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("ahead", [False, True], ids=["of its own", "made ahead"])
def test_in_a_box_only_the_documented_ways_are_open(folder: Path, ahead: bool) -> None:
    if problem := bubblewrap.find_network_obstacle():
        pytest.skip(problem)
    assert {way for way, is_open in reached(folder, "required", ahead=ahead).items() if is_open} == OPEN


def test_without_a_box_the_environment_is_clean_and_no_process_stays(folder: Path) -> None:
    found = reached(folder, "off")
    assert not [way for way in ALWAYS_CLOSED if found[way]]
    assert found["write: its own marks"], "the probe can tell an open way from a closed one"


def test_what_is_in_a_box_dies_with_it_also_where_nobody_sweeps() -> None:
    if problem := bubblewrap.find_network_obstacle():
        pytest.skip(problem)
    seconds = f"600.{os.getpid()}"
    outer = subprocess.Popen(
        bubblewrap.sandbox_command(["sh", "-c", f"env -i sleep {seconds} & sleep {seconds}"], Path("/usr"), ())
    )
    try:
        wait_for(lambda: [c for c in processes_with(seconds).values() if c.startswith("sleep")])
    finally:
        outer.kill()
        outer.wait(60)
    wait_for(lambda: not processes_with(seconds))


def test_every_way_is_documented_with_what_a_box_makes_of_it() -> None:
    lists = re.findall(r"^(Open|Closed) in a sandbox, and .+:\n\n((?:- .+\n)+)", SECURITY, re.MULTILINE)
    documented = [
        (f"{kind}: {way}", state)
        for state, lines in lists
        for kind, ways in re.findall(r"^- (.+?): (.+)$", lines, re.MULTILINE)
        for way in ways.split("; ")
    ]
    assert sorted(documented) == sorted((way, "Open" if way in OPEN else "Closed") for way in WAYS)
