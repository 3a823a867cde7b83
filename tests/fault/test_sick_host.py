"""A host that cannot write HELIX_ROOT gives its turns back to a host that can, and no turn suffers.

The sick host is a real worker in a mount namespace and with a host name of its own, for which the project becomes
read-only.
"""

import asyncio
import json
import shutil
import subprocess

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnState
from tests.fault.conftest import Meeting
from tests.installation import Installation, WorkerProcess, asked
from tests.support import passes, wait_until

_TURNS = 80
_SICK = "sick-host"
#: Starts what follows in namespaces of its own, in which the project is a mount of its own, and the host another one.
_ENTER = 'hostname "$1" && mount --make-rprivate / && mount --bind "$2" "$2" && shift 2 && exec "$@"'


@pytest.fixture
def host_of_its_own(settings: Settings) -> list[str]:
    """Return the beginning of a command that runs the rest on a separate host, as far as files and name go."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("no unshare and nsenter (util-linux): no host of its own can be made")
    enter = ["unshare", "--mount", "--uts", "sh", "-c", _ENTER, "sh", _SICK, str(settings.root)]
    tried = subprocess.run([*enter, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace can be made here: {tried.stderr.strip()}")
    return enter


def remount(worker: WorkerProcess, settings: Settings, how: str) -> None:
    """Make the project read-only (``ro``) or writable (``rw``) for this worker alone."""
    command = ["nsenter", "--target", str(worker.pid), "--mount", "mount", "-o", f"remount,{how},bind"]
    subprocess.run([*command, str(settings.root)], check=True)


async def sick(client: TurnsClient) -> dict[str, str]:
    """Return the worker processes that report a sick machine, each with the reason."""
    return {each.name: each.sick for each in await client.workers.read_reports() if each.sick}


async def test_a_read_only_host_beside_a_healthy_one_costs_no_turn_anything(
    host_of_its_own: list[str], scripted: Installation, meeting: Meeting
) -> None:
    scripted.change(run_slots=4, stalled_seconds=10.0)
    one = scripted.worker(within=host_of_its_own)
    remount(one, scripted.settings, "ro")
    client = scripted.client
    first = await scripted.ask("quick", "first")
    await wait_until(lambda: sick(client))
    given_back = await client.reader.read_turn(first)
    assert (given_back.state, given_back.transients, given_back.strikes) == (TurnState.QUEUED, 0, 0)
    rest = [client.submitter.submit(asked("quick", f"s{number}")) for number in range(_TURNS - 1)]
    turn_ids = [first, *await asyncio.gather(*rest)]

    told = scripted.run("doctor", "--json")
    wrong = [one["message"] for one in json.loads(told.stdout)["findings"] if one["state"] == "wrong"]
    assert any(f"{_SICK} carries out no turns" in line and "Read-only" in line for line in wrong), wrong
    assert (await client.workers.read_state()).fleet.sick

    scripted.worker()  # a healthy one
    for turn_id in turn_ids:
        turn = await client.reader.await_result(turn_id, timeout=60)
        assert (turn.outcome, turn.transients, turn.strikes) == (Outcome.PASSED, 0, 0)
        assert turn.attempt == 1
    assert len(meeting.runs()) == _TURNS, "an agent was started twice"


async def test_a_host_that_is_well_again_goes_on_by_itself_in_the_same_process(
    host_of_its_own: list[str], scripted: Installation
) -> None:
    scripted.change(stalled_seconds=10.0)
    worker = scripted.worker(within=host_of_its_own)
    processes = worker.children()
    remount(worker, scripted.settings, "ro")
    client = scripted.client
    turn_id = await scripted.ask("quick")
    await wait_until(lambda: sick(client))
    await passes(2 * scripted.settings.stalled_seconds, "nobody takes it for stalled meanwhile, and restarts it")
    remount(worker, scripted.settings, "rw")
    assert (await client.reader.await_result(turn_id, timeout=60)).outcome is Outcome.PASSED
    await wait_until(lambda: not_sick(client))
    assert worker.children() == processes


async def not_sick(client: TurnsClient) -> bool:
    return not await sick(client)
