"""A person answers for a tool call of the real Claude CLI: durable, once, and no is what silence means."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.errors import BadRequest, TurnNotSuspended
from api_client.contract.settings import Settings
from api_client.contract.tool_calls import MAX_QUESTIONS, ToolQuestion
from api_client.contract.turn import Outcome, TurnRequest, TurnState
from tests.approval_steps import Workers, killed_after_the_call, killed_before_the_call, waiting
from tests.approval_steps import submitted as asking_for
from tests.claude.stub import Reply, Stub, calls, says, told
from tests.lab.claims.scenes import PASS_2
from tests.support import processes_with, put, wait_until

POLICY = """
rules: []
tools:
  - {tool: Bash, arguments: {command: "touch *"}, do: ask, wait_seconds: 600}
  - {tool: Bash, arguments: {command: "rm *"}, do: deny}
  - {tool: Bash, arguments: {command: "echo *"}, do: run}
"""
END = says("Fertig.\n\n<!-- STEP: done -->")


@pytest.fixture
def asking(claude_settings: Settings) -> Settings:
    """The agent has a shell, and nothing of it may run but by a rule."""
    path = claude_settings.root / "policy.yaml"
    path.write_text(POLICY)
    return replace(claude_settings, policy=str(path), claude_tools=("Bash", "Write", "Read"))


def shell(command: str, *before: str) -> Reply:
    return Reply(chunks=before, tool=("Bash", {"command": command}), stop_reason="tool_use")


ASKED: dict[str, Any] = {
    "model": "helix-consultant",
    "messages": ({"role": "user", "content": "Baue es"},),
    "locale": "de",
}


def request(**more: Any) -> TurnRequest:
    return TurnRequest(**{**ASKED, "session_id": "s", **more})


async def submitted(client: TurnsClient, **more: Any) -> str:
    return await asking_for(client, **{**ASKED, **more})


def made(settings: Settings, name: str) -> list[str]:
    """Every file of this name that agents made."""
    return sorted(str(path) for path in settings.sessions_dir.rglob(name) if path.is_file())


async def test_a_call_waits_for_a_yes_and_then_runs_once_in_the_place_where_it_was_asked(
    asking: Settings, worker_process: Workers, stub: Stub
) -> None:
    stub.replies = [
        shell("echo before > output/first.txt", "Erst das. "),
        shell("touch output/made.txt", "Nun die Datei."),
        END,
    ]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        question = ToolQuestion.from_interruption(turn.interruption)
        assert (question.tool, question.arguments) == ("Bash", {"command": "touch output/made.txt"})
        assert (turn.lease_until, turn.next, turn.interruption.silence) == (0, "", "reject")
        assert not processes_with(f"HELIX_AGENT_MARK={turn.turn_id}."), "no slot and no process is held"
        assert made(asking, "made.txt") == []
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
        attempts = await client.reader.read_attempts(turn.turn_id)
    assert (turn.outcome, turn.attempt, turn.interruption) == (Outcome.PASSED, 1, None)
    assert turn.response.startswith("Nun die Datei.\n\nFertig.") or turn.response.startswith("Erst das.")
    [file] = made(asking, "made.txt")
    [first] = made(asking, "first.txt")
    assert Path(file).parent == Path(first).parent, "what it had written is there"
    assert attempts[0].deliveries == 2
    assert len(stub.requests) == 3, "nothing was asked of the model twice"


async def test_a_no_reaches_the_agent_with_the_note_and_the_call_never_runs(
    asking: Settings, worker_process: Workers, stub: Stub
) -> None:
    stub.replies = [shell("touch output/made.txt"), END]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        with pytest.raises(BadRequest):
            await client.inbox.decide_turn(turn.turn_id, "edit", by="alice", text="x")
        await client.inbox.decide_turn(turn.turn_id, "reject", by="alice", note="nicht am Freitag")
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
    assert turn.outcome is Outcome.PASSED
    assert made(asking, "made.txt") == []
    assert "nicht am Freitag" in json.dumps(stub.requests[-1]["messages"], ensure_ascii=False)


async def test_silence_is_a_no(asking: Settings, worker_process: Workers, stub: Stub) -> None:
    path = Path(asking.policy)
    path.write_text(POLICY.replace("wait_seconds: 600", "wait_seconds: 1"))
    stub.replies = [shell("touch output/made.txt"), END]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await client.reader.await_result(await submitted(client), timeout=120)
    assert (turn.outcome, turn.decision.by) == (Outcome.PASSED, "timeout")
    assert made(asking, "made.txt") == []


async def test_of_two_people_at_once_one_answers(asking: Settings, worker_process: Workers, stub: Stub) -> None:
    stub.replies = [shell("touch output/made.txt"), END]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        both = [client.inbox.decide_turn(turn.turn_id, kind, by=kind) for kind in ("approve", "reject")]
        said = await asyncio.gather(*both, return_exceptions=True)
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
    assert sum(isinstance(each, TurnNotSuspended) for each in said) == 1
    assert len(made(asking, "made.txt")) == (turn.decision.by == "approve")


async def test_a_rule_denies_and_another_lets_run_without_anybody(
    asking: Settings, worker_process: Workers, stub: Stub
) -> None:
    stub.replies = [
        shell("rm -rf output"),
        shell("echo ok > output/ok.txt; touch output/made.txt"),
        shell("ls"),
        END,
    ]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        assert turn.interruption.asked["arguments"]["command"].startswith("echo ok"), "what is joined is no plain echo"
        await client.inbox.decide_turn(turn.turn_id, "reject", by="alice")
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
    assert turn.outcome is Outcome.PASSED
    assert "erlaubt diesen Aufruf nicht" in json.dumps(stub.requests[1]["messages"], ensure_ascii=False)
    assert made(asking, "ok.txt") == made(asking, "made.txt") == []


async def test_no_spelling_of_a_denied_call_runs(asking: Settings, worker_process: Workers, stub: Stub) -> None:
    asking = replace(asking, claude_tools=("Bash", "Read", "Grep", "Glob", "Task"))
    secret = asking.root / "secrets" / "key.txt"
    secret.parent.mkdir()
    put(secret, "top-secret-text")
    rules = [
        {"folder": "secrets/*", "do": "deny"},
        {"tool": "Task", "do": "deny"},
        {"tool": "Bash", "arguments": {"command": "touch *"}, "do": "deny"},
        {"tool": "Bash", "do": "run"},
    ]
    Path(asking.policy).write_text(json.dumps({"rules": [], "tools": rules}))
    touch = "touch output/made.txt"
    spelled = [touch, touch.replace(" ", "\t"), f"/usr/bin/{touch}", f"t''{touch[1:]}", f"A=1 {touch}", f"env {touch}"]
    spelled += [f"if true; then {touch}; fi", f"sh -c '{touch}'", f"X=touch; $X {touch[6:]}", f"find . -exec {touch} +"]
    spelled += [
        f"cat {secret}",
        f"cd {secret.parent} && cat key.txt",
        f"grep -r top {asking.root}",
        f"python3 -c 'open(\"{secret}\")'",
    ]
    calls = [shell(each) for each in spelled]
    for tool, given in [
        ("Grep", {"pattern": "top", "path": str(secret.parent), "output_mode": "content"}),
        ("Grep", {"pattern": "top", "path": str(asking.root), "output_mode": "content"}),
        ("Glob", {"pattern": f"{secret.parent}/*"}),
        ("Read", {"file_path": str(secret)}),
        ("Agent", {"description": "x", "prompt": "x", "subagent_type": "general-purpose"}),
    ]:
        calls.append(Reply(chunks=(), tool=(tool, given), stop_reason="tool_use"))
    elsewhere = [shell(f"cd {asking.root}"), shell("cat secrets/key.txt"), shell("cd output")]
    calls.append(shell("cat ../../../../../../secrets/key.txt"))
    stub.replies = [*elsewhere, *calls, shell("echo harmless > ran.txt"), END]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await client.reader.await_result(await submitted(client), timeout=120)
    assert turn.outcome is Outcome.PASSED
    told_of = json.dumps(stub.requests[-1]["messages"], ensure_ascii=False)
    assert (made(asking, "made.txt"), len(made(asking, "ran.txt"))) == ([], 1)
    assert "top-secret-text" not in told_of
    assert told_of.count("erlaubt diesen Aufruf nicht") == len(calls)


async def test_a_worker_killed_while_it_waits_loses_no_question(
    asking: Settings, worker_process: Workers, stub: Stub
) -> None:
    stub.replies = [shell("touch output/made.txt"), END]
    first = worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        first.kill()
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        worker_process(settings=asking)
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
    assert turn.outcome is Outcome.PASSED
    assert len(made(asking, "made.txt")) == 1


@pytest.mark.parametrize("point", ["agent.started", "permit.asked"])
async def test_a_worker_killed_before_the_call_ran_needs_no_second_yes(
    point: str, asking: Settings, worker_process: Workers, stub: Stub, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    asking = replace(asking, failpoint=str(points), lease_seconds=3.0)
    stub.replies = [shell("touch output/made.txt"), END]
    turn = await killed_before_the_call(asking, worker_process, points, point, **ASKED)
    assert turn.outcome is Outcome.PASSED
    assert len(made(asking, "made.txt")) == 1


async def test_a_worker_killed_after_the_call_ran_asks_again_before_it_runs_twice(
    asking: Settings, worker_process: Workers, stub: Stub
) -> None:
    """The call counts itself; the model hangs after it, and the worker is killed there."""
    policy = Path(asking.policy)
    policy.write_text(POLICY.replace('"touch *"', '"printf *"'))
    counted = asking.root / "adr" / "count"
    counted.parent.mkdir()
    asking = replace(asking, writable=("adr",), lease_seconds=2.0)
    stub.replies = [shell(f"printf x >> {counted}"), Reply(chunks=("Es ",), hang_after=1), END]

    def ran() -> str:
        return counted.read_text() if len(stub.requests) >= 2 else ""

    turn = await killed_after_the_call(asking, worker_process, ran, **ASKED)
    assert turn.outcome is Outcome.PASSED
    assert counted.read_text() == "x"


async def test_a_run_that_ended_with_a_question_is_adopted_when_its_worker_died_with_it(
    asking: Settings, worker_process: Workers, stub: Stub, tmp_path: Path
) -> None:
    """And so is the run after the yes: its call has run, and nobody is asked about it again."""
    points = tmp_path / "points"
    points.mkdir()
    asking = replace(asking, failpoint=str(points), lease_seconds=3.0)
    put(points / "agent.ended", "kill")
    stub.replies = [
        shell("echo before > output/first.txt", "Erst das. "),
        shell("touch output/made.txt", "Nun die Datei."),
        END,
    ]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        assert (turn.delivery, turn.interruption.delivery) == (2, 1), "the question is that of the run that was adopted"
        assert len(stub.requests) == 2, "nobody paid for it again"
        put(points / "agent.ended", "kill@2")
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
        [attempt] = await client.reader.read_attempts(turn.turn_id)
    assert (points / "agent.ended.2").exists(), "it was killed there too"
    assert (turn.outcome, turn.delivery, attempt.last_delivery) == (Outcome.PASSED, 4, 3)
    assert len(stub.requests) == 3
    [made_file], [first] = made(asking, "made.txt"), made(asking, "first.txt")
    assert Path(made_file).parent == Path(first).parent
    assert Path(first).parent.parent.name.endswith("-1-3"), "the files are where the adopted run left them"
    assert turn.response.startswith("Erst das. ")
    assert "Fertig." in turn.response


async def test_a_kept_cli_takes_no_message_whose_calls_have_rules_and_the_conversation_goes_on(
    asking: Settings, worker_process: Workers, stub: Stub
) -> None:
    """The first and the third message come by another key, which the rule is not about: they may be taken by one."""
    path = Path(asking.policy)
    path.write_text("rules: []\ntools:\n  - {tool: Write, do: ask, owners: [alice]}\n")
    asking = replace(asking, claude_warm_seconds=60.0, sandbox="off", claude_tools=("Write", "Read"))
    stub.replies = [says("Eins.\n\n<!-- STEP: done -->"), calls("Write", file_path="output/made.txt", content="x"), END]
    worker_process(settings=asking)
    said = [{"role": "user", "content": "erstens"}]
    async with TurnsClient(asking) as client:

        async def start(turn_id: str) -> str:
            [*_, last] = await client.reader.read_attempts(turn_id)
            return str(last.completion["evidence"].get("start", "cold"))

        first = await client.submitter.submit(request(messages=tuple(said)))
        turn = await client.reader.await_result(first, timeout=120)
        assert turn.outcome is Outcome.PASSED
        assert processes_with(f"HELIX_AGENT_MARK={first}."), (await client.reader.read_attempts(first))[0].completion
        said += [{"role": "assistant", "content": turn.response}, {"role": "user", "content": "zweitens"}]
        turn = await waiting(client, await submitted(client, key="alice", messages=tuple(said)))
        assert made(asking, "made.txt") == []
        assert "erstens" in json.dumps(told(stub.requests[-1])), "it goes on with the conversation"
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
        assert (turn.outcome, await start(turn.turn_id)) == (Outcome.PASSED, "cold")
        assert len(made(asking, "made.txt")) == 1
        said += [{"role": "assistant", "content": turn.response}, {"role": "user", "content": "drittens"}]
        stub.replies = [END]
        third = await client.submitter.submit(request(messages=tuple(said)))
        turn = await client.reader.await_result(third, timeout=120)
        assert (turn.outcome, await start(third)) == (Outcome.PASSED, "cold"), (
            "the process of the first knows too little"
        )
        assert "made.txt" in json.dumps(stub.requests[-1]["messages"])


async def test_of_two_calls_in_one_message_none_runs_before_its_own_yes_and_each_once(
    asking: Settings, worker_process: Workers, stub: Stub
) -> None:
    """The CLI defers one of them and forgets the other, also towards the model, which has to call it again."""
    commands = {name: f"echo x >> output/{name}; touch output/{name}" for name in ("one", "two")}
    both = shell(commands["one"])
    stub.replies = [replace(both, also=(("Bash", {"command": commands["two"]}),)), END]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        command = turn.interruption.asked["arguments"]["command"]
        [asked] = [name for name, each in commands.items() if each == command]
        other = "two" if asked == "one" else "one"
        assert [*made(asking, "one"), *made(asking, "two")] == []
        stub.replies = [shell(commands[other]), END]
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        turn = await waiting(client, turn.turn_id)
        assert turn.interruption.asked["arguments"]["command"] == commands[other]
        assert (len(made(asking, asked)), made(asking, other)) == (1, [])
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
    assert turn.outcome is Outcome.PASSED
    for name in commands:
        [file] = made(asking, name)
        assert Path(file).read_text() == "x\n"


async def test_three_calls_in_one_message_are_all_asked_about_and_stay_in_the_conversation(
    asking: Settings, worker_process: Workers, stub: Stub
) -> None:
    names = ("one", "two", "three")
    commands = {name: f"echo x >> output/{name}; touch output/{name}" for name in names}
    all_three = replace(shell(commands["one"]), also=tuple(("Bash", {"command": commands[n]}) for n in names[1:]))
    stub.replies = [all_three, END]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn_id = await submitted(client)
        for number, name in enumerate(names):
            turn = await waiting(client, turn_id)
            assert turn.interruption.asked["arguments"]["command"] == commands[name]
            assert [len(made(asking, each)) for each in names] == [1] * number + [0] * (3 - number)
            rest = names[number + 1 :]
            stub.replies = [shell(commands[rest[0]]), END] if rest else [END]
            await client.inbox.decide_turn(turn_id, "approve", by="alice")
            if rest:
                await wait_until(lambda at=turn.suspended_at: suspended_after(client, turn_id, at))
        turn = await client.reader.await_result(turn_id, timeout=120)
    assert (turn.outcome, turn.interruptions) == (Outcome.PASSED, {"tool_call": {"asked": 3}})
    for name in names:
        [file] = made(asking, name)
        assert Path(file).read_text() == "x\n"
    heard = json.dumps(stub.requests[1]["messages"], ensure_ascii=False)
    assert heard.count("noch nicht ausgeführt, und niemand hat ihn abgelehnt") == 2, "of each that did not run"


async def suspended_after(client: TurnsClient, turn_id: str, at: float) -> bool:
    turn = await client.reader.read_turn(turn_id)
    return turn.state is TurnState.SUSPENDED and turn.suspended_at > at


async def test_a_file_that_changed_since_the_question_is_asked_about_again(
    asking: Settings, worker_process: Workers, stub: Stub
) -> None:
    """Somebody else writes into it while a person thinks."""
    Path(asking.policy).write_text(POLICY.replace('"touch *"', '"sh *"'))
    stub.replies = [shell("echo 'echo GOOD > output/said' > build.sh"), shell("sh build.sh"), END]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        [script] = [Path(each) for each in made(asking, "build.sh")]
        script.write_text("echo EVIL > output/said")
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        await wait_until(lambda: suspended_after(client, turn.turn_id, turn.suspended_at))
        assert made(asking, "said") == []
        suspended = [each for each in await client.reader.read_events(turn.turn_id) if each.kind == "turn.suspended"]
        assert [each.data["reason"] for each in suspended] == ["tool_call", "asked_again"]
        await client.inbox.decide_turn(turn.turn_id, "approve", by="alice")
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
    assert turn.outcome is Outcome.PASSED
    [said] = made(asking, "said")
    assert Path(said).read_text() == "EVIL\n", "which a person has seen by then"


async def test_a_call_that_nobody_can_be_shown_does_not_run_and_the_turn_goes_on(
    asking: Settings, worker_process: Workers, stub: Stub
) -> None:
    stub.replies = [shell("touch output/made.txt # " + "x" * 17_000), END]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn_id = await submitted(client)
        turn = await client.reader.await_result(turn_id, timeout=120)
        notes = [each.data["text"] for each in await client.reader.read_events(turn_id) if each.kind == "attempt.note"]
    assert (turn.outcome, turn.interruptions["tool_call"]["asked"], made(asking, "made.txt")) == (Outcome.PASSED, 1, [])
    assert "zu lang, um ihn einem Menschen" in json.dumps(stub.requests[-1]["messages"], ensure_ascii=False)
    assert len(notes) == 1


async def test_a_turn_asks_so_often_and_no_more(asking: Settings, worker_process: Workers, stub: Stub) -> None:
    """The model never makes the same call; a person says yes for ever."""
    stub.replies = [shell(f"touch output/made-{number}") for number in range(30)]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn_id, at = await submitted(client), 0.0
        for _ in range(MAX_QUESTIONS):
            await wait_until(lambda at=at: suspended_after(client, turn_id, at))
            at = (await client.reader.read_turn(turn_id)).suspended_at
            if len(stub.requests) >= MAX_QUESTIONS:
                stub.replies = [shell("touch output/more"), END]
            await client.inbox.decide_turn(turn_id, "approve", by="alice")
        turn = await client.reader.await_result(turn_id, timeout=120)
    assert (turn.outcome, turn.interruptions["tool_call"]["asked"]) == (Outcome.PASSED, MAX_QUESTIONS)
    assert made(asking, "more") == []
    assert f"schon {MAX_QUESTIONS}-mal ein Mensch gefragt" in json.dumps(stub.requests[-1]["messages"])


@pytest.mark.parametrize("kind", ["approve", "reject"])
async def test_claims_are_compared_with_what_ran_before_the_question_and_after_it(
    asking: Settings, worker_process: Workers, stub: Stub, kind: str
) -> None:
    Path(asking.policy).write_text(
        'rules: [claims]\ntools: [{tool: Bash, arguments: {command: "python3 *"}, do: ask}]\n'
    )
    claimed = says("Ich habe `test_app.py` angelegt, und alle 2 Tests bestehen.")
    true = says("Ich habe `test_app.py` angelegt. Die Tests habe ich nicht ausgeführt.")
    write = calls("Write", file_path="test_app.py", content=PASS_2)
    stub.replies = [write, shell("python3 -m unittest -v test_app"), claimed, true]
    worker_process(settings=asking)
    async with TurnsClient(asking) as client:
        turn = await waiting(client, await submitted(client))
        await client.inbox.decide_turn(turn.turn_id, kind, by="alice")
        turn = await client.reader.await_result(turn.turn_id, timeout=120)
        attempts = await client.reader.read_attempts(turn.turn_id)
    codes = [issue.code for issue in attempts[0].issues]
    assert codes == ([] if kind == "approve" else ["CLAIMED_TESTS_NOT_RUN"]), attempts[0].evidence
    assert turn.outcome is (Outcome.PASSED if kind == "approve" else Outcome.PASSED_AFTER_RETRY)
