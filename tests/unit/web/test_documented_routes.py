"""Every address that programs ask is in docs/http-api.md; the pages are for people."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.routing import iter_route_contexts

from tests.unit.web.fake import FakeTurns, app_with

PAGE = Path(__file__).parents[3] / "docs" / "http-api.md"


def test_every_route_for_programs_is_in_its_page() -> None:
    page = re.sub(r"\{[^}]*\}|ID|<[^>]*>", "*", PAGE.read_text(encoding="utf-8"))
    paths = {str(context.path) for context in iter_route_contexts(app_with(FakeTurns()).routes)}
    asked = [path for path in paths if path.startswith(("/v1/", "/healthz", "/readyz", "/metrics"))]
    assert len(asked) > 20
    assert [path for path in asked if re.sub(r"\{[^}]*\}", "*", path) not in page] == []
