"""Each fault that once broke a promise, repeated at the size of a test."""

import pytest

from tests.fault.staged import STAGES, stage_of

#: Their clients meet servers that are frozen or killed, and give them up as others do.
IMPATIENT = {"second_fault", "disk_full", "rewritten_file"}
EACH = [pytest.param(name, marks=pytest.mark.impatient if name in IMPATIENT else ()) for name in STAGES]


@pytest.mark.parametrize("name", EACH)
def test_a_staged_fault_breaks_its_promise_no_more(name: str) -> None:
    seen = stage_of(name)(False)
    assert seen.tried, f"{name} tried nothing"
    assert not seen.wrong, f"{STAGES[name]}: {seen}"
