from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api_client.contract.errors import SettingsError
from tests.inline.runner import InlineRunner
from worker.runners import registry
from worker.runners.registry import build_runner


def test_a_name_gives_a_runner_and_no_option() -> None:
    runner, option = build_runner("scripted")
    assert (runner.name, option) == ("scripted", "")


def test_what_stands_after_the_first_colon_is_the_option() -> None:
    runner, option = build_runner("scripted:scripts/a:b.yaml")
    assert (runner.name, option) == ("scripted", "scripts/a:b.yaml")


def test_all_models_of_a_runner_share_one_object() -> None:
    assert build_runner("scripted:a.yaml")[0] is build_runner("scripted")[0]


def test_an_unknown_runner_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"no runner 'clade'; there are: claude_cli, .*openai_http, .*scripted"):
        build_runner("clade:x")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The entry points of an installed package, to be written."""
    info = tmp_path / "own-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._shared.cache_clear()
    yield info / "entry_points.txt"
    registry._shared.cache_clear()


def test_a_runner_of_ones_own_is_found_through_its_entry_point(site: Path) -> None:
    site.write_text("[helix_turns.runners]\nmine = tests.inline.runner:InlineRunner\n")
    runner, option = build_runner("mine:a.yaml")
    assert (type(runner), option) == (InlineRunner, "a.yaml")
    assert runner is build_runner("mine:b.yaml")[0]


def test_no_entry_point_replaces_one_of_ours(site: Path) -> None:
    site.write_text("[helix_turns.runners]\nscripted = tests.inline.runner:InlineRunner\n")
    assert build_runner("scripted")[0].name == "scripted"


def test_an_entry_point_that_does_not_load_is_a_settings_error_that_names_it(site: Path) -> None:
    site.write_text("[helix_turns.runners]\nbroken = no_such_module:Runner\n")
    with pytest.raises(
        SettingsError, match=r"the runner 'broken' \(no_such_module:Runner\) does not load: .*No module"
    ):
        build_runner("broken")
