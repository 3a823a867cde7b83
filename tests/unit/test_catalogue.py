"""What capabilities declare is in the catalogues, once."""

from types import ModuleType

import pytest

from api_client.client import TurnsClient
from api_client.contract import catalogue
from api_client.contract.catalogue import collect_declarations, load_declarations
from api_client.contract.counters import COUNTERS
from api_client.contract.notification import KINDS
from api_client.contract.settings import Settings
from worker.cli.commands import COMMANDS, TOP


def test_what_a_capability_declares_is_in_the_catalogues() -> None:
    assert COUNTERS["breaker.opened"].labels == ("model",)
    assert KINDS["budget.spent"].startswith("A day's budget is spent")
    assert collect_declarations("PLUGINS")["commands"] == {
        "data.backup": "backup", "data.restore": "backup", "notifications": "notifications",
        "policy.compare": "analysis", "policy.replay": "analysis", "run.mcp": "mcp", "run.traces": "traces",
        "secrets": "tools", "turn.calls": "tools", "worker.certify": "certification",
    }  # fmt: skip


def test_an_entry_that_two_capabilities_declare_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = ModuleType("one"), ModuleType("two")
    one.NOTIFICATION_KINDS = two.NOTIFICATION_KINDS = {"turn.lost": "A turn is lost."}  # type: ignore[attr-defined]
    monkeypatch.setattr(catalogue, "_capabilities", lambda: [one, two])
    with pytest.raises(ValueError, match=r"turn\.lost is declared twice"):
        collect_declarations("NOTIFICATION_KINDS")


@pytest.mark.parametrize("name", ["ADMISSIONS", "MONITORS"])
def test_what_a_capability_names_can_be_imported(name: str) -> None:
    assert load_declarations(name).keys() == collect_declarations(name).keys() != set()


def test_commands_of_capabilities_are_in_the_groups_that_they_name() -> None:
    assert TOP["phase"][0] == "Turns"
    assert TOP["pause"][0] == "Operation"
    assert {"stats budgets", "pause start", "policy check"} <= COMMANDS.keys()


def test_a_capability_that_is_gone_takes_its_parts_along(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [each for each in catalogue._capabilities() if not each.__name__.endswith((".breakers", ".budgets"))]
    monkeypatch.setattr(catalogue, "_capabilities", lambda: left)
    load_declarations.cache_clear()
    try:
        assert collect_declarations("HOLD_EVENTS") == collect_declarations("WAIT_REASONS") == {}
        names = {type(each).__name__ for each in TurnsClient(Settings(store_url="redis://127.0.0.1:1/0")).monitors}
    finally:
        load_declarations.cache_clear()
    assert not names & {"PauseMonitor", "BudgetMonitor"}
    assert names >= {"NotificationMonitor", "StuckTurns"}
