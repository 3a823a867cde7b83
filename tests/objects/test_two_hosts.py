"""Two hosts in network namespaces without a common folder hold chats, while one after the other loses its power."""

import asyncio
import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, Turn
from tests.installation import Installation, WorkerProcess, asked, settings_on
from tests.objects.hosts import NetHost, Network, lacking, network
from tests.objects.seaweedfs import ObjectServer, seaweedfs
from tests.ports import free_port
from tests.support import wait_for
from worker.processes.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.long

CHATS, MESSAGES, OFF = 4, 5, 3
_PASSWORD = "of-a-test"
_RULE = """
- when: "[{chat} {number}]"
  attempts:
    - - write: {{path: output/{chat}-{number}.csv, content: "{number}"}}
      - say: {{text: "Antwort {number}.\\n\\n<!-- STEP: done -->", seconds: 0.3}}
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Network]:
    if why := lacking():
        pytest.skip(why)
    with network(tmp_path / "hosts", ("a", "b")) as made:
        yield made


@pytest.fixture
def installation(hosts: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """Broker, store and object store at an address that both hosts reach."""
    port, broker = free_port(), EmbeddedBroker(tmp_path / "broker")
    command = [str(broker.server.path), "--port", str(port), "--bind", hosts.address, "--requirepass", _PASSWORD]
    server = subprocess.Popen([*command, "--save", "", "--dir", str(tmp_path)], stdout=subprocess.DEVNULL)
    rules = tmp_path / "script.yaml"
    rules.write_text("".join(_RULE.format(chat=chat, number=n) for chat in range(CHATS) for n in range(MESSAGES)))
    url = f"redis://:{_PASSWORD}@{hosts.address}:{port}/0"
    try:
        with seaweedfs(tmp_path / "objects", hosts.address) as objects:
            for name, value in objects.environment.items():
                monkeypatch.setenv(name, value)
            made = Installation(_settings(broker, tmp_path, url, objects, rules))
            wait_for(lambda: _answers(url))
            yield made
            for host in hosts.hosts:
                host.power_off()
    finally:
        server.kill()
        server.wait()


def _answers(url: str) -> bool:
    with suppress(redis.ConnectionError), redis.Redis.from_url(url) as store:
        return bool(store.ping())
    return False


def _settings(broker: EmbeddedBroker, folder: Path, url: str, objects: ObjectServer, rules: Path) -> Settings:
    made = settings_on(broker, folder / "asks", lease_seconds=3.0, kill_grace_seconds=0.3, models={})
    away = {"files": objects.files, "files_endpoint": objects.url}
    return replace(made, broker_url=url, store_url=url, models={"scripted": f"scripted:{rules}"}, **away)


async def chat(client: TurnsClient, number: int, ended: list[str]) -> list[Turn]:
    """One conversation, message after message; ``ended`` has what ended of all."""
    turns = []
    for message in range(MESSAGES):
        turn_id = await client.submitter.submit(asked(f"[{number} {message}]", f"chat-{number}"))
        turns.append(await client.reader.await_result(turn_id, timeout=120))
        ended.append(turn_id)
    return turns


async def test_chats_lose_nothing_while_one_host_after_the_other_loses_its_power(
    hosts: Network, installation: Installation
) -> None:
    def start(host: NetHost) -> WorkerProcess:
        return installation.worker(root=host.folder, within=host.within)

    workers = {host.name: start(host) for host in hosts.hosts}
    off, ended = 0, list[str]()
    async with TurnsClient(installation.settings) as client:
        chats = asyncio.gather(*(chat(client, number, ended) for number in range(CHATS)))
        while not (await asyncio.wait([chats], timeout=0.02))[0]:
            if off == OFF or len(ended) < (off + 1) * CHATS * MESSAGES // (OFF + 1):
                continue
            host = hosts.hosts[off % 2]
            host.power_off()
            workers[host.name].kill()
            installation.workers.remove(workers[host.name])
            workers[host.name] = await asyncio.to_thread(start, host)
            off += 1
        for number, turns in enumerate(await chats):
            assert [turn.outcome for turn in turns] == [Outcome.PASSED] * MESSAGES
            found = await client.session_files.of(f"chat-{number}")
            assert found is not None
            assert found.pointer is not None
            files = {path.rpartition("/")[2] for path in found.manifest.files if path.startswith("attempts/")}
            assert {f"{number}-{message}.csv" for message in range(MESSAGES)} <= files, (
                "nothing of it was lost or forked"
            )
            token = await client.store.send_command("HGET", installation.keys.turn(turns[-1].turn_id), "last_token")
            uploader = f"{turns[-1].turn_id}.{hashlib.sha256(token).hexdigest()[:16]}."
            assert uploader in found.pointer.name, "no late upload is current"
    print(f"{CHATS * MESSAGES} messages, {off} times a host lost its power")
    assert off == OFF
