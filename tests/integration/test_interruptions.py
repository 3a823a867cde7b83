"""A kind of interruption from another package: a turn waits for a webhook, which the relay's route takes."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from api_client.api_keys import make_token
from api_client.contract.turn import Outcome
from tests.html import Document
from tests.installation import Installation

#: What a third party would install: a runner that reports an interruption, and how its question is shown.
PACKAGE = """
from api_client.contract.completion import Completion, Verdict
from api_client.contract.interruption import Interruption
from api_client.interruptions.question import Choice, QuestionKind, QuestionView
from worker.runners.base import RunResult


class ParcelQuestion(QuestionKind):
    name = "parcel"

    def show_question(self, asked, locale):
        arrived = Choice(decision="arrived", label="It is here", takes="text")
        facts = tuple(asked.asked.items())
        return QuestionView(title="Waits for a parcel", summary="a parcel", choices=(arrived,), facts=facts)


class Parcels:
    name = "parcels"
    needs_folder = False

    def run(self, order, emit, stop):
        came = order.interruption
        if came is None:
            waits = Interruption(kind="parcel", asked={"number": "p<1>"}, silence="lost", wait_seconds=SECONDS)
            asks = Completion(verdict=Verdict.ASKS, reason="waits for a parcel")
            return RunResult(completion=asks, text="Ordered.", agent_session="s1", interruption=waits)
        said = f"{came.asked['number']} {came.answer} {came.text} {order.agent_session}"
        return RunResult(completion=Completion(verdict=Verdict.COMPLETE, reason="ended"), text=said)
"""
GROUPS = """
[helix_turns.runners]
parcels = parcels:Parcels
[helix_turns.interruptions]
parcel = parcels:ParcelQuestion
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    info = folder / "parcels-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "parcels.py").write_text(PACKAGE.replace("SECONDS", str(seconds)))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parcels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(GROUPS)
    monkeypatch.setenv("PYTHONPATH", str(folder))


async def test_a_turn_waits_for_a_webhook_that_the_relay_takes_and_goes_on_with_what_it_brought(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", monkeypatch, seconds=600)
    installation.change(models={"post": "parcels"})
    installation.worker()
    relay = installation.relay()
    turn_id = await installation.ask("send it", model="post", validators=())
    await installation.until(turn_id, "suspended")
    signed = {"authorization": f"Bearer {make_token(installation.settings.token_path)}"}
    async with httpx2.AsyncClient(base_url=relay.url, timeout=60, headers=signed) as http:
        shown = (await http.get(f"/v1/inbox/{turn_id}")).json()
        page = Document((await http.get(f"/turns/{turn_id}")).text)
        refused = await http.post(f"/v1/inbox/{turn_id}/decision", json={"decision": "approve"})
        arrived = {"decision": "arrived", "text": "by Bob", "decision_id": "hook-1"}
        sent = [await http.post(f"/v1/inbox/{turn_id}/decision", json=arrived) for _ in range(2)]
    assert (shown["interruption"]["asked"], shown["proposal"], shown["lease_until"]) == ({"number": "p<1>"}, None, 0)
    assert "Waits for a parcel" in page.text
    assert "p<1>" in page.text
    assert [each.text for each in page.all("button", name="decision")] == ["It is here"]
    assert "answered by arrived" in refused.json()["error"]["message"]
    assert [each.status_code for each in sent] == [200, 200], "a webhook that comes twice answers once"
    turn = await installation.result(turn_id)
    assert (turn.outcome, turn.attempt, turn.interruption) == (Outcome.PASSED, 1, None)
    assert turn.response == "Ordered.\n\np<1> arrived by Bob s1"
    assert turn.interruptions == {"parcel": {"asked": 1}}


async def test_silence_is_the_answer_that_the_interruption_named(
    installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", monkeypatch, seconds=1)
    installation.change(models={"post": "parcels"})
    installation.worker()
    turn = await installation.answer("send it", model="post", validators=())
    assert (turn.outcome, turn.decision.by) == (Outcome.PASSED, "timeout")
    assert turn.response == "Ordered.\n\np<1> lost  s1"
