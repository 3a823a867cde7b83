"""What a worker tells the gateway about a run, and what it makes of the gateway's reports."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api_client.contract.interruption import Interruption
from api_client.contract.settings import load_settings
from api_client.contract.tool_call_row import CallRow, CallState
from api_client.contract.tool_calls import MAX_QUESTIONS, TOOL_CALL, WaitingCall
from api_client.contract.turn import Turn, TurnRequest, TurnState
from tests.runs import order_in
from worker.plugins.tools import equipment
from worker.plugins.tools.equipment import ToolEquipment, _add_answer, _describe_run, _RunHandler
from worker.plugins.tools.tool_servers import ASKED_BY
from worker.runners.base import Order, ToolAccess
from worker.turns.run_equipment import EquipmentContext

KEY = "sk-of-the-model-1234"


def context(tmp_path: Path, **turn: Any) -> EquipmentContext:
    environ = {"HELIX_ROOT": str(tmp_path), "HELIX_OPENAI_API_KEY": KEY}
    request = turn.pop("request", TurnRequest(model="m", messages=(), session_id="s"))
    facts = Turn(turn_id="t", epoch="e", state=TurnState.RUNNING, request=request, **turn)
    none: Any = None
    return EquipmentContext(turn=facts, settings=load_settings(environ), token="k", control=none, use_up=lambda: True)


def question(answer: str, asked_by: str = "gateway", delivery: int = 3) -> Interruption:
    asked = WaitingCall(call="d", tool="s.write", arguments={"n": 1}, digest="d").to_interruption()
    return replace(asked, answer=answer, delivery=delivery, asked={**asked.asked, ASKED_BY: asked_by})


@pytest.fixture
def order(tmp_path: Path) -> Order:
    return order_in(tmp_path, "t")


@pytest.mark.parametrize(
    ("answer", "asked_by", "used", "approved", "rejected"),
    [
        ("approve", "gateway", "", "d", ""),
        ("approve", "gateway", "nonce", "", ""),
        ("approve", "", "", "", ""),
        ("reject", "gateway", "", "", "d"),
        ("reject", "", "", "", ""),
        ("", "gateway", "", "", "d"),
    ],
)
def test_a_persons_answer_counts_if_the_gateway_asked_and_nobody_used_it(
    tmp_path: Path, order: Order, answer: str, asked_by: str, used: str, approved: str, rejected: str
) -> None:
    answered = replace(order, interruption=question(answer, asked_by))
    told = _describe_run(answered, context(tmp_path, answer_used=used), [])
    assert (told["approved"], told["rejected"]) == (approved, rejected)
    assert (_add_answer(answered).interruption is None) == bool(asked_by), "an agent's own question stays its own"


def test_an_agent_remembers_the_calls_of_the_session_that_it_continues(tmp_path: Path, order: Order) -> None:
    asked, here = question("approve"), context(tmp_path)
    told = [
        _describe_run(replace(order, agent_session=session, interruption=asked_before), here, [])
        for session, asked_before in (("", None), ("", asked), ("a", None), ("a", asked))
    ]
    assert [(each["fresh"], each["continues"]) for each in told] == [(True, 0), (True, 0), (False, 0), (False, 3)]


def test_nobody_is_asked_more_than_so_often_or_about_work_outside_of_a_session(tmp_path: Path, order: Order) -> None:
    often = {TOOL_CALL: {"asked": MAX_QUESTIONS}}
    phase = TurnRequest(model="m", messages=(), session_id="s", work="phase")
    told = [context(tmp_path), context(tmp_path, interruptions=often), context(tmp_path, request=phase)]
    assert [_describe_run(order, each, [])["asks"] for each in told] == [True, False, False]


def test_the_gateway_knows_the_secrets_of_the_settings_and_a_reader_gets_no_gateway(
    tmp_path: Path, order: Order
) -> None:
    assert KEY in _describe_run(order, context(tmp_path), [])["secrets"]
    (tmp_path / "helix.toml").write_text('[tools.s]\nurl = "http://127.0.0.1:1/mcp"\n')
    here = context(tmp_path)
    with_tools = replace(
        here, settings=load_settings({"HELIX_ROOT": str(tmp_path), "HELIX_CONFIG": str(tmp_path / "helix.toml")})
    )
    assert ToolEquipment().equip_run(replace(order, read_only=True), with_tools) is None
    assert ToolEquipment().equip_run(order, with_tools) is not None


async def test_a_runs_gateway_is_closed_with_it_and_its_agent_is_kept_for_no_other_run(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, control = list[str](), SimpleNamespace(evidence={}, observed=None)

    class Gateway:
        def open_run(self, spec: Any, _: Any) -> tuple[str, str]:
            opened.append("secret")
            return "/socket", "secret"

        def close_run(self, secret: str) -> None:
            opened.remove(secret)

    monkeypatch.setattr(equipment, "shared_gateway", lambda _: Gateway())
    given: Any = control
    here = replace(context(tmp_path), control=given)
    async with equipment._open_gateway(replace(order, owner="ada"), here, []) as equipped:
        assert (opened, equipped.owner) == (["secret"], "")
        assert equipped.tool_access == ToolAccess(socket=Path("/socket"), secret="secret")
    assert (opened, control.evidence) == ([], {"tools": []})


def test_the_log_of_a_run_has_the_calls_that_were_made_and_says_which_succeeded(tmp_path: Path) -> None:
    handler = _RunHandler(context(tmp_path))
    made = CallRow(number=1, attempt=1, delivery=1, gateway="g", server="s", tool="write", digest="d")
    states = [*CallState]
    handler._rows = [replace(made, state=state) for state in states]
    handler._rows.append(replace(made, state=CallState.DONE, is_error=True))
    handler._rows.append(replace(made, state=CallState.DONE, read_only=True))
    handler._rows.append(replace(made, state=CallState.RECORDED, is_error=True))
    found = [(call.kind, call.ok, call.ran) for call in handler.log_calls().calls]
    assert found == [
        ("sent", False, True),
        ("sent", True, True),
        ("sent", False, False),
        ("sent", True, True),
        ("sent", None, True),
        ("sent", False, True),
        ("read", True, True),
        ("sent", False, True),
    ]
    assert {call["state"] for call in handler.summarise_calls()} == {state.value for state in states}
