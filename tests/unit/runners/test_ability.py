"""What a worker says that it can run."""

from __future__ import annotations

from pathlib import Path

from api_client.contract.settings import Settings
from worker.runners.ability import Ability


def test_a_worker_names_the_models_it_can_run_and_why_not_the_others_and_looks_again(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("- attempts: [[say: hi]]")
    models = {"well": f"scripted:{script}", "demo|1": "scripted", "none": "nobody", "claude": "claude_cli"}
    ability = Ability(Settings(root=tmp_path, models=models, claude_path=str(tmp_path / "claude")))
    assert (ability.models, ability.labels) == ((), ""), "nothing is left to others before the first look"
    assert ability.look().keys() == {"none", "claude"}
    assert "no such program" in ability.cannot["claude"]
    assert ability.labels == "\nwell\ndemo_1\n"
    script.unlink()
    assert ability.watch() == ("well", "demo|1"), "it looks now and then"
    assert "script" in ability.look()["well"]
    script.write_text("- attempts: [[say: hi]]")
    ability.look()
    assert ability.models == ("well", "demo|1")


def test_who_knows_no_settings_leaves_no_model_to_others() -> None:
    ability = Ability()
    assert (dict(ability.look()), ability.watch(), ability.labels) == ({}, (), "")
