"""Tasks by the official MCP client through ``turns run mcp``, while relay and worker are killed by SIGKILL."""

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any

import redis
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from api_client.contract.keys import Keys
from tests.installation import Installation, environ_of

#: Each agent takes a moment, so that a kill meets some at work.
SCRIPT = '- attempts: [[{wait: 0.2}, say: "Answered.\\n\\n<!-- STEP: done -->"]]'
#: Calls that are open at once.
_AT_ONCE = 12


@dataclass
class Report:
    """What became of the tasks: answered ones, turns that the store has, kills, and every other result."""

    tasks: int
    answered: int = 0
    turns: int = 0
    kills: dict[str, int] = field(default_factory=lambda: {"relay": 0, "worker": 0})
    others: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lost, doubled = self.tasks - self.answered, max(0, self.turns - self.tasks)
        kills = ", ".join(f"{number} kills of the {what}" for what, number in self.kills.items())
        return f"{self.tasks} tasks, {kills}: {lost} lost, {doubled} doubled"

    @property
    def right(self) -> bool:
        """Whether each task became one turn, and was answered."""
        return self.answered == self.turns == self.tasks


def server(url: str, environ: dict[str, str], *arguments: str) -> StdioServerParameters:
    """The face, as an MCP client starts it."""
    face = ["-c", "from worker.cli import main; main()", "run", "mcp", "--url", url, "--model", "scripted", *arguments]
    return StdioServerParameters(command=sys.executable, args=face, env=environ)


def turns_of(installation: Installation) -> int:
    """How many turns the store has."""
    settings = installation.settings
    with redis.Redis.from_url(settings.redis_url) as store:
        return sum(1 for _ in store.scan_iter(Keys(settings.namespace).log("*"), count=1000))


async def driven(installation: Installation, tasks: int, tasks_between: int) -> Report:
    """Submit tasks and wait for them; after every so many that ended, relay or worker is killed in turn."""
    report = Report(tasks)
    installation.play(SCRIPT, lease_seconds=3.0)
    relay, workers = installation.relay(), [installation.worker()]
    places, due = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(0)
    ended = 0

    async def one(client: Client, number: int) -> None:
        nonlocal ended
        async with places:
            found: Any = await client.call_tool("submit_turn", {"message": f"task {number}", "wait_seconds": 600})
        task = found.structured_content or {}
        if task.get("status") == "completed" and "Answered." in task["answer"]:
            report.answered += 1
        else:
            report.others.append(str(task or found.content))
        ended += 1
        if ended % tasks_between == 0 and ended < tasks:
            due.release()

    async def kill() -> None:
        for number in range((tasks - 1) // tasks_between):
            await due.acquire()
            if number % 2 == 0:
                report.kills["relay"] += 1
                await asyncio.to_thread(relay.kill)
                await asyncio.to_thread(relay.start)
            else:
                report.kills["worker"] += 1
                await asyncio.to_thread(workers.pop().kill)
                workers.append(await asyncio.to_thread(installation.worker))

    async with Client(server(relay.url, environ_of(installation.settings))) as client:
        killing = asyncio.create_task(kill())
        await asyncio.gather(*(one(client, number) for number in range(tasks)))
        await killing
    report.turns = turns_of(installation)
    return report
