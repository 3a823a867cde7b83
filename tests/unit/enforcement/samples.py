"""Answers the tests share."""

from collections.abc import Sequence

from worker.enforcement import ValidationIssue

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
