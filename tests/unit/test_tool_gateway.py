"""One run of the tool gateway, with a store, servers and a worker that the test plays."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp_types import CallToolResult

from api_client.contract.errors import StoreUnavailable
from tests.support import wait_until
from tests.tools.played import SERVER, Played, text
from worker.plugins.tools import gateway
from worker.plugins.tools.call_policy import CallRule
from worker.plugins.tools.call_store import RunFenced
from worker.plugins.tools.upstream import (
    CallRefused,
    MalformedResult,
    OutcomeUnknown,
    ServerUnreachable,
    SessionGone,
)


@pytest.fixture
async def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(gateway, "_HELD_SECONDS", 0.01)
    monkeypatch.setattr(gateway, "_AGAIN_SECONDS", 0.01)
    return Played()


async def test_a_row_is_written_before_the_call_leaves_and_before_its_result_returns(played: Played) -> None:
    assert await played.run().say(note="a") == "ok"
    assert played.log == ["write begun", "call write", "write done", "report done"]


async def test_known_secrets_are_masked_in_what_is_stored_and_shown_and_are_sent_as_they_are(played: Played) -> None:
    played.server, played.secrets = replace(SERVER, writes="ask"), {"theirs-1234"}
    await played.run(secrets=("ours-56789",)).say(a=["x theirs-1234"], b={"ours-56789": 1}, c="mine-0")
    row = played.rows["00001-00001"]
    assert row.arguments == '{"a": ["x ***"], "b": {"***": 1}, "c": "mine-0"}'
    assert "⟦secret⟧" in played.log[-1]
    assert not any(secret in played.log[-1] for secret in ("theirs-1234", "ours-56789"))
    played.usable = 1
    run = played.run(2, approved=row.digest, secrets=("ours-56789",))
    assert await run.say(a=["x theirs-1234"], b={"ours-56789": 1}, c="mine-0") == "ok", (
        "the true arguments are compared"
    )
    assert played.made == [{"a": ["x theirs-1234"], "b": {"ours-56789": 1}, "c": "mine-0"}]
    assert played.rows["00002-00001"].names == ("1", "MINE-0"), "an identifier that is a secret is not kept"


async def test_no_call_leaves_without_its_row_and_none_after_another_worker_has_the_turn(played: Played) -> None:
    run = played.run()
    played.fails = StoreUnavailable("down")
    assert "could not be recorded" in await run.say()
    played.fails = RunFenced()
    assert "This run has ended" in await run.say()
    played.fails = None
    run.end_run()
    assert "This run has ended" in await run.say()
    assert (played.made, played.rows) == ([], {})


async def test_a_result_that_cannot_be_stored_does_not_reach_the_agent(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "_TRIES", 2)

    def fail(_: Any) -> CallToolResult:
        played.fails = StoreUnavailable("down")
        return text("secret result")

    played.act = fail
    assert "outcome of this call is unknown" in await played.run().say()
    assert played.states() == ["begun"]
    played.fails = None
    assert "outcome of this call is unknown" in await played.run(2).say(), "the next delivery does not make it again"
    assert len(played.made) == 1


async def test_a_store_that_is_away_for_a_moment_costs_no_result(played: Played) -> None:
    def fail_once(_: Any) -> CallToolResult:
        played.fails = StoreUnavailable("down")
        asyncio.get_running_loop().call_later(0.005, setattr, played, "fails", None)
        return text("ok")

    played.act = fail_once
    assert (await played.run().say(), played.states()) == ("ok", ["done"])


async def test_of_two_secrets_that_begin_alike_the_longer_one_is_masked_whole(played: Played) -> None:
    played.secrets = {"canary", "canary-and-more"}
    await played.run(secrets=("canary-and",)).say(n="canary-and-more canary-and")
    assert played.rows["00001-00001"].arguments == '{"n": "*** ***"}'


@pytest.mark.parametrize(
    ("raised", "said", "state"),
    [
        (OutcomeUnknown("x"), "outcome of this call is unknown", "unknown"),
        (CallRefused("no"), "The server refused the call: no", "failed"),
        (ServerUnreachable("down"), "so the call was not made: down", "failed"),
        (MalformedResult("bad"), "result cannot be read: bad", "done"),
    ],
)
async def test_what_is_known_about_a_failed_call_is_told_and_recorded(
    played: Played, raised: Exception, said: str, state: str
) -> None:
    played.act = lambda _: raised
    assert said in await played.run().say()
    assert played.states() == [state]


async def test_a_call_that_a_server_refused_for_its_session_is_made_in_a_new_one_once(played: Played) -> None:
    answers: list[Any] = [SessionGone("gone"), text("ok"), SessionGone("gone"), SessionGone("gone")]
    played.act = lambda _: answers.pop(0)
    run = played.run()
    assert await run.say() == "ok"
    assert played.found == ["write"] * 2, "in the new session too, before the call"
    assert "so the call was not made" in await run.say()
    assert played.states() == ["done", "failed"]


async def test_a_long_refusal_of_a_server_is_cut_and_is_still_a_refusal(played: Played) -> None:
    played.act = lambda _: CallRefused("no " * 2**20)
    said = await played.run().say()
    assert (said[:27], len(said) < 600, played.states()) == ("The server refused the call", True, ["failed"])


async def test_a_write_of_unknown_outcome_is_asked_about_and_a_read_is_made_again(played: Played) -> None:
    played.act = lambda _: OutcomeUnknown("x")
    run = played.run()
    await run.say("read")
    await run.say("read")
    await run.say("write", n=1)
    assert len(played.made) == 3
    assert "waits for a person" in await run.say("write", n=1)
    assert (len(played.made), played.log[-1]) == (3, "ask {'n': '⟦JSON⟧ 1'}")


async def test_a_repeated_delivery_is_told_of_an_unknown_outcome_and_asks_about_its_repetition(played: Played) -> None:
    played.act = lambda _: OutcomeUnknown("x")
    await played.run().say(n=1)
    again = played.run(2)
    said = await again.say(n=1)
    assert ("outcome of this call is unknown" in said, "was recorded" in said) == (True, False)
    assert "waits for a person" in await again.say(n=1)
    assert (played.states(), len(played.made)) == (["unknown", "unknown", "asked"], 1)


async def test_the_note_of_a_recorded_result_is_all_that_a_client_can_read_beside_it(played: Played) -> None:
    played.act = lambda _: text("ok").model_copy(update={"structured_content": {"n": 1}})
    await played.run().say(n=1)
    result = await played.run(2).call_tool("s__write", {"n": 1}, asyncio.Event())
    assert (result.structured_content, len(result.content)) == (None, 2)


async def test_an_approval_is_for_one_call_with_exactly_these_arguments(played: Played) -> None:
    played.server = replace(SERVER, writes="ask")
    first = played.run()
    assert "waits for a person" in await first.say(n=1)
    digest = played.rows["00001-00001"].digest
    played.usable = 2  # the turn's record lets the same run use it again
    second = played.run(2, approved=digest)
    assert await second.say(n=1) == "ok"
    assert played.rows["00002-00001"].approved
    assert "waits for a person" in await second.say(n=1), "it is used up"
    played.usable = 1
    assert "waits for a person" in await played.run(3, approved=digest).say(n=2)
    played.usable, played.rows = 0, {}
    used = played.run(4, approved=digest)
    assert "waits for a person" in await used.say(n=1), "another delivery used it up"
    assert played.made == [{"n": 1}]


async def test_a_call_with_a_dot_is_another_call_than_one_with_the_deliverys_folder(played: Played) -> None:
    assert await played.run().say(note="a.b") == "ok"
    played.server, played.usable = replace(SERVER, writes="ask"), 1
    approved = played.rows["00001-00001"].digest
    assert "waits for a person" in await played.run(2, approved=approved).say(note="a/d2b")
    assert played.made == [{"note": "a.b"}]


async def test_a_call_that_a_person_refused_is_not_made_and_nobody_is_asked_where_nobody_can_answer(
    played: Played,
) -> None:
    played.server = replace(SERVER, writes="ask")
    await played.run().say(n=1)
    rejected = played.run(2, rejected=played.rows["00001-00001"].digest)
    assert "This call was not approved" in await rejected.say(n=1)
    assert "nobody can be asked here" in await played.run(3, asks=False).say(n=1)
    assert played.made == []


async def test_what_a_server_does_not_say_about_a_tool_is_the_worst(played: Played) -> None:
    rules = (CallRule(tool="write", do="allow", destructive=False), CallRule(tool="write", do="allow", read_only=True))
    played.server = replace(SERVER, writes="deny", rules=rules)
    assert "not allowed here" in await played.run().say()


async def test_rows_keep_no_endless_arguments(played: Played) -> None:
    assert await played.run().say(n="x" * 5_000) == "ok"
    assert played.rows["00001-00001"].arguments == ""


@pytest.mark.parametrize(("said", "cost"), [(0.5, 0.5), (True, 0), (-1, 0), (10_001, 0), ("1", 0), (float("nan"), 0)])
async def test_a_cost_is_believed_if_it_can_be_one(played: Played, said: object, cost: float) -> None:
    played.act = lambda _: text("ok").model_copy(update={"meta": {"cost_usd": said}})
    await played.run().say()
    assert played.rows["00001-00001"].cost_usd == cost


async def test_one_question_at_a_time(played: Played) -> None:
    played.server = replace(SERVER, writes="ask")
    run = played.run()
    said = await asyncio.gather(run.say(n=1), run.say(n=2))
    assert ["waits for a person" in said[0], "This run has ended" in said[1]] == [True, True]
    assert played.states() == ["asked"]


async def test_calls_are_limited_in_number_and_results_in_size(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_MOST_CALLS", 2)
    played.server, played.act = replace(SERVER, max_result_bytes=1_000), lambda _: text("x" * 1_000)
    run = played.run()
    said = [await run.say() for _ in range(3)]
    assert "more than 1000 bytes and was dropped" in said[0]
    assert "may make at most 2 calls" in said[2]
    assert "x" * 100 not in str(played.results)


async def test_a_gateway_that_replaces_a_dead_one_overwrites_no_row(played: Played) -> None:
    await played.run().say(n=1)
    await played.run().say(n=2)
    assert len(played.rows) == 2


async def test_tools_are_listed_without_a_schema_of_their_output_and_hanging_servers_are_left_out(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [(tool.name, tool.output_schema) for tool in await played.run().list_tools()] == [("s__write", None)]
    monkeypatch.setattr(gateway, "_LIST_SECONDS", 0.01)
    monkeypatch.setattr(played, "find_session", lambda *_: asyncio.Event().wait())
    assert await played.run().list_tools() == []


async def test_an_attempt_of_an_agent_without_a_session_repeats_no_write_of_an_earlier_attempt(played: Played) -> None:
    await played.run().say(n=1)
    assert await played.run(2, attempt=2, fresh=False).say(n=1) == "ok", "it remembers, so it means it"
    assert "was not made again" in await played.run(3, attempt=3).say(n=1)


async def test_rules_see_the_arguments_and_names_are_exact(played: Played) -> None:
    rules = (CallRule(tool="write", do="deny", arguments={"to.0": "eve"}),)
    played.server = replace(SERVER, rules=rules)
    run = played.run()
    assert "not allowed here" in await run.say(to=["eve"])
    for name in ("s__Write", "S__write", "s__write ", "s_write", "__write", "s__", "other__write"):
        assert "There is no tool" in (await run.call_tool(name, {}, asyncio.Event())).content[0].text
    assert played.made == []


async def test_numbers_and_characters_that_json_cannot_carry_do_not_leave(played: Played) -> None:
    run = played.run()
    for value in (float("nan"), float("inf"), "\ud800"):
        assert "JSON cannot carry" in await run.say(n=[value])
    limits = (CallRule(tool="write", do="allow", arguments={"n": {"max": 9}}),)
    played.server = replace(SERVER, writes="deny", rules=limits)
    assert "not allowed here" in await played.run().say(n=10**400)
    assert played.made == []


async def test_a_repeated_delivery_gets_the_recorded_results_in_order_and_reads_are_made_again(played: Played) -> None:
    count = iter(range(1, 9))
    played.act = lambda _: text(f"line {next(count)}")
    first = played.run()
    assert [await first.say(n=1), await first.say(n=1), await first.say("read")] == ["line 1", "line 2", "line 3"]
    assert played.results.keys() == {"00001-00001", "00001-00002"}, "results of reads are of no use"
    again = played.run(2)
    said = [await again.say(n=1), await again.say(n=1), await again.say("read"), await again.say(n=1)]
    assert [each[:6] for each in said] == ["line 1", "line 2", "line 4", "line 5"]
    assert ["was not made again" in each for each in said] == [True, True, False, False]


async def test_a_call_whose_agent_has_left_is_not_made_again_for_its_repetition(played: Played) -> None:
    run, gone, begun, go = played.run(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_: Any = None) -> CallToolResult:
        begun.set()
        await go.wait()
        return text("ok")

    played.act = lambda _: slow()
    first = asyncio.create_task(run.say(gone=gone, n=1))
    await begun.wait()
    other = asyncio.create_task(run.say(n=1))
    await wait_until(lambda: len(played.made) == 2)
    gone.set()
    again = asyncio.create_task(run.say(n=1))
    await wait_until(lambda: any(row.earlier for row in run._rows.values()))
    assert len(played.made) == 2
    go.set()
    assert "was not made again" in await again
    assert (await first, await other, len(played.made)) == ("ok", "ok", 2), (
        "two equal calls of an agent that waits are two"
    )
    assert [row.unseen for _, row in sorted(played.rows.items())] == [True, False, False]
    played.act = lambda _: text("new")
    assert await run.say(n=1) == "new", "the row has answered"


async def test_a_call_that_failed_after_its_agent_had_left_may_be_made_again(played: Played) -> None:
    run, gone, begun, go = played.run(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def refuse() -> Exception:
        begun.set()
        await go.wait()
        return CallRefused("no")

    played.act = lambda _: refuse()
    first = asyncio.create_task(run.say(gone=gone, n=1))
    await begun.wait()
    gone.set()
    again = asyncio.create_task(run.say(n=1))
    await wait_until(lambda: any(row.earlier for row in run._rows.values()))
    go.set()
    assert "was not executed. You may make it again" in await again
    await first
    played.act = lambda _: text("ok")
    assert (await run.say(n=1), len(played.made)) == ("ok", 2)


async def test_a_recorded_result_that_did_not_arrive_either_is_given_again(played: Played) -> None:
    await played.run().say(n=1)
    run, gone = played.run(2), asyncio.Event()
    assert "was not made again" in await run.say(gone=gone, n=1)
    gone.set()
    assert "was not made again" in await run.say(n=1)
    assert len(played.made) == 1


async def test_a_recorded_result_that_could_not_be_noted_is_given_again(played: Played) -> None:
    await played.run().say(n=1)
    run = played.run(2)
    played.fails = StoreUnavailable("down")
    assert "could not be recorded" in await run.say(n=1)
    played.fails = None
    assert "was not made again" in await run.say(n=1)
    assert len(played.made) == 1


async def test_a_question_waits_for_the_calls_under_way_whose_results_the_agent_does_not_get(played: Played) -> None:
    played.server = replace(SERVER, writes="ask", rules=(CallRule(tool="write", do="allow", arguments={"n": 1}),))
    run, begun, go = played.run(), asyncio.Event(), asyncio.Event()

    async def slow() -> CallToolResult:
        begun.set()
        await go.wait()
        return text("ok")

    played.act = lambda _: slow()
    first = asyncio.create_task(run.say(n=1))
    await begun.wait()
    gateway._HELD_SECONDS = 60
    asks = asyncio.create_task(run.say(n=2))
    await wait_until(lambda: "write asked" in played.log)
    assert not any(each.startswith("ask") for each in played.log)
    go.set()
    await wait_until(lambda: any(each.startswith("ask") for each in played.log))
    assert played.log.index("write done") < len(played.log) - 1
    assert not (await asyncio.wait([asks], timeout=0.1))[0], "held until the agent is stopped"
    run.end_run()
    await asyncio.gather(first, asks)
    assert played.rows["00001-00001"].unseen
    continued = played.run(2, continues=1)
    assert "was not made again" in await continued.say(n=1), "the session does not know the result"


async def test_a_session_remembers_its_own_deliveries_and_no_other(played: Played) -> None:
    await played.run(1).say(n=1)  # died; the next delivery started anew and asked
    await played.run(2).say(n=2)
    await played.run(3, continues=2).say(n=3)
    run = played.run(4, continues=3)
    assert "was not made again" in await run.say(n=1)
    assert [await run.say(n=2), await run.say(n=3)] == ["ok", "ok"]
