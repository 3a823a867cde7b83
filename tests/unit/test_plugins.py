"""Plug-ins: which ones there are, and what is said where one is missing."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_client.contract.errors import SettingsError
from api_client.contract.plugins import PACKAGES, UnusablePlugin, find_plugins, load_plugin
from worker import agents as registry
from worker.agents import build_runner

ROOT = Path(__file__).parents[2]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel alone: no entry point of ours is found."""
    monkeypatch.setattr("api_client.contract.plugins.entry_points", lambda group: ())
    monkeypatch.syspath_prepend("/nothing/is/here")  # another path, another look
    registry._shared.cache_clear()
    yield
    registry._shared.cache_clear()


def test_every_plugin_of_ours_has_its_entry_point_and_can_be_named_where_it_is_missing() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    declared = {group: dict(entries) for group, entries in groups.items() if group.startswith("helix_turns.")}
    assert {group: set(entries) for group, entries in declared.items()} == {
        group: set(names) for group, names in PACKAGES.items()
    }
    for group, entries in declared.items():
        for name, value in entries.items():
            assert value.startswith((f"{PACKAGES[group][name]}.", f"{PACKAGES[group][name]}:"))
            assert find_plugins(group)[name].value == value, "install the package again: make setup"
            load_plugin(group, name)


def test_nothing_outside_plugins_names_one_but_the_list_of_ours() -> None:
    product = [path for room in ("api_client", "worker") for path in (ROOT / room).rglob("*.py")]
    naming = {str(path.relative_to(ROOT)) for path in product if "worker.plugins" in path.read_text()}
    assert {path for path in naming if not path.startswith("worker/plugins/")} == {"api_client/contract/plugins.py"}


@pytest.mark.parametrize(("spec", "name"), [("codex:m", "codex"), ("my.module:agent", "python")])
def test_a_model_whose_runner_is_in_a_missing_plugin_says_which_one(
    spec: str, name: str, nothing_installed: None
) -> None:
    said = f"the runner {name!r} is in the plug-in worker.plugins.{name}, which is not installed; there are: claude_cli"
    with pytest.raises(SettingsError, match=said):
        build_runner(spec)


def test_an_entry_point_whose_package_was_removed_is_a_missing_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "helix_turns-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: helix-turns\nVersion: 9\n")
    (info / "entry_points.txt").write_text("[helix_turns.runners]\ncodex = worker.plugins.codex.removed:Runner\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnusablePlugin, match=r"codex' \(worker.plugins.codex.removed:Runner\) does not load"):
        load_plugin("helix_turns.runners", "codex")
    (info / "entry_points.txt").write_text("[helix_turns.runners]\ncodex = gone.codex:Runner\n")
    monkeypatch.setitem(PACKAGES["helix_turns.runners"], "codex", "gone.codex")  # type: ignore[arg-type]
    monkeypatch.syspath_prepend(str(tmp_path / "again"))
    with pytest.raises(UnusablePlugin, match=r"codex' is in the plug-in gone.codex, which is not installed"):
        load_plugin("helix_turns.runners", "codex")
