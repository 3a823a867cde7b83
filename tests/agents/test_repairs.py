"""A rejected answer that a real agent repairs: it passes the request for a part on, and brings the frame back."""

from pathlib import Path

import pytest

from tests.agents.running import RUNNERS, Agent
from tests.lab.bench.economy.agents.documents import list_documents
from tests.lab.bench.economy.agents.models import CHATTY, FORGETFUL
from tests.lab.bench.economy.agents.repairs import repair_document
from tests.lab.bench.economy.play import lay_out
from worker.runners.sandbox.guard_client import AgentProcesses

pytestmark = pytest.mark.long

_FORMS = [
    ("obedient", 0),
    ("chatty", list(CHATTY).index("tool call first")),
    ("chatty", list(CHATTY).index("names the tags behind")),
    ("forgetful", list(FORGETFUL).index("nothing of it")),
]


@pytest.mark.parametrize("name", ["claude", "codex", "opencode", "qwen"], indirect=True)
def test_an_agent_passes_a_request_for_a_part_on_and_brings_the_frame_back(
    name: str, tmp_path: Path, agents: AgentProcesses
) -> None:
    lay_out(tmp_path)
    (document,) = list_documents(1, tmp_path)
    agent = Agent(root=tmp_path, runner=RUNNERS.get(name, "claude_cli"), agents=agents)
    found = repair_document(name, document, _FORMS, agent)
    assert [(each.accepted, each.exact, each.lost, each.unheard, each.changed) for each in found] == [
        (True, True, 0, 0, 0)
    ] * len(_FORMS)
    assert [each.runs for each in found] == [2, 2, 2, 3]
