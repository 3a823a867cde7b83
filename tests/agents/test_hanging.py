"""An agent that does not end by itself: whoever has answered keeps the answer, else the provider's reason is told."""

import time
from pathlib import Path

import pytest

from tests.agents.stub import Services, StubReply, fails, says
from tests.agents.test_python_agents import written
from tests.agents.test_several_calls import ASK
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.sandbox.supervision import MOST_FAILURES

_REDIRECT = StubReply(status=307, retry_after="")


@pytest.mark.parametrize(
    "hangs",
    [
        "threading.Thread(target=time.sleep, args=(600,)).start()",
        "atexit.register(time.sleep, 600)",
    ],
)
def test_an_answer_is_kept_whose_agent_does_not_exit(tmp_path: Path, agents: AgentProcesses, hangs: str) -> None:
    code = f"import atexit, threading, time\ndef consultant(context):\n    {hangs}\n    return 'Done.'"
    ran = written(tmp_path, agents, code).run()
    assert (ran.verdict, ran.result.text) == ("complete", "Done."), ran.reason
    assert ran.evidence["stopped"] == "finished"


def test_an_agent_that_hangs_before_its_end_is_not_complete(tmp_path: Path, agents: AgentProcesses) -> None:
    code = "import time\ndef consultant(context):\n    yield 'Half'\n    time.sleep(600)"
    ran = written(tmp_path, agents, code).run(idle_seconds=7.0, kill_grace_seconds=0.1)
    assert (ran.verdict, ran.reason) == ("incomplete", "the agent was silent for 7 s")


@pytest.mark.parametrize(
    ("reply", "verdict", "said"),
    [
        (fails(429, "36000"), "transient", "HTTP 429"),
        (fails(529), "transient", "HTTP 529"),
        (_REDIRECT, "permanent", "HTTP 307"),
        (fails(401), "permanent", "HTTP 401"),
        (says("half", end="limit"), "limit", "too long"),
        (says("No.", end="filter"), "refused", "refused"),
        (says("Whole."), "incomplete", "silent"),
    ],
)
def test_who_retries_in_silence_is_told_what_the_provider_said(
    tmp_path: Path, agents: AgentProcesses, reply: StubReply, verdict: str, said: str
) -> None:
    code = f"{ASK}\nimport time\ndef consultant(context):\n    ask('one')\n    time.sleep(600)"
    limits: dict[str, float] = {"kill_grace_seconds": 0.1}
    limits |= {"deadline": time.monotonic() + 3} if reply.status == 529 else {"idle_seconds": 3.0}
    with Services([reply]) as stub:
        ran = written(tmp_path, agents, code, stub=stub).run(**limits)
    assert (ran.verdict, said in ran.reason) == (verdict, True), ran.reason
    assert ("time was up" if reply.status == 529 else "silent") in ran.reason
    assert ran.result.completion.retry_after == (36_000 if reply.retry_after else 0)


@pytest.mark.parametrize(
    ("reply", "verdict"), [(says("half", end="limit"), "limit"), (fails(500), "transient"), (fails(400), "permanent")]
)
def test_an_agent_whose_calls_fail_for_ever_is_ended(
    tmp_path: Path, agents: AgentProcesses, reply: StubReply, verdict: str
) -> None:
    code = (
        f"{ASK}\nimport time\ndef consultant(context):\n    while True:\n        ask('one')\n        time.sleep(0.02)"
    )
    with Services([reply]) as stub:
        ran = written(tmp_path, agents, code, stub=stub).run(kill_grace_seconds=0.1)
        assert ran.verdict == verdict, ran.reason
        assert "one after the other" in ran.reason
        assert len(stub.requests) > MOST_FAILURES


def test_calls_that_fail_now_and_then_end_nobody(tmp_path: Path, agents: AgentProcesses) -> None:
    code = f"{ASK}\nimport time\ndef consultant(context):\n    for _ in range(90):\n        said = ask('one')\n"
    code += "        time.sleep(0.1)\n    return said"
    replies = [*[fails(500)] * 15, says("Well."), *[fails(500)] * 15, says("Well.")]
    with Services(replies) as stub:
        ran = written(tmp_path, agents, code, stub=stub).run()
    assert ran.verdict == "complete", ran.reason
