"""The relay is killed while it streams: the turn continues, and a reader that comes back misses nothing."""

import json
from collections.abc import Iterator

import httpx2
import pytest

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome
from tests.fault.conftest import Meeting, judged
from tests.installation import Installation, RelayProcess


@pytest.fixture
def relay(scripted: Installation) -> RelayProcess:
    return scripted.relay()


def events_of(response: httpx2.Response) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the id and data of each event of an SSE response."""
    event_id = ""
    for line in response.iter_lines():
        if line.startswith("id: "):
            event_id = line.removeprefix("id: ")
        elif line.startswith("data: "):
            yield event_id, json.loads(line.removeprefix("data: "))


def watch_until_killed(relay: RelayProcess, turn_id: str) -> tuple[list[int], str]:
    """Read events and kill the relay in the middle of the answer; return the seen numbers and the last id."""
    seen: list[int] = []
    last_id = ""
    try:
        with httpx2.stream("GET", f"{relay.url}/v1/turns/{turn_id}/events", timeout=60) as response:
            for event_id, event in events_of(response):
                seen.append(int(str(event["seq"])))
                last_id = event_id
                if event["kind"] == "attempt.output":
                    relay.kill()
    except httpx2.HTTPError:
        return seen, last_id
    raise AssertionError("the stream ended as if nothing had happened")


async def test_a_reader_comes_back_to_another_relay_and_sees_each_event_once(
    relay: RelayProcess,
    client: TurnsClient,
    meeting: Meeting,
    scripted: Installation,
) -> None:
    scripted.worker()
    body = {"model": "scripted", "messages": [{"role": "user", "content": "held"}]}
    turn_id = httpx2.post(f"{relay.url}/v1/turns", json=body, timeout=60).raise_for_status().json()["turn_id"]
    seen, last_id = watch_until_killed(relay, turn_id)
    meeting.go()
    relay.start()
    url = f"{relay.url}/v1/turns/{turn_id}/events"
    with httpx2.stream("GET", url, headers={"Last-Event-ID": last_id}, timeout=60) as response:
        seen += [int(str(event["seq"])) for _, event in events_of(response)]
    relay.kill()
    turn, _ = await judged(client, turn_id)
    assert turn.outcome is Outcome.PASSED
    assert turn.delivery == 1, "the agent never noticed"
    assert seen == list(range(1, turn.seq + 1))
