"""Plug-ins: which ones there are, and what is said where one is missing."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_client.client import TurnsClient
from api_client.contract.errors import SettingsError
from api_client.contract.plugins import GROUPS, PACKAGES, UnusablePlugin, find_plugins, load_plugin, make_plugin
from api_client.contract.session_files import find_session_files
from api_client.contract.settings import Settings, load_settings
from api_client.tracing.switch import explain_off
from worker import observers
from worker.agents import runner_lookup as registry
from worker.agents.runner_lookup import build_runner
from worker.cli import main
from worker.cli.checks.plugins import check_plugins, run_plugin_checks
from worker.cli.commands import COMMANDS, find_plugin_commands
from worker.enforcement.policies import PolicyError, read_policy

ROOT = Path(__file__).parents[2]


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel alone: no entry point of ours is found."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    monkeypatch.syspath_prepend("/nothing/is/here")  # another path, another look
    registry._load_runner.cache_clear()
    yield
    registry._load_runner.cache_clear()


def test_every_plugin_of_ours_has_its_entry_point_and_can_be_named_where_it_is_missing() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {group for group in groups if group.startswith("helix_turns.")} <= GROUPS.keys()
    declared = {group: dict(groups[group]) for group in PACKAGES}
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


def test_installed_packages_are_scanned_in_one_place_and_once() -> None:
    product = [path for room in ("api_client", "worker") for path in (ROOT / room).rglob("*.py")]
    scanning = [path for path in product if re.search(r"\bentry_points\(", path.read_text())]
    assert [str(path.relative_to(ROOT)) for path in scanning] == ["api_client/contract/plugins.py"]
    assert find_plugins("helix_turns.runners") is find_plugins("helix_turns.runners")


def test_a_policy_with_a_rule_of_a_missing_plugin_says_which_one(nothing_installed: None) -> None:
    with pytest.raises(PolicyError, match=r"the rule 'claims' is in the plug-in worker.plugins.claims, which is not"):
        read_policy("rules: [claims]")


@pytest.mark.parametrize(("spec", "name"), [("codex:m", "codex"), ("my.module:agent", "python")])
def test_a_model_whose_runner_is_in_a_missing_plugin_says_which_one(
    spec: str, name: str, nothing_installed: None
) -> None:
    said = f"the runner {name!r} is in the plug-in worker.plugins.{name}, which is not installed; there are: claude_cli"
    with pytest.raises(SettingsError, match=said):
        build_runner(spec)


def test_an_object_store_without_its_plugin_is_a_wrong_setting(nothing_installed: None) -> None:
    with pytest.raises(
        SettingsError, match=r"HELIX_FILES: the store of session files 's3' is in the plug-in worker.pl"
    ):
        find_session_files("s3://bucket")
    assert find_session_files("") is None


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


@pytest.mark.parametrize("name", sorted(PACKAGES["helix_turns.commands"]))
def test_a_command_of_a_missing_plugin_is_one_line_that_names_it(
    name: str, capsys: pytest.CaptureFixture[str], nothing_installed: None
) -> None:
    package = PACKAGES["helix_turns.commands"][name]
    with pytest.raises(SystemExit) as ended:
        main(name.split("."))
    assert ended.value.code == 2
    said = f"turns: the command {name.replace('.', ' ')!r} is in the plug-in {package}, which is not installed\n"
    assert capsys.readouterr().err == said


def install_plugin(folder: Path, group: str, *entries: str) -> None:
    """Put the metadata of a package with entry points of one group into a folder."""
    info = folder / "odd-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *entries, ""]))


#: The list of a plug-in with one command.
_ODD = "COMMANDS = {'odd': ('odd_command:odd', 'Be odd.')}"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of somebody else's: a command that works, one that replaces ours, and one that cannot be imported."""
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[helix_turns.commands]\nhello = their_plugin:COMMANDS\nturn.list = their_plugin:COMMANDS\n"
        "run.mcp = their_plugin:COMMANDS\nturn.greet = their_plugin:COMMANDS\nbroken = their_broken_plugin:COMMANDS\n"
    )
    (tmp_path / "their_broken_plugin.py").write_text("import no_such_library\n")
    (tmp_path / "their_plugin.py").write_text(
        "COMMANDS = dict.fromkeys(['hello', 'turn.greet'], ('their_command:hello', 'Greet.'))"
    )
    (tmp_path / "their_command.py").write_text(
        "import click\n\n@click.command()\ndef hello() -> None:\n    click.echo('good day')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_plugin_of_somebody_elses_adds_a_command_and_replaces_none(
    theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["hello"])
    assert (ended.value.code, capsys.readouterr().out) == (0, "good day\n")
    with pytest.raises(SystemExit):
        main(["turn", "greet"])
    assert capsys.readouterr().out == "good day\n", "in a group of ours"
    listed = find_plugin_commands()
    assert listed["hello"] == listed["turn greet"] == ("their_command:hello", "Greet.")
    assert listed["run mcp"][0].startswith("worker.plugins.mcp.")
    assert "turn list" not in listed
    assert "turn list" in COMMANDS


@pytest.mark.parametrize(
    ("plugin", "command", "says"),
    [
        ("COMMANDS = {}", "", "the command 'odd': its plug-in has no COMMANDS with its module, its function and its "),
        (
            "COMMANDS = None",
            "",
            "the command 'odd': its plug-in has no COMMANDS with its module, its function and its ",
        ),
        ("COMMANDS = {'odd': ('no_line:odd',)}", "", "the command 'odd': its plug-in has no COMMANDS with its module"),
        ("raise SystemExit(5)", "", "the command 'odd' (odd_plugin:COMMANDS) does not load: SystemExit(5)"),
        (_ODD, "import no_such_library", "the command 'odd' (odd_command:odd) does not load: ModuleNotFoundError"),
        (_ODD, "import sys; sys.exit()", "the command 'odd' (odd_command:odd) does not load: SystemExit()"),
        (_ODD, "other = 1", "the command 'odd' (odd_command:odd) does not load: AttributeError"),
        (_ODD, "odd = 1", "the command 'odd' (odd_command:odd) is no command of click"),
    ],
)
def test_a_plugin_that_breaks_while_it_is_loaded_is_named_in_one_line_and_breaks_no_other_command(
    plugin: str,
    command: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install_plugin(tmp_path, "helix_turns.commands", "odd = odd_plugin:COMMANDS")
    (tmp_path / "odd_plugin.py").write_text(plugin)
    (tmp_path / "odd_command.py").write_text(command)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("odd_plugin", "odd_command"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for words in ([], ["odd"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        said = capsys.readouterr()
        assert ended.value.code == (2 if words else 0), said
    assert said.err.startswith(f"turns: {says}"), said.err
    assert said.err.count("\n") == 1
    (problem,) = [each for each in check_plugins() if each.check == "plug-in odd"]
    assert problem.message.startswith(says)


@pytest.mark.parametrize("does", ["raise RuntimeError('no')", "import sys; sys.exit(3)"])
@pytest.mark.parametrize(
    "group", [name for name in GROUPS if name.endswith(("observers", "equipment", "work", "admissions"))]
)
def test_a_plugin_whose_class_breaks_as_it_is_made_is_unusable(
    group: str, does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, group, "odd = odd_class:Odd")
    (tmp_path / "odd_class.py").write_text(f"class Odd:\n    def __init__(self, *given):\n        {does}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_class", raising=False)
    with pytest.raises(UnusablePlugin, match=r"'odd' \(odd_class:Odd\) does not load: (RuntimeError|SystemExit)"):
        make_plugin(group, "odd", Settings())


async def test_a_broken_observer_is_left_out_and_a_broken_admission_is_a_wrong_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(
        tmp_path, "helix_turns.observers", "odd = odd_class:Odd", "[helix_turns.admissions]", "odd = odd_class:Odd"
    )
    (tmp_path / "odd_class.py").write_text("def Odd(*given): raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_class", raising=False)
    assert "odd" not in observers._load_observers()
    with pytest.raises(SettingsError, match=r"the admission 'odd' \(odd_class:Odd\) does not load: RuntimeError"):
        TurnsClient(Settings(root=tmp_path, store_url="redis://127.0.0.1:1/0"))


def test_doctor_lists_the_plugins_and_the_one_that_cannot_be_imported_with_the_reason(theirs: Path) -> None:
    *problems, last = check_plugins()
    assert [(each.check, each.state) for each in problems] == [
        ("plug-in broken", "warning"),
        ("plug-in turn.list", "warning"),
    ]
    assert "No module named 'no_such_library'" in problems[0].message
    assert (last.check, last.state) == ("plug-ins", "ok")
    assert "runner acp, codex, command, python; command data.backup, data.restore, " in last.message
    assert "hello" in last.message


@pytest.mark.parametrize("group", GROUPS)
def test_doctor_names_a_plugin_of_any_kind_that_cannot_be_imported(
    group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, group, "odd = no_such_library:Odd")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert ("plug-in odd", "warning") in [(each.check, each.state) for each in check_plugins()]


def test_doctor_looks_at_every_group_of_the_docs() -> None:
    pages = (ROOT / "docs" / name for name in ("plugins.md", "ARCHITECTURE.md", "runners.md"))
    assert {name for page in pages for name in re.findall(r"`(helix_turns\.\w+)`", page.read_text())} == set(GROUPS)


def test_doctor_says_which_plugins_of_ours_are_not_installed(nothing_installed: None) -> None:
    (found,) = check_plugins()
    assert (found.state, found.message[:28]) == ("ok", "not installed: runner acp, c")
    assert list(run_plugin_checks(Settings())) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"HELIX_NOTIFICATION_COMMAND": "true"},
            "HELIX_NOTIFICATION_COMMAND: the watcher 'notifier' is in the plug-in worker.",
        ),
        ({"HELIX_WEBHOOK_URLS": "https://example.org/h"}, "HELIX_WEBHOOK_URLS: the watcher 'notifier' is in the plug"),
    ],
)
def test_a_setting_that_needs_a_missing_plugin_is_refused(
    given: dict[str, str], says: str, tmp_path: Path, nothing_installed: None
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({"HELIX_ROOT": str(tmp_path), **given})
    assert [problem for problem in refused.value.problems if problem.startswith(says)]


def test_rejected_answers_are_exported_by_a_plugin(capsys: pytest.CaptureFixture[str], nothing_installed: None) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["turn", "export", "--rejected"])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("turns: --rejected: the export 'rejected' is in the plug-in worker.plugins.analysis, which")


def test_traces_are_off_where_their_plugin_is_missing(nothing_installed: None) -> None:
    why = explain_off({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"})
    assert why == "the command 'run traces' is in the plug-in worker.plugins.traces, which is not installed"
