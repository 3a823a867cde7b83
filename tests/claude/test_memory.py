"""``python -m tests.claude.memory`` with few sessions: what is kept stays below its bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.claude.memory import carry_out


@pytest.mark.timeout(240)
def test_all_kept_clis_together_stay_below_the_memory_bound(program: Path, tmp_path: Path) -> None:
    found = carry_out(tmp_path, program.resolve(), sessions=5, mb=450)
    assert found.most <= 450 * 2**20
    assert found.kept >= 2, "the bound is what ends them"
    assert (found.warm, found.cold) == (1, 5)
