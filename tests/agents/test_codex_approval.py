"""A person answers for a tool call of the real Codex: its hook blocks the call, and another run makes it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnState
from tests.agents.running import RUNNERS, program_of
from tests.agents.stub import Services, StubReply, at_once, calls, said_in, says
from tests.approval_steps import Workers, killed_after_the_call, killed_before_the_call, submitted, waiting
from tests.support import processes_with, put, wait_until

pytestmark = [pytest.mark.long, pytest.mark.parametrize("name", ["codex"], indirect=True)]
MADE = "echo made >> it-ran"
POLICY = """
rules: []
tools:
  - {tool: Bash, arguments: {command: "echo*"}, do: ask, wait_seconds: 600}
  - {tool: Bash, arguments: {command: "rm*"}, do: deny}
"""


class Calling(Services):
    """Makes its call for each message, and ends behind the call's result."""

    call = calls("exec_command", cmd=MADE)

    def take(self, request: dict[str, Any]) -> StubReply:
        return says("done") if said_in(request)[-1]["type"] == "function_call_output" else self.call


@pytest.fixture
def services() -> Iterator[Calling]:
    with Calling([]) as found:
        yield found


@pytest.fixture
def asking(name: str, settings: Settings, services: Calling, tmp_path: Path) -> Settings:
    points = tmp_path / "points"
    points.mkdir()
    settings.root.mkdir(exist_ok=True)
    (settings.root / "policy.yaml").write_text(POLICY)
    return replace(
        settings,
        models={"helix": RUNNERS[name]},
        policy=str(settings.root / "policy.yaml"),
        openai_url=f"{services.url}/v1",
        openai_api_key="sk-stub",
        agent_path=str(Path(str(program_of(name))).resolve()),  # in a sandbox a link to it does not find its package
        failpoint=str(points),
        lease_seconds=3.0,
        kill_grace_seconds=0.3,
    )


def ran(settings: Settings) -> list[str]:
    """What the call wrote, wherever it ran."""
    return [path.read_text() for path in settings.sessions_dir.rglob("it-ran")]


@pytest.mark.parametrize("sandbox", ["auto", "off"])
@pytest.mark.parametrize("kind", ["approve", "reject"])
async def test_nothing_is_held_while_a_person_thinks_and_the_call_runs_only_after_a_yes(
    asking: Settings, services: Calling, worker_process: Workers, kind: str, sandbox: str
) -> None:
    asking = replace(asking, sandbox=sandbox)
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        assert (turn.interruption.asked["tool"], turn.interruption.asked["arguments"]) == ("Bash", {"command": MADE})
        assert (turn.lease_until, turn.next) == (0, "")
        assert not processes_with(f"HELIX_AGENT_MARK={turn.turn_id}.")
        assert (ran(asking), len(services.requests)) == ([], 1)
        await client.inbox.decide_turn(turn.turn_id, kind, by="alice", note="not today")
        turn = await client.reader.await_result(turn.turn_id, timeout=60)
    assert (turn.outcome, turn.interruption, turn.response) == (Outcome.PASSED, None, "done")
    assert ran(asking) == (["made\n"] if kind == "approve" else [])
    told = json.dumps(services.requests[-1])
    assert ("Make it now: Bash" if kind == "approve" else "They write: not today") in told
    assert "Push it" in told, "it goes on in its session"


async def test_silence_is_a_no(asking: Settings, services: Calling, worker_process: Workers) -> None:
    Path(asking.policy).write_text(POLICY.replace("wait_seconds: 600", "wait_seconds: 1"))
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await client.reader.await_result(await submitted(client), timeout=60)
    assert (turn.outcome, turn.decision.by) == (Outcome.PASSED, "timeout")
    assert ran(asking) == []


async def test_a_rule_denies_without_anybody(asking: Settings, services: Calling, worker_process: Workers) -> None:
    services.call = calls("exec_command", cmd="rm -rf output")
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await client.reader.await_result(await submitted(client), timeout=60)
    assert (turn.outcome, turn.response) == (Outcome.PASSED, "done")
    assert "blocked by PreToolUse hook" in json.dumps(services.requests[-1])


async def test_no_spelling_of_a_denied_call_runs(asking: Settings, services: Calling, worker_process: Workers) -> None:
    key = asking.root / "secrets" / "key.txt"
    key.parent.mkdir()
    put(key, "top-secret-text")
    rules = [
        {"folder": "secrets/*", "do": "deny"},
        {"tool": "Bash", "arguments": {"command": "touch *"}, "do": "deny"},
    ]
    Path(asking.policy).write_text(json.dumps({"rules": [], "tools": rules}))
    touch = "touch it-ran"
    tries = [touch, "touch\tit-ran", "/usr/bin/touch it-ran", "t''ouch it-ran", "A=1 touch it-ran", f"sh -c '{touch}'"]
    tries += [
        f"if true; then {touch}; fi",
        "X=touch; $X it-ran",
        f"timeout 5 {touch}",
        f"cat {key}",
        f"grep -r . {asking.root}",
    ]
    services.replies = [*(calls("exec_command", cmd=each) for each in tries), says("done")]
    services.take = lambda request: services.replies[min(len(services.requests), len(services.replies)) - 1]  # type: ignore[method-assign]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await client.reader.await_result(await submitted(client), timeout=120)
    assert (turn.outcome, turn.response) == (Outcome.PASSED, "done")
    told = json.dumps(services.requests[-1])
    assert ran(asking) == []
    assert "top-secret-text" not in told
    assert told.count("blocked by PreToolUse hook") == len(tries)


async def test_nothing_is_typed_into_a_running_command(
    asking: Settings, services: Calling, worker_process: Workers
) -> None:
    """Codex asks no hook about that."""
    services.call = calls("exec_command", cmd="sh", tty=True)
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        await client.reader.await_result(await submitted(client), timeout=60)
    assert "TTY execution is disabled" in json.dumps(services.requests[-1])


@pytest.mark.parametrize("point", ["agent.started", "permit.asked"])
async def test_a_worker_killed_before_the_call_ran_needs_no_second_yes(
    point: str, asking: Settings, worker_process: Workers, tmp_path: Path
) -> None:
    turn = await killed_before_the_call(asking, worker_process, tmp_path / "points", point)
    assert turn.outcome is Outcome.PASSED
    assert ran(asking) == ["made\n"]


async def test_a_worker_killed_after_the_call_ran_asks_again_before_it_runs_twice(
    asking: Settings, services: Calling, worker_process: Workers
) -> None:
    services.call = calls("exec_command", cmd=f"{MADE}; sleep 600")
    turn = await killed_after_the_call(asking, worker_process, lambda: ran(asking) == ["made\n"])
    assert turn.outcome is Outcome.PASSED
    assert ran(asking) == ["made\n"]


async def test_a_codex_that_asks_no_hook_is_a_wrong_version(
    asking: Settings, worker_process: Workers, tmp_path: Path
) -> None:
    deaf = tmp_path / "codex"
    deaf.write_text(f'#!/bin/bash\nexec {asking.agent_path} "${{@/hooks.PreToolUse=*/web_search=\\"disabled\\"}}"\n')
    deaf.chmod(0o755)
    worker_process(settings=replace(asking, agent_path=str(deaf), sandbox="off"))
    async with TurnsClient(asking) as client:
        turn_id = await submitted(client)
        turn = await client.reader.await_result(turn_id, timeout=60)
        [attempt] = await client.reader.read_attempts(turn_id)
    assert turn.outcome is Outcome.ERROR
    assert "without asking the hook" in attempt.completion["reason"]


def shell(command: str) -> StubReply:
    return calls("exec_command", cmd=command)


def calls_of_this_run(request: dict[str, Any]) -> int:
    """How many calls have a result behind the last message of ours."""
    said = said_in(request)
    last = max(number for number, each in enumerate(said) if each.get("role") == "user")
    return sum(each["type"] == "function_call_output" for each in said[last:])


async def suspended_after(client: TurnsClient, turn_id: str, at: float) -> None:
    async def suspended() -> bool:
        turn = await client.reader.read_turn(turn_id)
        return turn.state is TurnState.SUSPENDED and turn.suspended_at > at

    await wait_until(suspended)


async def test_of_two_calls_in_one_message_each_is_asked_about_and_runs_once(
    asking: Settings, services: Calling, worker_process: Workers
) -> None:
    """The model makes those again of which it heard that they had not run."""
    commands = {name: f"echo {name} >> it-ran-{name}; echo ran-{name}" for name in ("one", "two")}

    def take(request: dict[str, Any]) -> StubReply:
        heard = json.dumps([each for each in said_in(request) if each.get("type") == "function_call_output"])
        left = [shell(command) for name, command in commands.items() if f"ran-{name}\\n" not in heard]
        return at_once(*left) if left else says("done")

    services.take = take  # type: ignore[method-assign]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn_id, at = await submitted(client), 0.0
        for _ in commands:
            await suspended_after(client, turn_id, at)
            at = (await client.reader.read_turn(turn_id)).suspended_at
            await client.inbox.decide_turn(turn_id, "approve", by="alice")
        turn = await client.reader.await_result(turn_id, timeout=60)
    assert (turn.outcome, turn.interruptions) == (Outcome.PASSED, {"tool_call": {"asked": 2}})
    for name in commands:
        [file] = asking.sessions_dir.rglob(f"it-ran-{name}")
        assert file.read_text() == f"{name}\n"


#: Answers yes at the approval server's path, in its place.
_FORGES = """
import glob, os, socket
for folder in glob.glob("/tmp/helix-net-*"):
    try:
        os.rename(folder, folder + ".aside")
        os.mkdir(folder)
        server = socket.socket(socket.AF_UNIX)
        server.bind(folder + "/alive.sock")
        server.listen()
    except OSError:
        pass
if os.fork() == 0:
    os.setsid()
    while True:
        line, _ = server.accept()
        line.recv(65536)
        line.sendall(b"yes")
        line.close()
"""


@pytest.mark.parametrize(
    "forging", ["mkdir -p marks; touch marks/permit", f"python3 -c '{_FORGES}' >/dev/null 2>&1"], ids=["file", "server"]
)
async def test_an_agent_in_a_sandbox_makes_no_permit(
    asking: Settings, services: Calling, worker_process: Workers, forging: str
) -> None:
    asking = replace(asking, sandbox="required")
    playing = [shell(MADE), shell(forging), shell(MADE), shell(MADE)]

    def take(request: dict[str, Any]) -> StubReply:
        outputs = calls_of_this_run(request)
        return playing[outputs] if outputs < len(playing) else says("done")

    services.take = take  # type: ignore[method-assign]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn_id = await submitted(client)
        turn = await waiting(client, turn_id)
        await client.inbox.decide_turn(turn_id, "approve", by="alice")

        async def over() -> bool:
            now = await client.reader.read_turn(turn_id)
            return now.outcome is not None or (
                now.state is TurnState.SUSPENDED and now.suspended_at > turn.suspended_at
            )

        await wait_until(over)
    assert ran(asking) == ["made\n"]


async def test_a_call_is_asked_about_again_where_another_one_ran_before_it(
    asking: Settings, services: Calling, worker_process: Workers
) -> None:
    Path(asking.policy).write_text(POLICY.replace("echo*", "sh *"))
    scripts = iter(["GOOD", "EVIL", "EVIL"])
    script = next(scripts)

    def take(request: dict[str, Any]) -> StubReply:
        nonlocal script
        outputs = calls_of_this_run(request)
        if outputs == 0:
            reply, script = shell(f"printf 'echo {script} >> it-ran' > build.sh"), next(scripts, "EVIL")
            return reply
        return shell("sh build.sh") if outputs == 1 else says("done")

    services.take = take  # type: ignore[method-assign]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn_id = await submitted(client)
        turn = await waiting(client, turn_id)
        await client.inbox.decide_turn(turn_id, "approve", by="alice")
        await suspended_after(client, turn_id, turn.suspended_at)
        suspended = [each for each in await client.reader.read_events(turn_id) if each.kind == "turn.suspended"]
    assert (ran(asking), suspended[-1].data["reason"]) == ([], "asked_again")
