"""Which replica Sentinel may promote."""

from __future__ import annotations

from typing import Any

import pytest

from worker.turns.leases.replica_watch import MAY, MAY_NOT, priority_of

ADDRESS = ("127.0.0.1", 7001)


def seen(replica: dict[str, Any], state: str = "online", offset: int = 100) -> int:
    master = {"slave0": {"ip": "127.0.0.1", "port": 7001, "state": state}, "slave_read_only": 1}
    return priority_of({"slave_repl_offset": 100, **replica}, ADDRESS, master, offset)


def test_a_replica_that_has_all_that_the_master_had_may_be_promoted() -> None:
    assert seen({"master_link_status": "up", "slave_priority": 0}) == MAY


@pytest.mark.parametrize(
    ("replica", "state"),
    [
        ({"master_link_status": "down", "slave_priority": 100}, "online"),
        ({"master_link_status": "up", "slave_priority": 100}, "wait_bgsave"),
        ({"slave_priority": 100}, "online"),
    ],
)
def test_a_replica_that_is_out_of_step_may_not(replica: dict[str, Any], state: str) -> None:
    assert seen(replica, state) == MAY_NOT


def test_a_replica_that_its_master_does_not_know_may_not() -> None:
    assert priority_of({"master_link_status": "up", "slave_repl_offset": 5}, ADDRESS, {}, 1) == MAY_NOT


@pytest.mark.parametrize("offset", [0, 101])
def test_a_replica_that_has_not_caught_up_yet_stays_as_it_is(offset: int) -> None:
    for priority in (MAY, MAY_NOT):
        assert seen({"master_link_status": "up", "slave_priority": priority}, offset=offset) == priority
