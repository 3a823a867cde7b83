"""What worker processes report: the wire form, and reports of another version."""

from __future__ import annotations

import json

import pytest

from api_client.contract.values.worker_reports import WorkerReport

REPORT = WorkerReport(name="run-1@h", at=5.5, host="h", pid=7, queues=("q",), slots=4, stalled=True, validators=("v",))


def test_a_report_is_read_as_it_was_written_and_its_name_is_its_key() -> None:
    assert "name" not in json.loads(REPORT.to_json())
    assert WorkerReport.from_json("run-1@h", REPORT.to_json()) == REPORT


def test_a_report_of_another_version_is_read_with_what_fits() -> None:
    other = '{"at": 5, "queues": "none", "slots": null, "took_at": "never", "colour": "blue"}'
    assert WorkerReport.from_json("w", other) == WorkerReport(name="w", at=5)


@pytest.mark.parametrize("garbage", ["", "[]", "7", "null", "{"])
def test_garbage_is_refused(garbage: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        WorkerReport.from_json("w", garbage)
