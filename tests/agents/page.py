"""The table of docs/agents.md, agent by situation, made of ``certified.json``; ``keep`` writes both."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.agents.running import VERSIONS
from worker.plugins.certification.situations import SITUATIONS

KEPT = Path(__file__).with_name("certified.json")
PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
_TABLE = re.compile(r"(?<=<!-- situations -->\n).*?(?=<!-- end -->)", re.DOTALL)


def kept() -> dict[str, Any]:
    """Agent -> its ``version``, the day (``on``), and for each situation what its word and ours were (``cells``)."""
    found: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return found


def keep(agent: str, rows: list[dict[str, Any]]) -> None:
    """Add what the kit found of an agent, and write the page's table again. Rows of another version go."""
    all_of_them = kept()
    before = all_of_them.get(agent, {})
    cells = dict(before["cells"]) if before.get("version") == VERSIONS[agent] else {}
    cells |= {row["situation"]: _cells(row) for row in rows}
    on = f"{datetime.now(UTC):%Y-%m-%d}"
    all_of_them[agent] = {"version": VERSIONS[agent], "on": on, "cells": cells}
    KEPT.write_text(json.dumps(all_of_them, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(_TABLE.sub(lambda _: table(all_of_them), PAGE.read_text()))


def _cells(row: dict[str, Any]) -> str:
    if not row["applies"] and not row["problem"]:
        return "nn"
    return _cell(row, row["agent_complete"]) + _cell(row, row["complete"])


def _cell(row: dict[str, Any], complete: bool) -> str:
    """A letter for a word: rightly complete, falsely so, not complete, or that with a whole answer."""
    if complete:
        return "F" if row["truth"] == "broken" or not row["whole_text"] else "C"
    return "L" if row["truth"] == "whole" else "-"


def table(certified: dict[str, Any]) -> str:
    """The table in Markdown, without spaces and without the situations that nobody took for complete."""
    agents = [name for name in ("claude", "codex", "opencode", "qwen", "kimi", "gemini") if name in certified]
    lines = ["|Situation|" + "|".join(agents) + "|", "|---" * (len(agents) + 1) + "|"]
    for each in SITUATIONS:
        cells = [certified[name]["cells"].get(each.name, "?") for name in agents]
        if set(cells) - {"--", "?"}:
            lines.append(f"|{each.name}|" + "|".join(cells) + "|")
    return "".join(f"{line}\n" for line in lines)


def shown() -> str:
    """The table that the page has."""
    found = _TABLE.search(PAGE.read_text())
    assert found, f"no place for the table in {PAGE}"
    return found[0]
