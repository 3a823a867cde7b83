"""The pages lead somewhere: links to files and headings that exist, and names of files that exist."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest

import api_client

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


MAIN_PATH = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## The main path in 15")[2]
STEPS = re.findall(r"^(\d)\. (.+?)(?=^\d\. |^Then |\Z)", MAIN_PATH.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
#: A file of the product that a step names, and maybe the function or class of it to read.
NAMED = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|lua))`(?:,\s+`(\w+)`)?")


def test_the_walk_along_the_main_path_has_nine_steps() -> None:
    assert [number for number, _ in STEPS] == list("123456789")
    assert all(NAMED.search(text) for _, text in STEPS)


@pytest.mark.parametrize(("number", "text"), STEPS)
def test_each_file_of_the_main_path_is_one_file_and_has_what_is_to_be_read_there(number: str, text: str) -> None:
    for name, symbol in NAMED.findall(text):
        found = [file for file in FILES if f"/{file}".endswith(f"/{name}")]
        assert len(found) == 1, f"{name} names {found}"
        if symbol:
            code = (ROOT / found[0]).read_text(encoding="utf-8")
            assert re.search(rf"^\s*(?:async def|def|class|local function) {symbol}\b", code, re.MULTILINE), (
                name,
                symbol,
            )


def test_package_program_and_changelog_name_the_same_version() -> None:
    newest = re.search(r"^## \[(\d.*?)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == api_client.__version__ == version("helix-turns")
