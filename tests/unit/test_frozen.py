"""Values that are frozen for the type checker alone: made, compared, hashed and copied as frozen ones."""

import pickle
from dataclasses import field, replace

from api_client.contract.frozen import checked_frozen


@checked_frozen(slots=True, kw_only=True)
class Point:
    x: int
    y: int = 0
    made: int = field(default=0, init=False, compare=False)


def test_equal_values_are_one_key() -> None:
    assert Point(x=1) == Point(x=1, y=0) != Point(x=2)
    assert {Point(x=1), Point(x=1, y=0), Point(x=2)} == {Point(x=1), Point(x=2)}


def test_a_copy_with_changes_leaves_the_value_as_it_was() -> None:
    first = Point(x=1)
    assert (replace(first, y=5), first) == (Point(x=1, y=5), Point(x=1))
    assert pickle.loads(pickle.dumps(first)) == first
