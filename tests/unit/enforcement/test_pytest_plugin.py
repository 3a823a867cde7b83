"""The fixture ``helix_turns``, as authors of rules use it, and use it wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worker.enforcement.validators import StepMarkerValidator
from worker.pytest_plugin import Rules

GOOD = "Text.\n\n<!-- STEP: done -->"


def test_a_policy_file_is_named_by_a_path_or_its_text_is_given(tmp_path: Path) -> None:
    text = "rules: [step_marker]"
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    for policy in (file, str(file), text):
        Rules(policy=policy).assert_rejected("Text.", "MISSING_STEP_MARKER")
    with pytest.raises(FileNotFoundError):
        Rules(policy="none.yaml")


@pytest.mark.parametrize("wrong", [42, None, StepMarkerValidator, Path("rule.py")], ids=repr)
def test_what_is_no_validator_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(TypeError, match="is not a validator"):
        Rules(wrong)


def test_an_agent_is_asked_again_in_a_plain_test() -> None:
    assert Rules("step_marker").run("Text.", GOOD).attempts == 2


async def test_an_agent_is_asked_again_in_an_asynchronous_test() -> None:
    assert Rules("step_marker").run("Text.", GOOD).attempts == 2
