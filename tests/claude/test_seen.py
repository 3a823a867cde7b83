"""People see which agents are kept, how runs began, and can end a kept one."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from click.testing import CliRunner, Result

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from tests.claude.stub import Stub, says
from tests.installation import WorkerProcess, environ_of
from tests.support import wait_until
from worker.cli import cli

ANSWER = "Fertig.\n\n<!-- STEP: done -->"


async def test_a_kept_agent_is_seen_and_can_be_ended_from_anywhere(
    claude_settings: Settings, stub: Stub, worker_process: Callable[..., WorkerProcess]
) -> None:
    stub.replies = [says(ANSWER)]
    settings = replace(claude_settings, claude_warm_seconds=300.0, sandbox="off")
    worker_process(settings=settings)
    messages: list[dict[str, str]] = []

    async def turns(*arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, cli, arguments, env=environ_of(settings))

    async def kept() -> list[dict[str, Any]]:
        shown = json.loads((await turns("worker", "list", "--json")).stdout)
        return [each for line in shown["workers"] for each in line["kept"]]

    async with TurnsClient(settings) as client:

        async def ask(text: str) -> dict[str, Any]:
            messages.append({"role": "user", "content": text})
            request = TurnRequest(model="helix-consultant", messages=tuple(messages), session_id="chat-7")
            turn = await client.reader.await_result(await client.submitter.submit(request), timeout=60)
            messages.append({"role": "assistant", "content": turn.response})
            [attempt] = await client.reader.read_attempts(turn.turn_id)
            return attempt.completion["evidence"]

        assert (await turns("worker", "close-agent", "chat-7")).exit_code == 1, "none is kept yet"
        began = [(await ask(text))["start"] for text in ("eins", "zwei")]
        assert began == ["cold", "warm"]
        [agent] = await wait_until(kept)
        assert agent["session_id"] == "chat-7"
        assert 20 * 2**20 < agent["bytes"] < 500 * 2**20
        assert "keeps chat-7 (" in (await turns("worker", "list")).stdout

        closed = await turns("worker", "close-agent", "chat-7")
        assert (closed.exit_code, closed.stdout.endswith(" ends it within seconds\n")) == (0, True), closed.output

        async def gone() -> bool:
            return not await kept()

        await wait_until(gone)
        assert (await ask("drei"))["start"] == "cold"
        counted = await client.figures.read_totals()
        found = {name: value for name, value in counted.items() if name.startswith("time.start.le")}
        assert sum(value for name, value in found.items() if "|warm|" in name) == 1
        assert sum(value for name, value in found.items() if "|cold|" in name) == 2
