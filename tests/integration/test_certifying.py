"""The certification kit drives real programs, and tells a runner that believes its agent from one that has evidence."""

import importlib.util
import json
import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_client.contract.completion import Completion, Verdict
from api_client.contract.settings import Settings
from tests.agents.page import _cells
from tests.installation import turns
from worker.plugins.certification.certify_command import _count_verdicts, _format_row
from worker.plugins.certification.situations import SITUATIONS
from worker.plugins.certification.tool_server import KINDS
from worker.plugins.certification.trial import Trial, run_situations
from worker.plugins.python.runner import PythonRunner
from worker.runners.base import Order, RunResult
from worker.runners.http.runner import OpenAiHttpRunner
from worker.runners.sandbox.guard_client import AgentProcesses
from worker.runners.sandbox.process_runner import PreparedRun


def certify(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        turns("worker", "certify", *arguments), capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout or done.stderr


def test_our_runner_is_certified_in_each_kind_of_situation() -> None:
    some = (
        "normal answer",
        "output limit",
        "cut after",
        "HTTP 429",
        "SIGTERM",
        "exit code 0 forced",
        "leaves a process",
    )
    code, said = certify("openai_http:stub", "--json", *(word for text in some for word in ("--only", text)))
    assert code == 0, said
    found = json.loads(said)
    assert {name: counts["false_complete"] for name, counts in found["counts"].items() if name != "agents"} == {
        "without": 0,
        "ours": 0,
    }
    ours = found["counts"]["ours"]
    assert ours["kept"] == ours["true_ends"] >= 2
    assert found["counts"]["agents"]["false_complete"] > 0, "exit code 0 alone proves nothing"


def test_a_wrong_name_is_one_line_and_exit_code_2() -> None:
    assert certify("no_such_runner")[0] == 2
    code, said = certify("openai_http:stub", "--only", "never heard of")
    assert code == 2
    assert "no situation has never heard of in its name" in said


class Believing(OpenAiHttpRunner):
    """It takes its agent's word: exit code 0 is complete. ``seen`` has it ask the model proxy's call log as well."""

    def __init__(self, agents: AgentProcesses, settings: Settings, *, seen: bool) -> None:
        super().__init__(agents, settings)
        self._seen = seen

    def prepare_run(self, order: Order) -> PreparedRun | RunResult:
        play = super().prepare_run(order)
        assert isinstance(play, PreparedRun)
        honest = play.conclude

        def conclude(ending: Any, emit: Any) -> RunResult:
            from worker.runners.observed_calls import check_observed_calls

            result = honest(ending, emit)
            if ending.exit.code:
                return result
            believed = Completion(verdict=Verdict.COMPLETE, reason="exit 0", evidence=ending.evidence)
            return replace(
                result, completion=check_observed_calls(believed, ending.observed_calls) if self._seen else believed
            )

        return replace(play, conclude=conclude)


@pytest.mark.parametrize("seen", [False, True])
def test_a_runner_that_believes_its_agent_is_found_out_and_the_call_log_saves_it(seen: bool) -> None:
    agents = AgentProcesses()
    settings = Settings(openai_url="http://certify.invalid/v1", openai_api_key="sk-x", sandbox="off")
    names = {"normal answer", "output limit", "cut after the first piece", "content filter", "tool call, then HTTP 400"}
    wanted = [situation for situation in SITUATIONS if situation.name in names]
    try:
        rows = list(run_situations(Believing(agents, settings, seen=seen), "stub", "", wanted, 3))
    finally:
        agents.stop_guard()
    problems = {row.situation.name for row in rows if row.problem}
    assert problems == (set() if seen else names - {"normal answer"})
    assert all(row.is_falsely_complete(row.reported_success) for row in rows if row.situation.name != "normal answer")


ASK = """
import json, os, urllib.request
from concurrent.futures import ThreadPoolExecutor

TASK = {"type": "function", "function": {"name": "Task", "parameters": {"properties": {"prompt": {}}}}}

def ask(*said, tools=(), system="You write a book."):
    messages = [{"role": "system", "content": system}]
    messages += [each if isinstance(each, dict) else {"role": "user", "content": each} for each in said]
    body = json.dumps({"model": "m1", "messages": messages, **({"tools": tools} if tools else {})}).encode()
    headers = {"content-type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return json.load(answer)["choices"][0]["message"]
    except OSError:
        return {"role": "assistant", "content": ""}

def text(*said, **more):
    return ask(*said, **more)["content"]

"""
_TWO_PARTS = "return text('one') + ' ' + text('two')"
_PARALLEL = "with ThreadPoolExecutor() as pool:\n        return ' '.join(pool.map(text, ['one', 'two']))"
_AGAIN = "text('one')\n    return text('one')"
_GOES_ON = "one = ask('one')\n    return one['content'] + text('one', one)"
_ONE = "return text('one')"
#: It carries out the call of its sub-agent tool.
_SUB_AGENT = """said = ask(context.prompt, tools=[TASK])
    for call in said.get("tool_calls", ()):
        found = text(json.loads(call["function"]["arguments"])["prompt"])
        result = {"role": "tool", "tool_call_id": call["id"], "content": found or "the helper failed"}
        said = ask(context.prompt, said, result, tools=[TASK])
    return said["content"]"""


class BelievingPython(PythonRunner):
    """It takes its function's word, whatever the model proxy's call log saw."""

    def prepare_run(self, order: Order) -> PreparedRun | RunResult:
        play = super().prepare_run(order)
        assert isinstance(play, PreparedRun)
        honest = play.conclude
        return replace(play, conclude=lambda ending, emit: honest(replace(ending, observed_calls=None), emit))


def own(root: Path, code: str, *names: str, runner: type[PythonRunner] = PythonRunner) -> list[Trial]:
    """The kit's rows of an own Python agent whose function has this body."""
    (root / "mine.py").write_text(textwrap.dedent(ASK) + f"def consultant(context):\n    {code}\n")
    agents = AgentProcesses()
    settings = Settings(root=root, openai_url="http://certify.invalid/v1", openai_api_key="sk-x", sandbox="off")
    wanted = [situation for situation in SITUATIONS if situation.name in names]
    try:
        return list(
            run_situations(runner(agents=agents, settings=settings, module="mine"), "consultant:m1", "", wanted, 2)
        )
    finally:
        agents.stop_guard()


_SEQUENCE = ("several calls, one cut", "several calls, one filtered")
_AT_ONCE = "parallel calls, one cut"


@pytest.mark.parametrize(
    ("code", "names", "complete"),
    [
        (_TWO_PARTS, _SEQUENCE, False),
        (_PARALLEL, (*_SEQUENCE, _AT_ONCE), False),
        (_AGAIN, _SEQUENCE, True),
        (_GOES_ON, _SEQUENCE[:1], True),
    ],
    ids=["two parts", "parallel", "again", "goes on"],
)
def test_an_answer_of_several_calls_counts_only_where_each_part_is_whole(
    tmp_path: Path, code: str, names: tuple[str, ...], complete: bool
) -> None:
    for row in own(tmp_path, code, *names):
        assert (row.applies, row.judged_complete, row.reported_success, row.problem) == (True, complete, True, ""), (
            row.to_dict()
        )
        assert row.has_true_end is complete, row.to_dict()
        assert row.is_falsely_complete(row.reported_success) is not complete


@pytest.mark.parametrize("code", [_TWO_PARTS, _PARALLEL], ids=["two parts", "parallel"])
def test_a_runner_that_believes_an_agent_with_half_a_part_is_found_out(tmp_path: Path, code: str) -> None:
    names = {*_SEQUENCE, *([_AT_ONCE] if code == _PARALLEL else ())}
    rows = own(tmp_path, code, *names, runner=BelievingPython)
    assert {row.situation.name for row in rows if row.is_falsely_complete(row.judged_complete)} == names, [
        row.to_dict() for row in rows
    ]


def test_a_sub_agent_that_fails_leaves_an_answer_whole_and_an_own_agent_must_ask_again(tmp_path: Path) -> None:
    """Which of its calls are a sub-agent's nobody knows of an own agent: each that failed counts."""
    [row] = own(tmp_path, _SUB_AGENT, "sub-agent fails")
    assert (row.applies, row.has_true_end, row.verdict_word, row.problem) == (True, True, "permanent", ""), (
        row.to_dict()
    )


#: It carries out the call of a server's tool.
_WITH_TOOLS = """tools = [{"type": "function", "function": {"name": each["name"]}} for each in context.list_tools()]
    said = ask(context.prompt, tools=tools)
    for call in said.get("tool_calls", ()):
        found = context.call_tool(call["function"]["name"])
        result = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(found)}
        said = ask(context.prompt, said, result, tools=tools)
    return said["content"]"""
_MISBEHAVE = tuple(f"tool server {kind}" for kind in KINDS)


def test_an_agent_that_goes_on_with_whatever_a_tool_server_does_is_certified(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    rows = own(tmp_path, _WITH_TOOLS, *_MISBEHAVE)
    assert [row.situation.name for row in rows] == [*_MISBEHAVE]
    for row in rows:
        assert (row.applies, row.judged_complete, row.problem, row.calls) == (True, True, "", 2), row.to_dict()


def test_an_agent_that_gives_up_at_a_tools_error_is_found_out(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    code = _WITH_TOOLS.replace("        result =", "        assert not found.get('isError')\n        result =")
    rows = own(tmp_path, code, *_MISBEHAVE)
    lost = {row.situation.server for row in rows if row.problem == "a whole answer thrown away"}
    assert lost == {*KINDS} - {"changes its tools", "is slow", "returns 1 MB"}


def test_an_agent_without_tools_skips_the_tool_servers_and_the_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [row] = own(tmp_path, _ONE, _MISBEHAVE[0])
    assert "| not applicable | not seen: server tool |" in _format_row(row)
    assert not row.problem
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    [row] = own(tmp_path, _WITH_TOOLS, _MISBEHAVE[0])
    assert "| not applicable | the MCP SDK is not installed" in _format_row(row)
    assert not row.problem


def test_a_situation_that_an_agent_does_not_get_into_is_said_to_be_not_applicable(tmp_path: Path) -> None:
    names = (*_SEQUENCE, _AT_ONCE, "sub-agent fails")
    rows = own(tmp_path, _ONE, *names)
    assert [(row.applies, row.has_true_end, row.problem) for row in rows] == [(False, False, "")] * 4
    assert all("| not applicable |" in _format_row(row) for row in rows)
    assert _count_verdicts(rows)["ours"] == {"situations": 0, "false_complete": 0, "true_ends": 0, "kept": 0}
    whole = next(each for each in SITUATIONS if each.needs == "sub-agent")
    assert not replace(rows[0], situation=whole).problem, "an end that was not asked for is not lost"
    assert [_cells(row.to_dict()) for row in rows] == ["nn"] * 4
    assert [row.judged_complete for row in rows] == [False, False, False, True]
