"""The time chart of a turn: what its rows say."""

import json
from pathlib import Path

from api_client.web.pages.waterfall import build_waterfall
from tests.unit.web.fake import event

GOLDEN = Path(__file__).parents[2] / "golden" / "events-v1.jsonl"


def test_a_run_that_asks_about_a_tool_call_is_shown_as_waiting_and_not_as_failed() -> None:
    stored = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    [asked] = [each["data"] for each in stored if each["data"].get("reason") == "tool_call"]
    rows = build_waterfall(
        [
            event(1, "turn.queued", position=0),
            event(2, "attempt.started", attempt=1, delivery=1, max_attempts=3, worker="w"),
            event(3, "attempt.completed", attempt=1, verdict="interrupted", reason="tool_call"),
            event(4, "turn.suspended", **asked),
        ],
        1_010.0,
    )
    assert [(row.label, row.result, row.success) for row in rows] == [
        ("Attempt 1", "waits: tool call", None),
        ("Inbox", "", None),
    ]
