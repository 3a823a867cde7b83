"""Strangers at a real relay: idle connections, guesses, and a proxy that nobody trusts; and what the doctor says."""

import asyncio
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from api_client.contract.settings import Settings
from tests.installation import Installation, RelayProcess, environ_of, run
from tests.support import wait_until
from worker.processes.program import Program, spawn_program

KEY = "0123456789abcdef" * 2
ROOM = 64


@pytest.fixture
def relay(installation: Installation) -> RelayProcess:
    return installation.relay(api_keys=(KEY,), max_connections=ROOM)


async def test_a_crowd_of_idle_connections_keeps_neither_health_checks_nor_callers_out(relay: RelayProcess) -> None:
    port = int(relay.url.rpartition(":")[2])
    idle = list[asyncio.StreamWriter]()
    statuses = list[int]()
    for address in ("127.0.0.1", "127.0.0.2"):
        for _ in range(3):
            for _ in range(ROOM):
                _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
                idle.append(writer)
            async with httpx2.AsyncClient(base_url=relay.url, timeout=60) as http:
                statuses.append((await http.get("/healthz")).status_code)
                answer = await http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
                statuses.append(answer.status_code)
    for writer in idle:
        writer.close()
    assert statuses == [200] * 12


async def test_wrong_keys_meet_a_brake_whatever_address_they_claim_to_come_from(relay: RelayProcess) -> None:
    async with httpx2.AsyncClient(base_url=relay.url, timeout=60) as http:
        tried = [
            await http.get(
                "/v1/models",
                headers={"authorization": f"Bearer guess {number}", "x-forwarded-for": f"203.0.113.{number}"},
            )
            for number in range(60)
        ]
    compared = sum(answer.status_code == 401 for answer in tried)
    seconds = sum(answer.elapsed.total_seconds() for answer in tried)
    assert {answer.status_code for answer in tried} == {401, 429}
    assert 10 <= compared <= 11 + seconds / 6


async def test_the_doctor_names_a_proxy_that_is_not_trusted_and_keys_that_can_be_guessed(relay: RelayProcess) -> None:
    async with httpx2.AsyncClient(base_url=relay.url, timeout=60) as http:
        await http.get("/healthz", headers={"x-forwarded-for": "203.0.113.1"})
    said = run(replace(relay.settings, forwarding_keys=("a", KEY[::-1])), "doctor").stdout
    assert "127.0.0.1 sends X-Forwarded headers to the relay and is not trusted" in said
    assert "set HELIX_TRUSTED_PROXIES=127.0.0.1 for the relay" in said
    assert "1 of 2 in HELIX_FORWARDING_KEYS have less than 128 bits" in said
    assert "HELIX_API_KEYS have" not in said


async def test_a_log_and_what_flower_keeps_are_for_their_user_only(settings: Settings, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        kept = tmp_path / "flower.dat"
        code = (
            "import worker.cli.installation.flower as flower\n"
            f"flower.app.start = lambda argv: open({str(kept)!r}, 'w').close()\nflower.main()"
        )
        process = spawn_program(
            Program(name="x", command=[sys.executable, "-c", code], environ=environ_of(settings)), tmp_path / "x.log"
        )
        await wait_until(lambda: process.poll() is not None)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (kept, tmp_path / "x.log")} == {0o600}
