"""What capabilities declare is in the catalogues, once."""

from types import ModuleType

import pytest

from api_client.contract import catalogue
from api_client.contract.catalogue import collect_declarations
from api_client.contract.counters import COUNTERS
from api_client.contract.failpoints import POINTS
from api_client.contract.notification import KINDS


def test_what_a_capability_declares_is_in_the_catalogues() -> None:
    assert COUNTERS["breaker.opened"].labels == ("model",)
    assert KINDS["budget.spent"].startswith("A day's budget is spent")
    assert {"notification.due", "restore.file"} <= collect_declarations("FAILPOINTS").keys() - POINTS.keys()
    assert collect_declarations("PLUGINS")["commands"] == {
        "backup": "backup", "certify-runner": "certification", "compare": "analysis", "mcp": "mcp",
        "notifications": "notifications", "replay-policy": "analysis", "restore": "backup", "traces": "traces",
    }  # fmt: skip


def test_an_entry_that_two_capabilities_declare_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = ModuleType("one"), ModuleType("two")
    one.NOTIFICATION_KINDS = two.NOTIFICATION_KINDS = {"turn.lost": "A turn is lost."}  # type: ignore[attr-defined]
    monkeypatch.setattr(catalogue, "_capabilities", lambda: [one, two])
    with pytest.raises(ValueError, match=r"turn\.lost is declared twice"):
        collect_declarations("NOTIFICATION_KINDS")
