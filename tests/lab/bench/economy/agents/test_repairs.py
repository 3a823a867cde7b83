"""The bench of real agents, with a program that changes nothing: what the forms of its models come to."""

import re
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from tests.agents.running import Agent
from tests.lab.bench.economy.agents import repairs as repairs_of_agents
from tests.lab.bench.economy.agents.__main__ import print_progress
from tests.lab.bench.economy.agents.documents import list_documents
from tests.lab.bench.economy.agents.models import CHATTY, FORGETFUL
from tests.lab.bench.economy.agents.repairs import Repair, cut_text, measure_repairs, plan_repairs, repair_document
from tests.lab.bench.economy.play import lay_out

EVERY = [
    ("obedient", 0),
    *(("chatty", n) for n in range(len(CHATTY))),
    *(("forgetful", n) for n in range(len(FORGETFUL))),
]


class PlainAgent:
    """Passes each prompt to the model as it is, and the model's reply back."""

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        self.settings, self.stub = settings or {}, cast("Any", None)

    def run(self, prompt: str, *, rejected: str = "", **_order: Any) -> Any:
        told = [{"role": "user", "content": text} for text in (rejected, self.introduce(prompt)) if text]
        reply = self.stub.take({"tools": [1], "messages": told})
        if reply.tool:
            reply = self.stub.take({"tools": [1], "messages": [*told, {"role": "tool", "content": "notes.md"}]})
        result = SimpleNamespace(text=self.stub.sent, agent_session="a")
        return SimpleNamespace(result=result, verdict="complete")

    def introduce(self, prompt: str) -> str:
        return f"Feedback of the automatic check on your last answer:\n\n{prompt}" if "→ Fix" in prompt else prompt


@pytest.fixture(scope="module")
def repairs(tmp_path_factory: pytest.TempPathFactory) -> list[Repair]:
    root = tmp_path_factory.mktemp("project")
    lay_out(root)
    documents = list_documents(24, root)
    return [each for one in documents for each in repair_document("qwen", one, EVERY, cast("Agent", PlainAgent()))]


def test_every_form_is_accepted_and_nothing_is_lost(repairs: list[Repair]) -> None:
    assert len(repairs) == 24 * len(EVERY)
    assert [each for each in repairs if not each.accepted or each.lost or each.unheard or each.changed] == []


def test_frames_are_taken_at_once_whatever_is_said_around_them(repairs: list[Repair]) -> None:
    framed = [each for each in repairs if each.kind != "forgetful"]
    assert [(each.document.name, each.form) for each in framed if not each.exact or each.runs != 2] == []


def test_nothing_passes_with_other_words_than_the_document(repairs: list[Repair]) -> None:
    assert [(each.document.name, each.form) for each in repairs if each.wrong] == []


def test_a_plan_has_as_many_repairs_as_asked_for_of_all_kinds() -> None:
    plan = plan_repairs(200)
    assert Counter(kind for each in plan for kind, _ in each) == {"obedient": 67, "chatty": 67, "forgetful": 66}


def test_pieces_of_a_stream_are_the_whole_text() -> None:
    text = "  ## Ein Titel\n\n- größer als 100 ms\t<!-- STEP: done -->\n"
    assert "".join(cut_text(text)) == text
    assert cut_text("") == []


def test_the_bench_tells_how_far_an_agent_is_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def repair(_name: str, document: Any, wanted: Any, _agent: Any) -> list[Repair]:
        return [Repair(document, kind, "", accepted=True, answer="", runs=2, sent=0, told=()) for kind, _ in wanted]

    monkeypatch.setattr(repairs_of_agents, "AgentProcesses", MagicMock)
    monkeypatch.setattr(repairs_of_agents, "Agent", MagicMock)
    monkeypatch.setattr(repairs_of_agents, "repair_document", repair)
    found = measure_repairs("qwen", 30, tmp_path, report=partial(print_progress, "qwen", 30, time.monotonic()))
    told = re.findall(r"qwen: (\d+) of 30 repairs, \d+ s\n", capsys.readouterr().err)
    assert len(told) > 1
    assert int(told[-1]) == len(found) == 30
