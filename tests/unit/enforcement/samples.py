"""Answers and repairs the tests share."""

import re
from collections.abc import Sequence

from worker.enforcement import ResponseValidator, Retry, ValidationIssue, decide_next, validate_attempt

HEADER = '---\nadr_id: "040"\ntitle: "Ein Cache"\nstatus: Proposed\n---\n'
BODY = """
# ADR-040: Ein Cache

## Kontext

Die Suche ist langsam.

## Entscheidung

Wir nehmen einen Cache.

## Akzeptanzkriterien

- [ ] schneller als 100 ms
- [ ] veraltete Einträge verschwinden
- [ ] messbar
"""
ADR = HEADER + BODY


def header_with(files: str) -> str:
    """An ADR whose header ends with this YAML."""
    return HEADER.removesuffix("---\n") + files + "---\n" + BODY


def codes(issues: Sequence[ValidationIssue]) -> list[str]:
    return [issue.code for issue in issues]


def repair_once(rule: ResponseValidator, first: str, reply: str) -> tuple[str, object]:
    """The answer after a second reply, and what is decided then."""
    history = [validate_attempt([], first, [rule])]
    decision = decide_next(history)
    assert isinstance(decision, Retry)
    tag = re.search("<part id=.*?>", decision.feedback)
    reply = reply.replace("FRAME", tag[0] if tag else "")
    history.append(validate_attempt(history, reply, [rule], feedback=decision.feedback))
    return history[-1].answer, decide_next(history)
