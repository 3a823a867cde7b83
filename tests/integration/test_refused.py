"""A model that refuses ends its turn as ``refused``: real workers, and the cause where people look."""

import json

from api_client.contract.turn import Outcome
from tests.installation import Installation

SCRIPT = """
- when: filter
  attempts:
    - - say: Die erste Hälfte der Antwort, mit der man achtzig Zeichen füllt, damit es sonst weiterginge
      - refuse: {filtered: true}
- when: provider
  attempts: [[{refuse: "I must not."}]]
- when: once
  attempts: [[{say: "I can't help with that request."}], [{say: "Der Cache liegt in Redis.\\n\\n<!-- STEP: done -->"}]]
- attempts: [[{say: "I can't help with that request."}]]
"""


async def test_a_refusal_is_an_outcome_of_its_own_and_is_asked_once_at_most(installation: Installation) -> None:
    installation.play(SCRIPT)
    installation.worker()
    client = installation.client
    asked = ("filter", "provider", "once", "text")
    ids = {text: await installation.ask(text, text) for text in asked}
    ends = {text: await installation.result(each) for text, each in ids.items()}
    assert [ends[text].outcome for text in asked] == [
        Outcome.REFUSED,
        Outcome.REFUSED,
        Outcome.PASSED_AFTER_RETRY,
        Outcome.REFUSED,
    ]
    assert [ends[text].attempt for text in asked] == [1, 1, 2, 2]
    said = {text: end.error.message for text, end in ends.items() if end.error}
    assert "filter" in said["filter"]
    assert "I must not." in said["provider"]
    assert "I can't help with that request." in said["text"]
    assert all("refused the request" in message for message in said.values())
    async with installation.web(client) as http:
        page = (await http.get(f"/turns/{ids['text']}")).text
        assert "refused" in page
        assert "I can&#39;t help with that request." in page
        assert ids["text"] in (await http.get("/turns?status=refused")).text
        assert ids["once"] not in (await http.get("/turns?status=refused")).text
    listed = json.loads(installation.command("turn", "list", "--status", "refused", "--json").stdout)
    assert {turn["outcome"] for turn in listed["turns"]} == {"refused"}
