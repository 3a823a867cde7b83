from __future__ import annotations

from worker.turns.record.told import Told


def test_what_a_store_has_forgotten_is_told_again_under_its_own_numbers() -> None:
    told = Told()
    one, two, three = ([("attempt.note", {"text": text})] for text in ("one", "two", "three"))
    assert [told.add(events) for events in (one, two, three)] == [1, 2, 3]
    assert told.between(0, 3) == [(1, one), (2, two)]
    assert told.between(1, 3) == [(2, two)]
    assert told.between(2, 3) == []
