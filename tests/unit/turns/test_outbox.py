from __future__ import annotations

from worker.turns.record.command import Outbox


def test_what_a_store_has_forgotten_is_sent_again_in_order() -> None:
    outbox = Outbox[str]()
    for number, command in enumerate(("one", "two", "three"), 1):
        assert outbox.number == number
        outbox.add(command)
    assert outbox.between(0, 3) == ["one", "two"]
    assert outbox.between(1, 3) == ["two"]
    assert outbox.between(2, 3) == []
