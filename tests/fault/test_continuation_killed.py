"""A worker is killed while its agent continues a truncated answer: the answer is whole, and the attempts count."""

import os
import signal
from pathlib import Path

import pytest
import yaml

from api_client.contract.turn import Outcome
from api_client.web.streaming.draft import Draft
from api_client.web.streaming.reply import Reply
from tests.fault.conftest import judged
from tests.installation import Installation
from tests.lab.bench.economy.answers import chat
from tests.support import wait_until
from worker.enforcement.answer_continuation import quote_last_lines, trim_partial_marks

WHOLE = chat(7, "de", 1500).text()
BREAK = WHOLE.index("(#007-009)")
#: Where the words begin that the prompt quotes, and that the continuation begins with.
LINE = WHOLE.rindex(quote_last_lines(trim_partial_marks(WHOLE[:BREAK]).rstrip()), 0, BREAK)
#: Behind the place at which it is seen where the rest begins, so that some of it is told before the worker dies.
LATER = LINE + 700


@pytest.fixture
def dying(installation: Installation, tmp_path: Path) -> Installation:
    """Provide an agent that dies in its answer; the agent that continues waits in the middle of the rest."""
    wait = [{"touch": f"{tmp_path}/begun"}, {"wait_for": f"{tmp_path}/go"}]
    rest = [{"say": {"text": WHOLE[LINE:LATER], "pieces": 20}}, *wait, {"say": WHOLE[LATER:]}]
    script = [{"attempts": [[{"say": {"text": WHOLE[:BREAK], "pieces": 20}}, "die"], rest]}]
    installation.play(yaml.safe_dump(script, allow_unicode=True), lease_seconds=3.0)
    return installation


@pytest.mark.parametrize("moment", ["turn.retrying", "attempt.output"])
async def test_the_worker_killed_before_or_while_its_agent_goes_on(
    moment: str, dying: Installation, tmp_path: Path
) -> None:
    worker = dying.worker()
    client = dying.client
    turn_id = await dying.ask("Was tun?")
    if moment == "turn.retrying":
        async for event in client.reader.follow_turn(turn_id):
            if event is not None and event.kind == moment:
                break
    else:
        await wait_until(lambda: (tmp_path / "begun").exists())
    for pid in worker.children().values():
        os.kill(pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    turn, events = await judged(client, turn_id)

    assert (turn.outcome, turn.attempt, turn.response) == (Outcome.PASSED_AFTER_RETRY, 2, WHOLE)
    assert [event.data["goes_on"] for event in events if event.kind == "turn.retrying"] == [True]
    if moment == "attempt.output":
        assert [event.kind for event in events].count("attempt.lost") == 1
    draft, shown = (
        Draft(Reply(turn_id=turn_id, model=turn.request.model, created=0, locale="de", from_open_webui=True)),
        "",
    )
    for event in events:
        draft.apply_event(event)
        assert draft.shown.startswith(shown), "what was shown stays"
        shown = draft.shown
