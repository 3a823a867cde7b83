"""The real CLI reads the image of a message with its own tool: the model is sent the picture itself."""

from base64 import b64encode
from collections.abc import Callable
from typing import Any

from api_client.client import TurnsClient
from api_client.contract.image import read_image
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome
from tests.claude.stub import Stub, calls, says
from tests.installation import WorkerProcess, asked
from worker.cli.installation.openwebui import draw_icon


async def test_claude_reads_the_image_that_a_message_names(
    claude_settings: Settings, worker_process: Callable[..., WorkerProcess], stub: Stub
) -> None:
    image = read_image("data:image/png;base64," + b64encode(draw_icon("a")).decode())
    path = claude_settings.sessions_dir / "s" / image.path
    stub.replies = [calls("Read", file_path=str(path)), says("Ein Ring.\n\n<!-- STEP: what -->")]
    worker_process(settings=claude_settings)
    told = f"Was ist das?\n[Bild des Nutzers: {image.path}]"
    request = asked(told, "s", model="helix-consultant", images=(image,))
    async with TurnsClient(claude_settings) as client:
        turn = await client.reader.await_result(await client.submitter.submit(request), timeout=90)
    assert turn.outcome is Outcome.PASSED
    assert "input/image-" in str(stub.requests[0]["messages"])
    assert [block["source"]["media_type"] for block in _images(stub.requests[1])] == ["image/png"]


def _images(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The pictures in a request's tool results."""
    found = []
    for message in request["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else []:
            inner = block.get("content") if block["type"] == "tool_result" else None
            found += [part for part in inner if part["type"] == "image"] if isinstance(inner, list) else []
    return found
