"""The pure parts of the tool gateway: what happens to a call, and which recorded call it repeats."""

from dataclasses import replace
from typing import Any

import pytest

from api_client.contract.owners import owner_of_name
from api_client.contract.tool_call_row import CallRow, CallState
from tests.growth import assert_linear
from worker.enforcement.tool_call_log import find_identifiers
from worker.plugins.tools.call_matching import find_known_deliveries, find_recorded_call, was_unknown
from worker.plugins.tools.call_policy import CallRule, GatewayCall, decide_call
from worker.plugins.tools.call_store import count_call

READ = GatewayCall(server="s", tool="get_issue", arguments={}, read_only=True)


def write(**arguments: Any) -> GatewayCall:
    return GatewayCall(server="s", tool="pay", arguments=arguments, owner=owner_of_name("alice"))


def decided(call: GatewayCall, *rules: CallRule, writes: str = "ask") -> str:
    return decide_call(call, rules, writes).reaction.value


def test_without_a_rule_read_only_tools_run_and_others_ask() -> None:
    assert (decided(READ), decided(write())) == ("allow", "ask")
    assert (decided(READ, writes="deny"), decided(write(), writes="deny")) == ("allow", "deny")


def test_the_first_rule_that_matches_decides() -> None:
    rules = CallRule(tool="get_*", do="deny"), CallRule(tool="*", do="allow")
    assert (decided(READ, *rules), decided(write(), *rules)) == ("deny", "allow")


@pytest.mark.parametrize(
    ("wanted", "given", "allows", "denies"),
    [
        ({"max": 100}, 100, True, True),
        ({"max": 100}, 100.5, False, False),
        ({"min": 1, "max": 100}, 0, False, False),
        ({"max": 100}, "5", False, True),
        ({"max": 100}, True, False, True),
        ({"max": 100}, None, False, True),
        ({"max": 100}, float("nan"), False, True),
        ({"max": 100}, 10**400, False, False),
        ("reports/*", "reports/a", True, True),
        ("reports/*", "Reports/a", False, False),
        ("reports/*", ["reports/a"], False, True),
        (True, 1, False, True),
        (1, 1, True, True),
        (2**60, 2**60, True, True),
        (2**60, 2**60 + 1, False, True),
        ({"min": 2**60}, 2**60 - 1, False, True),
        ({"max": 2**60}, 2**60 + 1, False, True),
        ({"min": 10**400}, 10**400, True, True),
    ],
)
def test_a_rule_that_allows_must_match_and_one_that_restricts_matches_a_value_of_another_kind_too(
    wanted: object, given: object, allows: bool, denies: bool
) -> None:
    call = write(amount=given)
    assert (decided(call, CallRule(tool="pay", do="allow", arguments={"amount": wanted})) == "allow") is allows
    rule = CallRule(tool="pay", do="deny", arguments={"amount": wanted})
    assert (decided(call, rule, writes="allow") == "deny") is denies


def test_a_missing_argument_never_loosens_and_always_restricts() -> None:
    assert decided(write(), CallRule(tool="pay", do="allow", arguments={"amount": {"max": 9}})) == "ask"
    assert decided(write(), CallRule(tool="pay", do="deny", arguments={"to.0.name": "x"}), writes="allow") == "deny"


def test_a_rule_that_asks_restricts_too() -> None:
    rule = CallRule(tool="pay", do="ask", arguments={"amount": {"min": 100}})
    assert (decided(write(), rule, writes="allow"), decided(write(amount="5"), rule, writes="allow")) == ("ask", "ask")
    assert decided(write(amount=5), rule, writes="allow") == "allow"


def test_paths_lead_into_tables_and_lists() -> None:
    rule = CallRule(tool="pay", do="allow", arguments={"to.1.name": "bob"})
    assert decided(write(to=[{"name": "eve"}, {"name": "bob"}]), rule) == "allow"
    assert decided(write(to=[{"name": "bob"}]), rule) == "ask"
    assert decided(write(to=["bob"]), CallRule(tool="pay", do="allow", arguments={"to.name": "bob"})) == "ask"
    assert decided(write(to=["bob"]), CallRule(tool="pay", do="allow", arguments={"to.-1": "bob"})) == "ask"


def test_names_of_tools_are_compared_as_they_are_written() -> None:
    for called, named in (("Pay", "pay"), ("pay", "P*")):
        assert decided(replace(write(), tool=called), CallRule(tool=named, do="allow")) == "ask"


def test_rules_see_owners_and_what_the_server_says_about_the_tool() -> None:
    mine = CallRule(tool="*", do="allow", owners=("alice",), destructive=False)
    assert decided(write(), mine) == "ask", "a server that says nothing has tools that destroy"
    assert decided(replace(write(), destructive=False), mine) == "allow"
    assert decided(replace(write(), destructive=False, owner=owner_of_name("bob")), mine) == "ask"


def row(delivery: int, number: int, note: str = "a", state: CallState = CallState.DONE, **more: Any) -> CallRow:
    facts = {"attempt": 1, "gateway": f"g{delivery}", "server": "s", "tool": "write", **more}
    return CallRow(number=number, delivery=delivery, digest=note, state=state, **facts)


def found(rows: list[CallRow], call: CallRow, *known: int, fresh: bool = False) -> str:
    recorded = find_recorded_call(rows, call, known, fresh=fresh)
    return recorded.name if recorded else ""


def test_a_call_of_a_repeated_delivery_finds_its_row_and_two_equal_writes_are_two() -> None:
    rows = [row(1, 1), row(1, 2), row(1, 3, "b")]
    first = row(2, 1)
    assert found(rows, first) == "00001-00001"
    rows.append(replace(first, state=CallState.RECORDED, earlier="00001-00001"))
    assert found(rows, row(2, 2)) == "00001-00002"
    rows.append(replace(row(2, 2), state=CallState.RECORDED, earlier="00001-00002"))
    assert found(rows, row(2, 3)) == "", "each row answers once in a delivery"
    assert found(rows, row(2, 3, "b")) == "00001-00003"
    assert found([*rows, row(2, 4)], row(3, 1)) == "00001-00001", "a third delivery begins anew"


def test_equal_writes_of_one_delivery_are_made() -> None:
    assert found([row(1, 1)], row(1, 2, gateway="g1")) == ""


def test_reads_are_made_again_and_an_agent_with_a_session_remembers_earlier_attempts() -> None:
    assert found([row(1, 1, read_only=True)], row(2, 1, read_only=True)) == ""
    assert found([row(1, 1)], row(2, 1, read_only=True)) == "00001-00001", "a server changed what it says about it"
    assert found([row(1, 1)], row(2, 1, attempt=2)) == ""
    assert found([row(1, 1)], row(2, 1, attempt=2), fresh=True) == "00001-00001"


def test_what_the_agent_remembers_by_its_session_is_not_answered_from_the_log() -> None:
    rows = [row(1, 1), row(2, 1)]
    assert found(rows, row(3, 1), 1) == "00002-00001"
    assert found(rows, row(3, 1), 2) == "00001-00001", "its session began in the second delivery"
    assert found(rows, row(3, 1), 1, 2) == ""
    begun = [replace(row(1, 1), state=CallState.BEGUN)]
    assert found(begun, row(2, 1), 1) == "00001-00001", "it never got this result"
    told = replace(row(1, 2), state=CallState.UNKNOWN, earlier="00001-00001")
    assert found([*begun, told], row(2, 1), 1) == "", "it was told so"


def test_a_session_continues_those_that_it_began_from() -> None:
    rows = [row(1, 1), row(2, 1), row(3, 1, continues=1), row(4, 1, continues=3)]
    assert find_known_deliveries(rows, 0) == set()
    assert find_known_deliveries(rows, 2) == {2}
    assert find_known_deliveries(rows, 4) == {4, 3, 1}


def test_only_calls_that_may_have_been_executed_answer() -> None:
    states = [CallState.FAILED, CallState.DENIED, CallState.ASKED, CallState.RECORDED]
    assert found([row(1, number, state=state) for number, state in enumerate(states, 1)], row(2, 1)) == ""
    told = row(1, 6, state=CallState.UNKNOWN, earlier="00000-00001")
    assert found([told], row(2, 1)) == ""
    for state in (CallState.BEGUN, CallState.UNKNOWN):
        assert found([row(1, 1, state=state)], row(2, 1)) == "00001-00001"


def test_a_call_under_way_in_a_gateway_that_died_is_found_by_the_next_gateway_of_the_run() -> None:
    begun = row(1, 1, state=CallState.BEGUN, gateway="dead")
    assert found([begun], row(1, 2)) == "00001-00001"
    assert found([replace(begun, gateway="g1")], row(1, 2)) == "", "it is under way"
    assert found([replace(begun, state=CallState.DONE)], row(1, 2)) == "", "the agent has its result"


def test_an_unknown_outcome_is_remembered_for_the_run_alone() -> None:
    rows = [row(2, 1, state=CallState.UNKNOWN, earlier="00001-00001")]
    assert was_unknown(rows, row(2, 2))
    assert not was_unknown(rows, row(3, 1))


def test_a_call_that_an_earlier_one_answered_is_counted_without_a_duration() -> None:
    made, told = row(1, 1, state=CallState.UNKNOWN), row(2, 1, state=CallState.UNKNOWN, earlier="00001-00001")
    assert [any("time.tool" in name for name in count_call(each)) for each in (made, told)] == [True, False]
    assert [count_call(each)["tool.called|s|write|unknown"] for each in (made, told)] == [1, 1]
    assert count_call(replace(made, state=CallState.BEGUN)) == {}


def test_rows_survive_the_store_and_fields_of_later_versions() -> None:
    made = row(2, 1, state=CallState.RECORDED, earlier="00001-00001", approved=True)
    assert CallRow.from_dict({**made.to_dict(), "cost": 1}) == made


@pytest.mark.parametrize("shape", ["x", "x_", "a-", "1", "a1-", "x ", "_"])
def test_names_in_a_long_result_are_found_in_time_that_grows_with_it(shape: str) -> None:
    assert_linear(lambda size: find_identifiers(shape * 30_000 * size))


def test_names_are_found_at_the_beginning_of_words() -> None:
    assert find_identifiers("PROJ-12, abc_1-3: 45") == ("PROJ-12", "ABC_1-3", "45")
