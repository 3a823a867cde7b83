"""Readiness is a probe that was claimed, and a worker that claims nothing is started again."""

import json
from dataclasses import replace

from api_client.client import TurnsClient
from api_client.contract.tasks import CHECK_QUEUE, PREFERRED_QUEUE, RUN_QUEUE
from api_client.index.search import Search
from api_client.index.selection import select_turns
from tests.installation import Installation, asked
from tests.support import wait_until


async def test_a_probe_of_each_kind_is_claimed_and_leaves_no_trace(installation: Installation) -> None:
    client = installation.client
    before = await client.prober.send_probes(0.3)
    assert [(found.queue, found.state) for found in before] == [(RUN_QUEUE, "silent"), (CHECK_QUEUE, "silent")]
    assert not await client.prober.is_ready(0.2)
    installation.worker()
    found = await client.prober.send_probes(60)
    assert [(each.queue, each.state) for each in found] == [(RUN_QUEUE, "claimed"), (CHECK_QUEUE, "claimed")]
    assert found[0].worker == found[1].worker
    assert await client.prober.is_ready(60)
    assert await select_turns(client.lists, Search()) == []
    assert await client.store.redis.exists(installation.keys.totals) == 0
    told = {
        name: json.loads(text) for name, text in (await client.store.redis.hgetall(installation.keys.workers)).items()
    }
    assert sorted(queue for each in told.values() for queue in each["queues"]) == [
        CHECK_QUEUE,
        RUN_QUEUE,
        PREFERRED_QUEUE,
    ]
    assert len({each["sessions"] for each in told.values()} - {""}) == 1
    assert {found[0].worker.encode()} == set(told)
    [each] = told.values()
    assert (each["slots"], each["free"], each["check_slots"], each["check_free"]) == (16, 16, 2, 2)


async def test_workers_whose_slots_are_all_at_work_are_busy_not_silent(installation: Installation) -> None:
    installation.play("- attempts: [[hang]]\n", "slow", run_slots=1)
    installation.worker()
    client = installation.client
    turn_id = await client.submitter.submit(asked("hello", "s", model="slow"))
    await wait_until(lambda: _running(client, turn_id))

    async def seen() -> bool:
        run, check = await client.prober.send_probes(3.0)
        assert run.state == "busy"
        return check.state == "claimed"

    await wait_until(seen)
    await wait_until(lambda: client.prober.is_ready(3.0))
    await client.canceller.cancel(turn_id)
    await client.reader.await_result(turn_id, timeout=60)


async def _running(client: TurnsClient, turn_id: str) -> bool:
    return (await client.reader.read_turn(turn_id)).state == "running"


async def test_a_worker_that_is_alive_and_takes_no_message_is_started_again_and_turns_go_on(
    installation: Installation,
) -> None:
    impatient = replace(installation.settings, stalled_seconds=2.0, shutdown_seconds=0.0, kill_grace_seconds=0.5)
    worker = installation.worker(settings=impatient)
    before = worker.children()
    installation.store.execute_command(
        "ACL", "SETUSER", "default", "-brpop"
    )  # the broker refuses what takes messages alone
    try:
        # Nothing waits: only a probe that nobody claims can tell.
        await wait_until(lambda: "worker.stalled" in worker.log_file.read_text())
    finally:
        installation.store.execute_command("ACL", "SETUSER", "default", "+brpop")
    async with TurnsClient(impatient) as client:
        turn_id = await client.submitter.submit(asked("hello", "s"))
        await client.reader.await_result(turn_id, timeout=60)
    await wait_until(lambda: worker.children().get("1") not in {None, before["1"]})
    assert "worker.stalled" in worker.log_file.read_text()


def test_doctor_finds_nothing_wrong_with_a_sound_installation_and_says_what_an_unsound_one_lacks(
    installation: Installation,
) -> None:
    def findings(code: int) -> dict[str, dict[str, str]]:
        told = installation.run("doctor", "--json")
        assert told.returncode == code, told.stdout
        answer = json.loads(told.stdout)
        return {finding["check"]: finding for finding in answer["findings"]}

    lacking = findings(1)
    assert lacking["workers helix.run"]["state"] == lacking["workers helix.check"]["state"] == "wrong"
    assert "claim helix.check" not in lacking  # that nobody claims a probe follows from it
    assert "turns run worker" in lacking["workers helix.run"]["fix"]
    installation.worker()
    sound = findings(0)
    assert {finding["state"] for finding in sound.values()} <= {"ok", "warning"}
    assert {"store version", "store persistence", "store memory", "store clock", "waiting", "queues", "disk"} <= set(
        sound
    )
