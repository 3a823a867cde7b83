"""The switches that prove the checker still fit the engine: what each takes out is still there to be taken out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.command import BREAKABLE

ROOT = Path(__file__).parents[3]
_LOOK = """
from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from worker.turns.leases.lease import Lease
from tests.on_loop import Ledger
from worker.turns.leases.reaper import Reaper
settings = Settings(store_url="redis://127.0.0.1:1", broker_url="redis://127.0.0.1:1")
TurnsClient(settings)
Ledger(settings, "nobody")
print(Reaper.look.__name__, type(Lease.lease_ends).__name__)
"""


@pytest.mark.parametrize("guard", BREAKABLE)
def test_a_guard_can_be_switched_off(guard: str) -> None:
    paths = f"{ROOT / 'tests' / 'fault' / 'sabotage'}{os.pathsep}{ROOT}"
    environ = {**os.environ, "PYTHONPATH": paths, "HELIX_AGENT_BREAK": guard}
    looked = subprocess.run(
        [sys.executable, "-P", "-c", _LOOK], env=environ, capture_output=True, text=True, check=False
    )
    assert looked.returncode == 0, looked.stderr
    assert ("<lambda>" in looked.stdout) == (guard == "reaper")


def test_nothing_of_it_is_in_the_installed_package() -> None:
    shipped = [path for folder in ("api_client", "worker") for path in (ROOT / folder).rglob("*.py")]
    assert not [path for path in shipped if "HELIX_AGENT_BREAK" in path.read_text()]
