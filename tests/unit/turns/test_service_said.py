"""What a run reports about its model's service: only errors that the request did not cause open the breaker."""

from __future__ import annotations

import pytest

from worker.runners.base import Completion, ErrorKind, Verdict
from worker.turns.transitions.after_run import service_said


@pytest.mark.parametrize(
    ("verdict", "kind", "busy", "said"),
    [
        (Verdict.COMPLETE, None, False, "answered"),
        (Verdict.ERROR, ErrorKind.TRANSIENT, False, "failed"),  # 5xx, a lost connection
        (Verdict.ERROR, ErrorKind.TRANSIENT, True, "answered"),  # 429, 529
        (Verdict.ERROR, ErrorKind.PERMANENT, False, "answered"),  # 400, 413, a refusal
        (Verdict.ERROR, ErrorKind.LIMIT, False, "answered"),
        (Verdict.ERROR, ErrorKind.CONFIG, False, ""),
        (Verdict.ERROR, ErrorKind.HOST, False, ""),
        (Verdict.ERROR, ErrorKind.SESSION_LOST, False, ""),
        (Verdict.INCOMPLETE, None, False, ""),
    ],
)
def test_only_an_error_that_the_request_did_not_cause_counts_against_the_service(
    verdict: Verdict, kind: ErrorKind | None, busy: bool, said: str
) -> None:
    assert service_said(Completion(verdict=verdict, reason="r", kind=kind, busy=busy)) == said
