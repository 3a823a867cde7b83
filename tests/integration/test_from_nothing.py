"""A new installation on an empty store: one server, and a Redis Cluster of three masters, under the default namespace.

``make e2e-stores`` runs it on each server that people run.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from api_client.contract.settings import Settings
from tests.fault.clusters import ClusterSetUp
from tests.installation import Installation, command
from worker.processes.embedded_broker import EmbeddedBroker

SCRIPT = '- attempts: [[say: "Hi. <!-- STEP: done -->"]]'


@pytest.fixture(scope="module")
def three_masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSetUp]:
    made = ClusterSetUp(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture(params=["one server", "cluster"])
def new(request: pytest.FixtureRequest, settings: Settings, private_broker: EmbeddedBroker) -> Settings:
    """Settings of an installation that nobody has started yet."""
    made = replace(settings, broker_url=private_broker.url, store_url=private_broker.url, namespace="helix")
    if request.param == "cluster":
        made = replace(made, store_url=request.getfixturevalue("three_masters").url)
    return made


def doctor(settings: Settings) -> dict[str, str]:
    """What doctor says of the store: check -> ok, warning or wrong."""
    found = json.loads(command(settings, "doctor", "--json").stdout)["findings"]
    return {each["check"]: each["state"] for each in found if each["check"].startswith(("store", "submit", "restore"))}


async def test_a_new_installation_carries_a_turn_out_and_doctor_agrees(
    new: Settings, installation: Installation
) -> None:
    installation.settings = new
    installation.play(SCRIPT)
    assert doctor(installation.settings)["submit"] == "ok"
    said = installation.command("submit", "hello")
    assert said.returncode == 0, said
    worker = installation.worker()
    turn = await installation.result(said.stdout.split()[0])
    assert turn.outcome == "passed"
    async with installation.web() as http:
        for path in ("/overview", "/turns", "/metrics", "/readyz", "/v1/turns"):
            assert (await http.get(path)).status_code == 200, path
    for words in (
        "turn list",
        "stats summary",
        f"turn show {turn.turn_id}",
        "stats budgets",
        "worker list",
        "data gc --dry-run",
    ):
        told = installation.command(*words.split())
        assert told.returncode == 0, told
    assert "wrong" not in doctor(installation.settings).values()
    assert not [line for line in worker.log_file.read_text().splitlines() if "not_looked_at" in line]
