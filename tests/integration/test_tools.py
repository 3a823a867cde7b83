"""Tools of agents: real MCP servers behind the gateway of a real worker, with policy, questions and call log."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from api_client.contract.event_kinds import AttemptTool
from api_client.contract.turn import Outcome
from tests.installation import Installation
from tests.ports import answers_on, free_port
from tests.support import wait_for, wait_until
from tests.tools.running import HERE, PYTHON, block, call, counting, equip, gateways, rows, told

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


async def test_an_agent_uses_the_tools_of_a_process_and_of_a_url(installation: Installation, tmp_path: Path) -> None:
    port, root = free_port(), installation.settings.root
    other = subprocess.Popen([PYTHON, HERE / "counting_server.py", tmp_path / "other", str(port)])
    try:
        counts = equip(
            installation,
            counting(root, writes="allow"),
            block("web", url=f"http://127.0.0.1:{port}/mcp", writes="allow"),
        )
        await wait_until(lambda: answers_on(port))
        installation.worker()
        calls = [("list", {}), ("counter__write", {"note": "a"}), ("web__write", {"note": "b"}), ("counter__read", {})]
        turn = await installation.result(await call(installation, *calls))
    finally:
        other.kill()
        other.wait()
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert "tools: counter__crash counter__environment counter__read counter__write web__crash" in turn.response
    assert (counts.read_text(), (tmp_path / "other").read_text()) == ("a\n", "b\n")
    assert "counter__read: a" in turn.response
    found = [(row["server"], row["tool"], row["state"], row["read_only"]) for row in rows(installation, turn.turn_id)]
    wrote = ("write", "done", False)
    assert found == [("counter", *wrote), ("web", *wrote), ("counter", "read", "done", True)]
    shown = installation.run("turn", "attempts", turn.turn_id).stdout
    assert "counter.write done" in shown
    assert "web.write" in installation.run("turn", "calls", turn.turn_id).stdout
    events = [event.body for event in await installation.client.reader.read_events(turn.turn_id)]
    tools = [(body.name, body.detail.partition(",")[0]) for body in events if isinstance(body, AttemptTool)]
    assert tools == [("counter.write", "done"), ("web.write", "done"), ("counter.read", "done")]


async def test_the_policy_denies_and_a_person_allows_or_refuses_exactly_the_call_that_was_shown(
    installation: Installation,
) -> None:
    rules = [{"tool": "crash", "do": "deny"}, {"tool": "write", "do": "allow", "arguments": {"note": "free*"}}]
    counts = equip(installation, counting(installation.settings.root, rules=rules))
    installation.worker()
    write = ("counter__write", {"note": "a <b>", "size": 2})
    turn_id = await call(installation, ("counter__crash", {}), ("counter__write", {"note": "free"}), write)
    await installation.until(turn_id, "suspended")
    turn = await installation.client.reader.read_turn(turn_id)
    asked = turn.interruption
    assert asked is not None
    assert (asked.asked["tool"], asked.asked["arguments"]) == ("counter.write", {"note": "a <b>", "size": "⟦JSON⟧ 2"})
    assert counts.read_text() == "free\n"
    await installation.client.inbox.decide_turn(turn_id, "approve", by="ada")
    turn = await installation.result(turn_id)
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert counts.read_text() == "free\na <b>\n", "what ran before the question is not made again"
    assert "counter__crash: This call is not allowed here" in turn.response
    states = [(row["tool"], row["state"]) for row in rows(installation, turn_id)]
    assert states == [
        ("crash", "denied"), ("write", "done"), ("write", "asked"),
        ("crash", "denied"), ("write", "recorded"), ("write", "done"),
    ]  # fmt: skip
    assert turn.interruptions["tool_call"] == {"asked": 1}, "the answer was used"
    refused = await call(installation, write, session="t")
    await installation.until(refused, "suspended")
    await installation.client.inbox.decide_turn(refused, "reject", by="ada")
    assert "This call was not approved" in (await installation.result(refused)).response
    assert counts.read_text() == "free\na <b>\n"


async def test_a_call_that_is_too_long_to_be_shown_does_not_run_and_the_agent_hears_why(
    installation: Installation,
) -> None:
    counts = equip(installation, counting(installation.settings.root), locale="en")
    installation.worker()
    turn_id = await call(installation, ("prompt", {}), ("counter__write", {"note": "x" * 20_000}))
    turn = await installation.result(turn_id)
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert not counts.exists()
    assert "This call did not run: it is too long to show to a person in full." in turn.response
    assert "A person" not in turn.response


async def test_a_worker_that_is_killed_during_a_call_costs_no_second_call(installation: Installation) -> None:
    counts = equip(installation, counting(installation.settings.root, writes="allow"), lease_seconds=3.0)
    first = installation.worker()
    wait = ("counter__write", {"note": "slow", "wait": True})
    turn_id = await call(installation, ("counter__write", {"note": "a"}), ("counter__write", {"note": "a"}), wait)
    await wait_until(counts.with_suffix(".begun").exists)
    first.kill()
    counts.with_suffix(".go").touch()
    wait_for(lambda: "slow" in counts.read_text())
    wait_for(lambda: not gateways(installation))
    installation.worker()
    turn = await installation.result(turn_id)
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert counts.read_text() == "a\na\nslow\n", "every write was executed once"
    assert turn.response.count("This result was recorded") == 3
    states = [(row["delivery"], row["state"], row["earlier"]) for row in rows(installation, turn_id)]
    assert states[:3] == [(1, "done", ""), (1, "done", ""), (1, "done", "")]
    assert [state[1:] for state in states[3:]] == [("recorded", f"00001-0000{number}") for number in (1, 2, 3)]


async def test_a_call_that_was_under_way_when_worker_and_gateway_died_has_an_unknown_outcome(
    installation: Installation,
) -> None:
    counts = equip(installation, counting(installation.settings.root, writes="allow"), lease_seconds=3.0)
    first = installation.worker()
    wait = ("counter__write", {"note": "slow", "wait": True})
    turn_id = await call(installation, wait, wait)
    await wait_until(counts.with_suffix(".begun").exists)
    for pid in gateways(installation):
        os.kill(pid, signal.SIGKILL)
    first.kill()
    counts.with_suffix(".go").touch()
    installation.worker()
    await installation.until(turn_id, "suspended")
    found = rows(installation, turn_id)
    assert [(row["delivery"] > 1, row["state"]) for row in found] == [
        (False, "begun"),
        (True, "unknown"),
        (True, "asked"),
    ]
    await installation.client.inbox.decide_turn(turn_id, "reject", by="ada")
    turn = await installation.result(turn_id)
    assert "The outcome of this call is unknown" in turn.response
    assert turn.response.count("This call was not approved") == 1


async def test_a_gateway_that_dies_alone_ends_the_run_which_is_delivered_again(installation: Installation) -> None:
    counts = equip(installation, counting(installation.settings.root, writes="allow"), transient_delay_seconds=0.1)
    installation.worker()
    wait = ("counter__write", {"note": "slow", "wait": True})
    turn_id = await call(installation, ("counter__write", {"note": "a"}), wait)
    await wait_until(counts.with_suffix(".begun").exists)
    for pid in gateways(installation):
        os.kill(pid, signal.SIGKILL)
    turn = await installation.result(turn_id)
    assert (turn.outcome, turn.transients) == (Outcome.PASSED, 1), turn
    assert counts.read_text() == "a\n", "the server died with the gateway"
    assert "The outcome of this call is unknown" in turn.response


async def test_results_that_are_too_large_servers_that_die_and_names_that_nobody_has_are_answers(
    installation: Installation,
) -> None:
    root = installation.settings.root
    limited = counting(root, writes="allow", max_result_bytes=10_000)
    gone = block("gone", command=["/nowhere/server"])
    counts = equip(installation, limited, gone)
    installation.worker()
    calls = [
        ("counter__write", {"note": "big", "size": 20_000}),
        ("counter__crash", {}),
        ("counter__write", {"note": "after"}),
        ("gone__anything", {}),
        ("other__anything", {}),
        ("counter__nothing", {}),
        ("counter__write", {"nothing": 1}),
    ]
    turn = await installation.result(await call(installation, *calls))
    said = [line.partition(": ")[2] for line in turn.response.splitlines()[:7]]
    assert said[0].startswith("The call was made, but its result has more than 10000 bytes")
    assert said[1].startswith("The outcome of this call is unknown"), turn.response
    assert said[2].startswith("line 2")
    assert said[3].startswith("The server 'gone' cannot be reached, so the call was not made")
    assert (said[4], said[5]) == (
        "There is no tool 'other__anything' here.",
        "There is no tool 'counter__nothing' here.",
    )
    assert "nothing" not in counts.read_text()


async def test_the_first_tool_of_the_page_works_as_it_is_written(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, settings = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE.read_text(), re.DOTALL)[:2]
    equip(installation, settings)
    root = installation.settings.root
    (root / "tools").mkdir()
    (root / "tools" / "notes.py").write_text(server)
    monkeypatch.setenv("PATH", f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}")
    installation.worker()
    text = "Note that we ship on Friday"
    turn_id = await call(installation, ("notes__add_note", {"text": text}), ("notes__read_notes", {}))
    await installation.until(turn_id, "suspended")
    assert text in installation.run("inbox", "show", turn_id).stdout
    assert installation.run("inbox", "approve", turn_id).returncode == 0
    turn = await installation.result(turn_id)
    assert f"notes__read_notes: {text}" in turn.response, told(installation, turn)
    listed = installation.run("turn", "calls", "last").stdout.splitlines()
    assert [line.split()[5] for line in listed[1:]] == ["asked", "done", "done"], listed


def forbidden() -> list[tuple[str, dict[str, Any]]]:
    """Return attempts to reach what the policy of ``counter`` and ``other`` does not allow."""

    def raw(body: Any, **more: str) -> tuple[str, dict[str, Any]]:
        return "raw", {"body": body if isinstance(body, str) else json.dumps(body), **more}

    def message(name: Any, arguments: Any, method: str = "tools/call") -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": name, "arguments": arguments}}

    note = {"note": "bad"}
    write = message("counter__write", note)
    spelled = [
        "Write",
        "WRITE",
        "wr\u0456te",
        "write\u200b",
        "write ",
        " write",
        "write\n",
        "write\0",
        "../write",
        "*",
        "w*",
        "",
    ]
    tools = [message(f"counter__{name}", note) for name in spelled]
    servers = ["Counter", "count\u0435r", "counter_", "_counter", "other", "OTHER", "counter/..", ".", "*", "", "helix"]
    places = [message(f"{name}__write", note) for name in servers]
    values: list[Any] = ["BAD", "bad ", "\u0432ad", "free", ["free me"], {"free": 1}, None, 7, True, "free\0bad"]
    notes = [message("counter__write", {"note": value}) for value in values if value != "free"]
    shapes = [
        message("counter__write", [note]), message("counter__write", "bad"), message(["counter__write"], note),
        {**write, "method": "tools/Call"}, {**write, "method": "TOOLS/CALL"}, {**write, "method": "tools/call "},
        {**write, "id": None}, {**write, "jsonrpc": "1.0"}, {**write, "params": [write["params"]]},
    ]  # fmt: skip
    double = json.dumps(write)[:-2] + ', "arguments": {"note": "free", "note": "bad"}}}'
    named = json.dumps(write).replace('"name": ', '"name": "counter__read", "name": ')
    sent = [raw([write]), raw([write, write]), raw(double), raw(named), raw("\ufeff" + json.dumps(write)), raw("{")]
    heads = {"x-helix-run": "other", "X-Helix-Run": "", "x-forwarded-for": "127.0.0.1", "authorization": "Bearer x"}
    sent += [raw(write, **{name: value}) for name, value in heads.items()]
    sent += [raw(write, path=path) for path in ("/..", "/../v1/messages", "?run=other", "/counter", "%2f")]
    sent += [
        raw("" if method in {"GET", "HEAD"} else write, method=method) for method in ("GET", "DELETE", "PUT", "HEAD")
    ]
    sent += [
        raw(message("x", {}, method))
        for method in ("resources/read", "prompts/get", "logging/setLevel", "sampling/createMessage")
    ]
    return [*map(raw, [*tools, *places, *notes, *shapes]), *sent]


async def test_sixty_attempts_to_reach_what_the_policy_forbids_reach_nothing(installation: Installation) -> None:
    root = installation.settings.root
    rules = [{"tool": "write", "do": "allow", "arguments": {"note": "free *"}}]
    others = counting(root, "other", writes="allow", keys=["somebody else"])
    counts = equip(installation, counting(root, writes="deny", rules=rules), others)
    installation.worker()
    tried = forbidden()
    turn = await installation.result(await call(installation, *tried, ("counter__write", {"note": "free 1"})))
    answers = [line for line in turn.response.splitlines() if line.startswith("raw:")]
    assert (len(tried) >= 60, len(answers)) == (True, len(tried)), told(installation, turn)
    assert counts.read_text() == "free 1\n"
    done = [row for row in rows(installation, turn.turn_id) if row["state"] not in {"denied", "failed"}]
    assert [json.loads(row["arguments"]) for row in done] == [{"note": "free 1"}], "what was allowed ran"


async def test_a_python_agent_calls_tools_by_its_context(installation: Installation) -> None:
    counts = equip(
        installation, counting(installation.settings.root, writes="allow"), models={"m": "python:asks:agent"}
    )
    (installation.settings.root / "asks.py").write_text(
        "def agent(context):\n"
        "    names = [each['name'] for each in context.list_tools()]\n"
        "    result = context.call_tool('counter__write', note='a')\n"
        "    return f\"{names[0]} {result['content'][0]['text']}\"\n"
    )
    installation.worker()
    turn = await installation.answer("hello", model="m", validators=())
    assert (turn.response.split()[:3], counts.read_text()) == (["counter__read", "line", "1"], "a\n"), told(
        installation, turn
    )


@pytest.mark.parametrize("model", ["command:agent.yaml", "python:asks:agent"])
async def test_an_agent_that_begins_anew_after_a_question_has_its_text_in_the_answer_once(
    installation: Installation, model: str
) -> None:
    equip(installation, counting(installation.settings.root), models={"m": model})
    (installation.settings.root / "asks.py").write_text(
        "def agent(context):\n"
        "    yield 'tools: I look. '\n"
        "    yield str(context.call_tool('counter__write', note='a')['content'][0]['text'])\n"
    )
    installation.worker()
    turn_id = await call(installation, ("list", {}), ("counter__write", {"note": "a"}))
    await installation.until(turn_id, "suspended")
    await installation.client.inbox.decide_turn(turn_id, "approve", by="ada")
    turn = await installation.result(turn_id)
    assert turn.response.count("tools:") == 1, told(installation, turn)
    assert "line 1" in turn.response
