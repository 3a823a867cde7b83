"""The pages lead somewhere: links to files and headings that exist, and names of files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("compose/**/*.md")]
    if path.name != "CHANGELOG.md"
)
FOLDERS = ("api_client", "worker", "tests", "docs", "compose")
FILES = [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
FILES += [path.name for path in ROOT.glob("*.*")]


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        if anchor:
            assert anchor in headings(there), target


@pytest.mark.parametrize("page", ["docs/ARCHITECTURE.md", "docs/ARCHITECTURE-MODULES.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"\b[\w/.-]*\w+\.(?:py|lua|md|txt|yaml)\b", (ROOT / page).read_text(encoding="utf-8")))
    made = {"phases.yaml", "tests/unit/NAME.py"}  # by users
    missing = {name for name in named - made if not any(f"/{file}".endswith(f"/{name.lstrip('./')}") for file in FILES)}
    assert not missing
