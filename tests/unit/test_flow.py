"""Which flow version a session has: by share, kept, and moved only where it must be."""

from __future__ import annotations

from collections import Counter

from api_client.policies.flows import RolledBack, active, flow_of

SESSIONS = [f"s-{number}" for number in range(4000)]


def spread(versions: dict[str, int]) -> dict[str, str]:
    return {session: flow_of(session, versions) for session in SESSIONS}


def test_sessions_are_spread_as_the_weights_say() -> None:
    found = Counter(spread({"v2": 9, "v3": 1}).values())
    assert 300 < found["v3"] < 500
    assert Counter(spread({"v2": 1, "v3": 1, "off": 0}).values()).keys() == {"v2", "v3"}


def test_a_larger_share_moves_sessions_to_its_version_alone() -> None:
    few, many = spread({"v2": 9, "v3": 1}), spread({"v2": 1, "v3": 1})
    moved = {(few[session], many[session]) for session in SESSIONS if few[session] != many[session]}
    assert moved == {("v2", "v3")}


def test_a_rollback_moves_the_sessions_of_that_version_alone_and_they_come_back() -> None:
    versions = {"v2": 2, "v3": 1, "v4": 1}
    before, after = spread(versions), spread(active(versions, {"v3"}))
    assert all(after[session] == flow for session, flow in before.items() if flow != "v3")
    assert {after[session] for session, flow in before.items() if flow == "v3"} == {"v2", "v4"}
    assert spread(active(versions, ())) == before


def test_where_no_version_with_a_weight_is_left_the_others_get_turns() -> None:
    assert active({"v2": 0, "v3": 1}, {"v3"}) == {"v2": 1}
    assert active({"v2": 0, "v3": 1}, ()) == {"v3": 1}
    assert active({"v2": 0, "v3": 1}, {"v2", "v3"}) == {"v3": 1}


def test_what_is_stored_of_a_rollback_reads_back() -> None:
    said = RolledBack(at=1.5, by="anna@host", why="too slow")
    assert RolledBack.from_json(said.to_json()) == said
