"""A CLI that was started ahead becomes a new session's: as good as one of its own, and of nobody before."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.client import TurnsClient
from api_client.contract.settings import Settings
from api_client.contract.turn import Outcome, TurnRequest
from tests.claude.endings import ENDINGS, Ending, mistakes
from tests.claude.running import Agent, at_first_output, inside
from tests.claude.stub import Stub, calls, says
from tests.claude.test_adoption import Stage
from tests.fault.matrix import guard_of
from tests.installation import WorkerProcess
from tests.runs import Ran, ordered
from tests.support import alive, processes_with, wait_for, wait_until
from worker.runners.base import AgentEvent, Order
from worker.runners.claude.runner import ClaudeCliRunner
from worker.runners.claude.spare_agent import ClaudeSpare
from worker.runners.sandbox import bubblewrap, proxy_client
from worker.runners.sandbox.process_tags import inner_process_id
from worker.runners.warm import idle_agents
from worker.runners.warm.agent_lifecycle import WarmLimits

_OK = says("Guten ", "Tag.")


@pytest.fixture(params=["off", "required"], ids=["without a sandbox", "in a sandbox"])
def spare(agent: Agent, request: pytest.FixtureRequest) -> Iterator[Agent]:
    if request.param == "required" and (problem := bubblewrap.find_network_obstacle()):
        pytest.skip(problem)
    agent.settings |= {"claude_warm_seconds": 60.0, "claude_spares": 1, "sandbox": request.param}
    agent.stub.replies = [_OK]
    yield agent
    idle_agents.shared_idle_agents().close()
    assert not list(agent.root.rglob(".spares/*")), "nothing is left of them"


def chat(agent: Agent, name: str) -> Agent:
    """A session of its own, with its instructions and its documents."""
    made = replace(agent, session=name)
    for folder in ("context", "input"):
        (made.workdir / folder).mkdir(parents=True)
        (made.workdir / folder / "own.md").write_text(f"{folder}-of-{name}")
    (made.workdir / "CLAUDE.md").write_text(f"rules-of-{name}")
    return made


def ask(agent: Agent, prompt: str, before: Ran | None = None, **more: Any) -> Ran:
    return agent.run(prompt, owner="o", agent_session=before.result.agent_session if before else "", **more)


def prepare(agent: Agent, **more: Any) -> set[int]:
    """Have a spare started as after the first message of a new session; returns the processes that wait."""
    runner, limits = ClaudeCliRunner(agent.agents, agent.effective), WarmLimits.from_settings(agent.effective)
    order = ordered(agent.root / "nobody", f"t1-{secrets.token_hex(4)}", 1, "x", owner="o", deadline=0.0, **more)
    idle, part = idle_agents.shared_idle_agents(), runner.compute_spare_key(order)
    if not part:
        return set()
    idle._demand.record_session(part, time.monotonic())
    idle.start_spares(runner, limits, order, part)
    home, sandboxed = f"HOME={agent.root}/projects/sessions/.spares/", agent.effective.sandbox == "required"

    def waiting() -> set[int]:
        return {pid for pid in processes_with(home) if not sandboxed or inner_process_id(pid) == 2}

    wait_for(lambda: waiting() or not len(idle))
    return waiting()


def started(agent: Agent, prompt: str, before: Ran | None = None, **more: Any) -> str:
    """How the process of a message began; that must be complete."""
    ran = ask(agent, prompt, before, **more)
    assert (ran.verdict, ran.result.text) == ("complete", "Guten Tag."), ran
    return str(ran.evidence["start"])


def test_a_new_sessions_first_message_goes_to_a_spare_and_the_later_ones_too(spare: Agent) -> None:
    (pid,) = prepare(spare)
    mine, other = chat(spare, "mine"), chat(spare, "other")
    first = ask(mine, "erstens")
    second = ask(mine, "zweitens", first)
    assert [each.evidence["start"] for each in (first, second)] == ["spare", "warm"]
    assert alive(pid)
    started(other, "anderes")
    asked, others = (json.dumps(request) for request in spare.stub.requests[-2:])
    assert "rules-of-mine" in asked
    assert "Guten Tag." in asked
    assert "rules-of-other" in others
    assert "rules-of-mine" not in others


def test_the_model_sees_and_may_do_the_same_as_in_a_process_of_the_sessions_own(spare: Agent) -> None:
    def seen(name: str, start: str) -> tuple[list[str], list[str]]:
        mine = chat(spare, name)
        paths = [mine.workdir / "context/own.md", mine.workdir / "CLAUDE.md", spare.root / "src.py"]
        tries = [calls("Read", file_path=str(path)) for path in paths]
        tries.append(calls("Read", file_path=str(spare.root / "projects/sessions/foreign/input/own.md")))
        tries += [calls("Glob", pattern="**/*", path=str(mine.workdir))]
        tries += [calls("Write", file_path=path, content="x") for path in ("output/a.md", "marks/Stop", "../x.md")]
        spare.stub.requests.clear()
        spare.stub.replies = [*tries, says("Gut.")]
        ran = ask(mine, "Hallo")
        assert (ran.verdict, ran.evidence["start"]) == ("complete", start)
        assert [path.name for path in (ran.order.directory / "output").iterdir()] == ["a.md"]
        requests = [_anonymous(json.dumps(each), name) for each in spare.stub.requests]
        kept = (mine.workdir / "agent" / f"{ran.result.agent_session}.jsonl").read_text().splitlines()
        records = [record for record in map(json.loads, kept) if record["type"] in {"user", "assistant"}]
        return requests, [_anonymous(json.dumps(record["message"]), name) for record in records]

    (spare.root / "src.py").write_text("own = 1")
    chat(spare, "foreign")
    cold = seen("cold", "cold")
    idle_agents.shared_idle_agents().close()
    prepare(spare)
    assert seen("ahead", "spare") == cold
    results = re.findall("requested permissions|denied by your permission|context-of-NAME|own = 1", cold[0][-1])
    assert len(set(results)) == 4, "the tries met each answer"


def _anonymous(text: str, name: str) -> str:
    """Without ids, and without the session's name."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\b(?:toolu|msg)_\w+|[0-9a-f]{64}|cch=\w+", "ID", text)
    text = re.sub(r"/[^ \"]+/home/", "/HOME/", text)
    return re.sub(rf"\b{name}\b", "NAME", text)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name.replace(" ", "-"))
def test_an_ending_is_seen_for_what_it_is(ending: Ending, spare: Agent) -> None:
    spare.settings |= ending.settings or {}
    there = () if ending.small_disk or ending.wrapper else prepare(spare)
    if not there:
        pytest.skip("its process is of its own kind")
    ran = ending.run(_New(spare, there))  # type: ignore[arg-type]
    assert mistakes(ending, ran) == [], ran.evidence
    assert ran.evidence["start"] == "spare"
    assert len(idle_agents.shared_idle_agents().idle_sessions()) == (ending.truth == "complete"), (
        "only a complete message leaves its process"
    )


class _New:
    """An agent whose run is the first of its session, and may take a spare."""

    def __init__(self, agent: Agent, there: Collection[int]) -> None:
        self.agent, self.there = agent, there
        self.stub, self.root, self.settings = agent.stub, agent.root, agent.settings

    def run(self, when: Callable[[AgentEvent, Order], object] | None = None, **limits: Any) -> Ran:
        return ask(self.agent, "Hallo", when=when and in_spare(when, self.there), **limits)


def in_spare(when: Callable[[AgentEvent, Order], object], there: Collection[int]) -> Any:
    """The same for a process that does not bear the turn's mark."""
    (pid,) = there
    turn = re.search(rb"HELIX_AGENT_MARK=([^.]+)\.", Path(f"/proc/{pid}/environ").read_bytes())
    assert turn
    return lambda event, order: when(event, replace(order, turn_id=turn[1].decode()))


def test_a_claim_that_takes_long_takes_nothing_from_the_time_for_the_first_message(
    spare: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(spare)
    belongs: Any = ClaudeSpare.assign_session
    monkeypatch.setattr(ClaudeSpare, "assign_session", lambda *given: belongs(*given[:-1], given[-1] - 60.0))
    assert started(chat(spare, "a"), "Hallo") == "spare"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_spare_that_died_or_froze_costs_nothing(spare: Agent, number: signal.Signals) -> None:
    (pid,) = prepare(spare)
    os.kill(pid, number)
    assert started(chat(spare, "a"), "Hallo") == "cold"
    assert not alive(pid)
    assert len(spare.stub.requests) == 1


def test_a_spare_whose_door_died_is_replaced(spare: Agent) -> None:
    (pid,) = prepare(spare)
    os.kill(proxy_client._current[0].pid, signal.SIGKILL)
    assert started(chat(spare, "a"), "Hallo") == "cold"
    assert not alive(pid)


def test_a_mark_that_a_spares_hook_is_just_writing_stays(spare: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(spare)
    claim = ClaudeSpare.bind_session

    def claimed(self: ClaudeSpare, order: Order, fixed: str) -> bool:
        done = claim(self, order, fixed)
        (self._files.work_folder / "marks" / ".SessionStart.0").touch()  # as hook.sh begins
        return done

    monkeypatch.setattr(ClaudeSpare, "bind_session", claimed)
    assert started(chat(spare, "a"), "Hallo") == "spare"
    assert list(spare.root.rglob(".SessionStart.0"))


def test_a_spare_that_is_killed_within_its_first_message_is_an_incomplete_run(spare: Agent) -> None:
    there = prepare(spare)
    spare.stub.replies = [says("Guten ", "Tag.", delay=0.3)]
    ran = ask(chat(spare, "a"), "Hallo", when=in_spare(at_first_output(signal.SIGKILL), there))
    assert (ran.verdict, ran.evidence["start"]) == ("incomplete", "spare")


#: Versions of the CLI that do not know a spare, know it and refuse, take another session than they were given, or take
#: it without its rights.
OTHERS = {
    "knows no spares": '[[ " $* " == *" --await-claim "* ]] && exit 1; exec "$CLI" "$@"',
    "starts at once": 'exec "$CLI" "${@/--await-claim/--verbose}"',
    "has another session": '[[ " $* " == *" --await-claim "* ]] && set -- "$@" --session-id '
    '6f1b8f0e-5a0c-4f5e-9d0a-0d6a2c1e8b34; exec "$CLI" "$@"',
    "reads no rights": '[[ " $* " == *" --await-claim "* ]] && set -- "${@/#user/local}"; exec "$CLI" "$@"',
}


@pytest.mark.parametrize("which", OTHERS)
def test_with_a_cli_that_has_no_such_spares_sessions_start_cold_and_none_is_tried_any_more(
    which: str, spare: Agent
) -> None:
    other = replace(spare, program=inside(spare.root, spare.program)).wrapped(OTHERS[which])
    for name in "ab":
        prepare(other)
        if which == "knows no spares":
            wait_for(lambda: not len(idle_agents.shared_idle_agents()))
        else:
            assert started(chat(other, name), "Hallo") == "cold"
            idle_agents.shared_idle_agents().close()
    assert prepare(other) == set()
    assert len(idle_agents.shared_idle_agents()) == 0
    assert started(chat(other, "c"), "Hallo") == "cold"


@pytest.mark.parametrize(
    "change", ["model", "key", "limit", "entry of the project", "conversation goes on", "phase", "tools", "off"]
)
def test_a_spare_that_is_not_exactly_of_an_orders_kind_is_left_alone(spare: Agent, change: str) -> None:
    there, mine, more, before = prepare(spare), chat(spare, "a"), dict[str, Any](), None
    match change:
        case "model":
            more["option"] = "haiku"
        case "key":
            spare.settings["claude_api_key"] = "sk-other"
        case "limit":
            spare.settings["limit_memory_mb"] = 3000
        case "entry of the project":
            (spare.root / "new.py").touch()
        case "conversation goes on":
            spare.settings["claude_spares"] = 0
            before = ask(mine, "vorher")
            idle_agents.shared_idle_agents().end_agent(("o", "a"))
            spare.settings["claude_spares"] = 1
        case "phase":
            more["read_only"] = True
        case "tools":
            spare.settings["claude_tools"] = ("Read", "Bash")
        case "off":
            spare.settings["claude_spares"] = 0
    ran = ask(mine, "Hallo", before, **more)
    assert (ran.verdict, ran.evidence.get("start", "cold")) == ("complete", "cold")
    assert all(alive(pid) for pid in there)
    assert there


@pytest.mark.parametrize(
    "rule", ["Bash(*)", "Task", "KillShell", "Read(//srv/agents (prod)/**)", r"Read(//srv/\[x\]/**)"]
)
def test_a_spare_is_taken_whatever_form_the_installations_rules_have(spare: Agent, rule: str) -> None:
    spare.settings["claude_allowed_tools"] = (rule,)
    prepare(spare)
    assert started(chat(spare, "a"), "Hallo") == "spare"


def test_a_spare_is_taken_by_a_session_whose_folder_has_brackets_in_its_name(spare: Agent) -> None:
    prepare(spare)
    assert started(chat(spare, "a (1) [x] *"), "Hallo") == "spare"


async def test_a_worker_that_starts_has_one_for_a_kind_that_was_wanted_lately(
    claude_settings: Settings, stub: Stub, worker_process: Callable[..., WorkerProcess]
) -> None:
    stub.replies = [says("Fertig.\n\n<!-- STEP: done -->")]
    settings = replace(claude_settings, sandbox="off", claude_spares=1)
    put_kind(settings)
    noted = settings.sessions_dir / ".spare-kinds" / "kind"
    worker_process(settings=settings)
    async with TurnsClient(settings) as client:

        async def waits() -> bool:
            return any("(spare 1)" in report.kept for report in await client.workers.read_reports())

        await wait_until(waits)
        request = TurnRequest(
            model="helix-consultant", messages=({"role": "user", "content": "Hallo"},), session_id="s"
        )
        turn = await client.reader.await_result(await client.submitter.submit(request), timeout=90)
        [attempt] = await client.reader.read_attempts(turn.turn_id)
        assert attempt.completion["evidence"]["start"] == "spare"
    (other,) = wait_for(lambda: [each for each in noted.parent.iterdir() if each != noted])
    assert other.read_text() == noted.read_text(), "its own session is noted for others"


def test_what_killed_workers_left_of_theirs_is_removed(spare: Agent) -> None:
    place = spare.root / "projects" / "sessions" / ".spares"
    (place / "spare-old" / "home").mkdir(parents=True)
    os.utime(place / "spare-old", (0, 0))
    (place / "spare-young").mkdir()
    (place / "spare-claimed").symlink_to(place / "gone")
    prepare(spare)
    assert not (place / "spare-old").exists()
    assert not (place / "spare-claimed").is_symlink()
    (place / "spare-young").rmdir()


@pytest.mark.parametrize("sandbox", ["off", "required"])
async def test_a_worker_starts_one_for_the_next_new_session_and_what_it_finished_is_adopted(
    sandbox: str, claude_settings: Settings, stub: Stub, tmp_path: Path, worker_process: Callable[..., WorkerProcess]
) -> None:
    if sandbox == "required" and (problem := bubblewrap.find_network_obstacle()):
        pytest.skip(problem)
    stub.replies = [says("Fertig.\n\n<!-- STEP: done -->")]
    stage = Stage(replace(claude_settings, sandbox=sandbox, claude_spares=1), tmp_path / "points", worker_process, stub)
    stage.arm("agent.ended", "kill@3")
    worker_process(settings=stage.settings)
    async with TurnsClient(stage.settings) as client:

        async def ask(session: str) -> dict[str, Any]:
            messages = ({"role": "user", "content": "Hallo"},)
            request = TurnRequest(model="helix-consultant", messages=messages, session_id=session)
            turn = await client.reader.await_result(await client.submitter.submit(request), timeout=90)
            [attempt] = await client.reader.read_attempts(turn.turn_id)
            return attempt.completion["evidence"]

        async def waits_since() -> float:
            """When the spare that waits was kept, or 0 if none waits."""
            kept = [report.kept.get("(spare 1)") for report in await client.workers.read_reports()]
            return max((each[0] for each in kept if each), default=0.0)

        assert (await ask("eins"))["start"] == "cold"
        first = await wait_until(waits_since)
        assert (await ask("zwei"))["start"] == "spare"

        async def next_waits() -> bool:
            return await waits_since() > first + 0.1

        await wait_until(next_waits)
        third = await ask("drei")
        assert (third["start"], third["adopted"]) == ("spare", 1)
        assert len(stub.requests) == 3
        counted = await client.figures.read_totals()
        assert sum(value for name, value in counted.items() if name.startswith("time.start.le") and "|spare|" in name)


@pytest.mark.parametrize("victim", ["cli", "guard", "worker", "guard and worker"])
@pytest.mark.parametrize("point", ["spare.moved", "spare.shown"])
async def test_whoever_dies_while_a_session_takes_one_over_nothing_of_it_stays_and_the_turn_is_answered(
    point: str,
    victim: str,
    claude_settings: Settings,
    stub: Stub,
    tmp_path: Path,
    worker_process: Callable[..., WorkerProcess],
) -> None:
    if problem := bubblewrap.find_network_obstacle():
        pytest.skip(problem)
    stub.replies = [says("Fertig.\n\n<!-- STEP: done -->")]
    settings = replace(claude_settings, sandbox="required", claude_spares=1)
    put_kind(settings)
    stage = Stage(settings, tmp_path / "points", worker_process, stub)
    place, own = settings.sessions_dir / ".spares", settings.sessions_dir / "s"
    (own / "context").mkdir(parents=True)
    (own / "context" / "own.md").write_text("own")
    worker_process(settings=stage.settings)
    (folder,) = await wait_until(lambda: place.is_dir() and list(place.iterdir()))
    cli = await wait_until(lambda: [pid for pid in processes_with(f"HOME={folder}/") if inner_process_id(pid) == 2])
    stage.arm(point, f"meet:{tmp_path}/on")
    async with TurnsClient(stage.settings) as client:
        messages = ({"role": "user", "content": "Hallo"},)
        turn_id = await client.submitter.submit(
            TurnRequest(model="helix-consultant", messages=messages, session_id="s")
        )
        worker = await stage.passed(point)
        assert (own / "agent").is_dir()
        for pid in {"cli": cli, "worker": [worker]}.get(victim, [guard_of(worker)]):
            os.kill(pid, signal.SIGKILL)
        if victim == "guard and worker":
            os.kill(worker, signal.SIGKILL)
        await wait_until(lambda: not processes_with(f"HOME={folder}/"))
        (tmp_path / "on").touch()
        turn = await client.reader.await_result(turn_id, timeout=90)
        [attempt] = await client.reader.read_attempts(turn_id)
    assert turn.outcome is Outcome.PASSED
    assert attempt.completion["evidence"]["start"] in ({"cold", "spare"} if "worker" in victim else {"cold"})
    assert (own / "context" / "own.md").read_text() == "own"
    assert not mounted(folder.name)
    assert not folder.is_dir()


def put_kind(settings: Settings) -> None:
    """Note that a new session was here lately, so that a worker that starts has a spare."""
    noted = settings.sessions_dir / ".spare-kinds" / "kind"
    noted.parent.mkdir(parents=True)
    noted.write_text(json.dumps(["helix-consultant", "", True]))


def mounted(name: str) -> list[int]:
    """The processes that see a mounted file or folder of this name."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and name in (entry / "mountinfo").read_text():
                found.append(int(entry.name))
    return found
