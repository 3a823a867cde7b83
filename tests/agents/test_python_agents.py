"""Your own Python agent as a turn: a real process per run, however the function is written."""

import textwrap
from pathlib import Path

import pytest

from tests.agents.running import Agent
from tests.agents.stub import Services, StubReply, fails, says
from tests.runs import Asked
from tests.support import wait_for
from worker.agents.runner_lookup import build_runner
from worker.plugins.python.runner import PythonRunner
from worker.runners.base import AgentEvent, Order
from worker.runners.sandbox.guard_client import AgentProcesses

NUMBERS = iter(range(100))


def written(root: Path, agents: AgentProcesses, code: str, **more: object) -> Agent:
    """An agent that is the function ``consultant`` of a module of its own, in the project's folder."""
    package = root / f"agents_{next(NUMBERS)}"
    package.mkdir()
    (package / "mine.py").write_text(textwrap.dedent(code))
    return Agent(root=root, runner=f"{package.name}.mine:consultant:m1", agents=agents, **more)  # type: ignore[arg-type]


def test_a_name_with_a_dot_is_a_module_and_an_undotted_one_is_named_behind_python() -> None:
    assert isinstance(build_runner("my_package.agents:consultant")[0], PythonRunner)
    assert build_runner("python:agents:consultant")[1] == "agents:consultant"


@pytest.mark.parametrize(
    "code",
    [
        "async def consultant(context):\n    yield 'Hello '\n    yield context.prompt",
        "def consultant(context):\n    yield 'Hello '\n    yield context.prompt",
        "async def consultant(context):\n    return f'Hello {context.prompt}'",
        "def consultant(context):\n    print('not the answer')\n    return f'Hello {context.prompt}'",
    ],
)
def test_every_way_to_write_one_gives_its_answer(tmp_path: Path, agents: AgentProcesses, code: str) -> None:
    ran = written(tmp_path, agents, code).run("you")
    assert (ran.verdict, ran.result.text, ran.shown) == ("complete", "Hello you", "Hello you"), ran.evidence


@pytest.mark.parametrize(
    ("code", "verdict", "reason"),
    [
        ("def consultant(c):\n    yield 'half'\n    raise ValueError(c)", "incomplete", "exit code 1"),
        ("import os\ndef consultant(c):\n    yield 'half'\n    os._exit(0)", "incomplete", "without a result"),
        ("import os\ndef consultant(c):\n    yield 'half'\n    os.abort()", "incomplete", "signal 6"),
        ("def consultant(c):\n    return ''", "incomplete", "said nothing"),
        ("def consultant(c):\n    raise TimeoutError('db')", "transient", "TimeoutError: db"),
        ("def consultant(c):\n    return 5", "config", "gave int, not a text"),
        ("import no_such_module", "config", "cannot be imported: ModuleNotFoundError"),
        ("x = 1", "config", "has no function 'consultant'"),
        ("import sys\ndef consultant(c):\n    yield 'half'\n    sys.exit(0)", "incomplete", "without a result"),
    ],
)
def test_an_agent_that_ends_another_way_is_not_complete(
    tmp_path: Path, agents: AgentProcesses, code: str, verdict: str, reason: str
) -> None:
    ran = written(tmp_path, agents, code).run()
    assert (ran.verdict, reason in ran.reason) == (verdict, True), ran.reason


def test_cancelling_reaches_the_agent_and_what_it_left_behind_is_ended(tmp_path: Path, agents: AgentProcesses) -> None:
    code = """
    import asyncio, pathlib, subprocess
    async def consultant(context):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        yield "begun"
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pathlib.Path(context.directory, "cancelled").touch()
            raise
    """
    stop = Asked()

    def cancel(_event: AgentEvent, _order: Order) -> None:
        stop.reason = "cancelled"

    ran = written(tmp_path, agents, code).run(when=cancel, stop=stop)
    assert ran.verdict == "cancelled"
    assert wait_for(lambda: (ran.order.directory / "cancelled").exists())


def test_the_context_is_typed_and_its_state_lasts(tmp_path: Path, agents: AgentProcesses) -> None:
    code = """
    async def consultant(context):
        count = context.state / "count"
        number = int(count.read_text()) + 1 if count.exists() else 1
        count.write_text(str(number))
        context.tool("lookup", "a book")
        context.usage(input_tokens=3, output_tokens=4)
        yield f"{number} {context.model} {context.language} {context.feedback} {len(context.messages)}"
    """
    agent = written(tmp_path, agents, code)
    first = agent.run()
    message = ({"role": "user", "content": "Hallo"},)
    second = agent.run("Falsch.", messages=message, agent_session=first.result.agent_session)
    assert [first.result.text, second.result.text] == ["1 m1 de False 1", "2 m1 de True 1"]
    assert first.result.usage == {"input_tokens": 3, "output_tokens": 4}
    assert [event.text for event in first.events if event.kind == "tool"] == ["lookup"]


MODEL = """
import json, os, urllib.request
def consultant(context):
    body = json.dumps({"model": context.model, "messages": [], "tools": []}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    try:
        answer = json.load(urllib.request.urlopen(asked))
        return answer["choices"][0]["message"]["content"]
    except OSError as error:
        return f"swallowed: {error}"
"""


def test_its_model_is_asked_through_the_door_which_holds_the_key(tmp_path: Path, agents: AgentProcesses) -> None:
    with Services([says("from the model")]) as stub:
        ran = written(tmp_path, agents, MODEL, stub=stub).run()
        assert (ran.verdict, ran.result.text) == ("complete", "from the model")
        assert stub.headers[0]["authorization"] == "Bearer sk-stub"
        assert ran.result.usage == {"input_tokens": 11, "output_tokens": 7}


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [(says("half", end="limit"), "limit"), (fails(429, "3"), "transient"), (fails(401), "permanent")],
)
def test_the_door_contradicts_an_agent_that_says_done(
    tmp_path: Path, agents: AgentProcesses, reply: StubReply, verdict: str
) -> None:
    with Services([reply]) as stub:
        assert written(tmp_path, agents, MODEL, stub=stub).run().verdict == verdict
