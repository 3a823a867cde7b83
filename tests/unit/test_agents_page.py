"""The table of docs/agents.md is that of the results that are kept, and says nothing false of us."""

from tests.agents.page import kept, shown, table
from tests.agents.running import VERSIONS
from worker.plugins.certification.situations import SITUATIONS


def test_the_page_shows_the_results_that_are_kept() -> None:
    assert shown() == table(kept()), "run `python -m tests.agents AGENT`: it writes both"


def test_results_are_of_the_version_that_is_installed_and_no_end_was_taken_for_complete_falsely() -> None:
    names = {each.name for each in SITUATIONS}
    for agent, found in kept().items():
        assert found["version"] == VERSIONS[agent], f"certify {agent} again"
        assert set(found["cells"]) <= names
        assert not [name for name, cell in found["cells"].items() if cell[1] == "F"]
