"""OpenAI's Responses API, the official client as referee: each form over a fake turn, the rest over a real worker."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from api_client.contract.errors import StoreUnavailable
from tests.fault.conftest import Meeting
from tests.installation import Installation, RelayProcess
from tests.integration.conftest import Serve, async_client, sync_client
from tests.integration.test_web_openai import FAILED, TRICKY
from tests.support import wait_until
from tests.unit.web.fake import TURN_ID, FakeTurns, event, finished, passed

ASK: Any = {"model": "scripted", "input": "Hallo"}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
KINDS = [
    "response.created",
    "response.queued",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def strict(found: Any) -> Any:
    """What came, read again by OpenAI's own types without any leniency."""
    if isinstance(found, Response):
        return Response.model_validate(found.model_dump(warnings=False), strict=True)
    return EVENT.validate_python(found.model_dump(warnings=False), strict=True)


def test_a_whole_response_is_one_of_openais(serve: Serve) -> None:
    with sync_client(serve(FakeTurns(passed(f"{TRICKY} <!-- STEP: what -->")))) as client:
        response = strict(client.responses.create(**ASK))
    assert (response.status, response.output_text, response.id) == ("completed", TRICKY, f"resp_{TURN_ID}")
    assert response.usage is not None
    assert response.usage.total_tokens == 0


async def test_the_async_client_agrees(serve: Serve) -> None:
    async with async_client(serve(FakeTurns(passed(TRICKY)))) as client:
        assert strict(await client.responses.create(**ASK)).output_text == TRICKY
        events = [strict(item) async for item in await client.responses.create(**ASK, stream=True)]
        async with client.responses.stream(**ASK) as stream:
            assert (await stream.get_final_response()).output_text == TRICKY
    assert [item.type for item in events] == KINDS
    assert events[-1].response.output_text == TRICKY


def test_a_stream_is_made_of_openais_events(serve: Serve) -> None:
    with sync_client(serve(FakeTurns(passed(TRICKY)))) as client:
        events = [strict(item) for item in client.responses.create(**ASK, stream=True)]
    assert [item.type for item in events] == KINDS
    assert [item.sequence_number for item in events] == list(range(len(KINDS)))
    assert "".join(item.delta for item in events if item.type == "response.output_text.delta") == TRICKY


def test_a_turn_without_an_answer_is_a_failed_response_or_an_error(serve: Serve) -> None:
    turns = FakeTurns(FAILED)
    with sync_client(serve(turns)) as client:
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            client.responses.create(**ASK)
        assert caught.value.code == "failed"
        *_, last = client.responses.create(**ASK, stream=True)
        assert strict(last).type == "response.failed"
        found = strict(client.responses.retrieve(f"resp_{TURN_ID}"))
        assert (found.status, found.error.code) == ("failed", "server_error")
        assert "MISSING_STEP_MARKER" in found.error.message
    assert len(turns.submitted) == 2  # no attempt of the client's own


def test_a_cancelled_turn_is_a_cancelled_response(serve: Serve) -> None:
    turns = FakeTurns([event(1, "turn.queued", position=0), finished(2, "cancelled", error={"message": "m"})])
    with sync_client(serve(turns)) as client:
        assert strict(client.responses.cancel(f"resp_{TURN_ID}")).status == "cancelled"
        *_, last = client.responses.retrieve(f"resp_{TURN_ID}", stream=True)
        assert (last.type, last.response.status) == ("response.failed", "cancelled")
    assert turns.cancelled == 1


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), ValueError("bug")])
def test_a_stream_that_is_lost_is_an_error_of_the_client(serve: Serve, fault: Exception) -> None:
    with sync_client(serve(FakeTurns([event(1, "turn.queued"), fault]))) as client:
        with pytest.raises(openai.APIError) as caught:
            list(client.responses.create(**ASK, stream=True))
        assert caught.value.code in {"stream_lost", "internal_error"}
        assert "bug" not in str(caught.value)


def test_refusals_are_the_clients_own_errors(serve: Serve) -> None:
    with sync_client(serve(FakeTurns())) as client:
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            client.responses.create(**ASK, previous_response_id="resp_1")
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_none")


@pytest.fixture
def relay(installation: Installation, meeting: Meeting) -> RelayProcess:
    """A real relay and a real worker, whose agent waits for the test in the middle of its answer."""
    installation.change(**meeting.settings())
    installation.worker()
    return installation.relay()


@pytest.fixture
def meeting(tmp_path: Any) -> Meeting:
    return Meeting(tmp_path / "meet")


async def test_a_background_response_outlives_its_relay_and_is_read_resumed_and_cancelled(
    relay: RelayProcess, meeting: Meeting
) -> None:
    await asyncio.to_thread(_quick, relay.url)
    before = len(meeting.runs())
    async with async_client(relay.url) as client:
        held: Any = {"model": "scripted", "input": "held", "background": True}
        response = strict(await client.responses.create(**held))
        await wait_until(lambda: meeting.begun)
        assert strict(await client.responses.retrieve(response.id)).status == "in_progress"
        seen = []
        async for item in await client.responses.retrieve(response.id, stream=True):
            seen.append(strict(item))
            if item.type == "response.in_progress":
                break
        relay.kill()
        relay.start()
        rest = await client.responses.retrieve(response.id, stream=True, starting_after=seen[-1].sequence_number)
        meeting.go()
        seen += [strict(item) async for item in rest]
        assert [item.type for item in seen] == KINDS
        assert [item.sequence_number for item in seen] == list(range(len(KINDS)))
        again = [strict(item) async for item in await client.responses.retrieve(response.id, stream=True)]
        assert again == seen
        final = strict(await client.responses.retrieve(response.id))
        assert (final.status, final.output_text) == ("completed", "Ich fange an ... und bin fertig.")
        assert final == seen[-1].response
        assert len(meeting.runs()) == before + 1
        # Calling off what is finished changes nothing; what runs is called off.
        assert strict(await client.responses.cancel(response.id)) == final
        (meeting.directory / "go").unlink()
        (meeting.directory / "begun").unlink()
        response = await client.responses.create(**held)
        await wait_until(lambda: meeting.begun)
        await client.responses.cancel(response.id)

        async def cancelled() -> bool:
            return (await client.responses.retrieve(response.id)).status == "cancelled"

        await wait_until(cancelled)


def _quick(url: str) -> None:
    """The official client without asyncio."""
    quick: Any = {"model": "scripted", "input": "quick"}
    with sync_client(url) as client:
        events = [strict(item) for item in client.responses.create(**quick, background=True, stream=True)]
        assert [item.type for item in events] == KINDS
        found = strict(client.responses.retrieve(events[0].response.id))
        assert (found.output_text, found.background) == ("Sofort fertig.", True)
        assert strict(client.responses.create(**quick)).output_text == "Sofort fertig."
