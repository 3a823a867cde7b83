"""A question about a tool call, as people meet it: in the inbox, on the page, at the terminal, in the chat."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import httpx2
import pytest
from click.testing import CliRunner

from api_client import api_keys as ring
from api_client.contract.errors import BadRequest, TurnNotSuspended
from api_client.contract.interruption import Answerer
from api_client.contract.order_log import LINK_HOLDER
from api_client.contract.owners import owner_of_name
from api_client.contract.settings import Settings
from api_client.contract.tasks import RESUME, ChainTask
from api_client.contract.tool_calls import WaitingCall
from api_client.contract.turn import Outcome, Turn, TurnState
from api_client.web.app.relay_server import create_app
from api_client.web.bodies.models import StreamMode
from api_client.web.intake.turn_submission import SubmittedTurn
from api_client.web.openwebui.answer_additions import strip_additions
from api_client.web.streaming.chat_stream import stream_reply
from api_client.web.streaming.reply import Reply
from api_client.web.streaming.reply_forms import make_page_reply
from tests.html import Document
from tests.installation import command, environ_of, web
from tests.integration.engine import GOOD, Bench, asks, says
from tests.integration.test_pages import Browser, browser, read
from tests.unit.web.openwebui import Reader
from worker.cli import cli

__all__ = ["browser"]
#: What a chat would draw as a formula, as a link, and as the end of a block of code.
CODE = "echo `x` [y](z) *w* \\(a\\) 5 % && $$ ``` x"
PUSH = WaitingCall(call="c1", tool="Bash", arguments={"command": "git push <b>x</b>"}, digest="d1", wait_seconds=600)


async def asked(bench: Bench, *, call: WaitingCall = PUSH, then: str = GOOD, **more: object) -> Turn:
    """A turn that asks; after any answer it ends well."""
    bench.runner.plays.clear()
    turn = await bench.outcome(asks(call, "Ich habe es gebaut."), says(then), **more)
    assert turn.state is TurnState.SUSPENDED
    return turn


async def went_on(bench: Bench, turn: Turn) -> Turn:
    await asyncio.to_thread(bench.carry_out, turn.turn_id, ChainTask(RESUME, turn.attempt))
    return await bench.client.reader.read_turn(turn.turn_id)


@pytest.mark.parametrize("kind", ["approve", "reject"])
async def test_the_turns_page_asks_and_its_form_answers(kind: str, bench: Bench, browser: Browser) -> None:
    turn = await asked(bench)
    http = await browser()
    page = await read(http, f"/turns/{turn.turn_id}")
    assert "May the agent do this?" in page.text
    assert "git push <b>x</b>" in page.text, "shown as text"
    assert [each.text for each in page.all("button", name="decision")] == ["Yes, once", "No"]
    [form] = page.all("form", action=f"/turns/{turn.turn_id}/decision")
    fields = {each.attributes["name"]: each.attributes["value"] for each in form.inside if each.tag == "input"}
    for _ in range(2):  # the same form sent twice
        sent = await http.post(f"/turns/{turn.turn_id}/decision", data={**fields, "decision": kind, "note": "so"})
        assert sent.status_code == 303
    turn = await went_on(bench, turn)
    assert (turn.outcome, turn.decision.kind, turn.interruption) == (Outcome.PASSED, kind, None)
    assert turn.response.startswith("Ich habe es gebaut.\n\n"), "what it said before its question is part of the answer"
    [line] = {(each.action, each.by) for each in await bench.client.audit.read_lines(turn_id=turn.turn_id)}
    assert line[0] == kind


async def test_the_terminal_lists_shows_and_answers_it(
    bench: Bench, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ_of(settings).items():
        monkeypatch.setenv(name, value)
    turn = await asked(bench)

    async def run(*arguments: str) -> str:
        ran = await asyncio.to_thread(CliRunner().invoke, cli, ["inbox", *arguments])
        assert ran.exit_code == 0, ran.output
        return " ".join(ran.output.split())

    assert "may the agent do this? Bash (turns inbox show)" in await run("list")
    shown = await run("show", turn.turn_id)
    for expected in ("who answers owner", "tool Bash", "command git push <b>x</b>", "then reject"):
        assert expected in shown
    assert "proposal" not in shown
    await run("approve", turn.turn_id)
    assert (await went_on(bench, turn)).outcome is Outcome.PASSED


async def test_a_question_for_operators_is_answered_by_no_one_else(bench: Bench, settings: Settings) -> None:
    settings = replace(settings, keys_file=str(settings.root / "keys.json"))
    keys = {
        name: ring.add_key(settings.keys_path, ring.ApiKey(name=name, hash="", owner=name, **more))
        for name, more in {"alice": {}, "bob": {}, "boss": {"right": "operator"}}.items()
    }
    turn = await asked(bench, call=replace(PUSH, who=Answerer.OPERATOR), owner=owner_of_name("alice"))
    url = f"/v1/inbox/{turn.turn_id}"
    async with web(settings) as http:

        async def answers(name: str, kind: str = "approve") -> tuple[int, str]:
            sent = {"json": {"decision": kind}, "headers": {"authorization": f"Bearer {keys[name]}"}}
            said = await http.post(f"{url}/decision", **sent)
            body = said.json()
            return said.status_code, body.get("error", {}).get("code", "")

        shown = await http.get(url, headers={"authorization": f"Bearer {keys['alice']}"})
        assert shown.json()["interruption"]["asked"]["arguments"] == {"command": "git push <b>x</b>"}
        assert await answers("alice") == (403, "operators_only")
        assert await answers("bob") == (404, "turn_not_found")
        assert (await bench.client.reader.read_turn(turn.turn_id)).state is TurnState.SUSPENDED
        assert await answers("boss", "edit") == (400, "invalid_value")
        assert await answers("boss") == (200, "")
        assert await answers("boss", "reject") == (409, "turn_not_suspended")
    assert (await went_on(bench, turn)).outcome is Outcome.PASSED


async def test_a_question_is_answered_once_by_yes_or_no(bench: Bench) -> None:
    turn = await asked(bench)
    decide = bench.client.inbox.decide_turn
    for kind in ("edit", "retry"):
        with pytest.raises(BadRequest, match="approve or reject"):
            await decide(turn.turn_id, kind, by="alice", note="n", text="t")
    both = [decide(turn.turn_id, kind, by=kind) for kind in ("approve", "reject")]
    said = await asyncio.gather(*both, return_exceptions=True)
    [lost] = [each for each in said if isinstance(each, TurnNotSuspended)]
    [won] = [each.decision.kind for each in said if isinstance(each, Turn)]
    assert f"decided {won} before" in str(lost), "who was second sees who was first"


# The link in a chat.

PUBLIC = "https://turns.example"
_LINK = re.compile(re.escape(PUBLIC) + r"(/answer/[^)\s]+)")


async def chat(settings: Settings, turn: Turn, mode: StreamMode = StreamMode.VALIDATED) -> Reader:
    """What Open WebUI shows of the turn while it waits."""
    app = create_app(replace(settings, public_url=PUBLIC, suspended_seconds=0.1, ping_seconds=0.1))
    async with app.router.lifespan_context(app):
        asked = {
            "model": "scripted",
            "created": 1,
            "locale": "de",
            "from_open_webui": True,
            "has_page": True,
            "pages_url": PUBLIC,
        }
        page = make_page_reply(Reply(turn_id=turn.turn_id, owner=turn.request.owner, **asked), mode)
        turn_seen = SubmittedTurn(turn.turn_id, last_seen=turn.seq)
        sent = b"".join([each async for each in stream_reply(app.state.relay, page, turn_seen)])
    return Reader().read(json.loads(frame[6:]) for frame in sent.split(b"\n\n") if frame.startswith(b"data: {"))


async def link_in_chat(settings: Settings, turn: Turn) -> str:
    [link] = _LINK.findall((await chat(settings, turn)).text)
    return link


async def said(http: httpx2.AsyncClient, link: str, kind: str = "", **more: str) -> tuple[int, str]:
    """Status and text of the page; with ``kind`` after its form was sent."""
    answer = await (http.post(link, data={"decision": kind, **more}) if kind else http.get(link))
    return answer.status_code, Document(answer.text).text


async def lines(bench: Bench, turn: Turn) -> list[tuple[str, str, bool]]:
    return [(e.action, e.by, bool(e.refused)) for e in await bench.client.audit.read_lines(turn_id=turn.turn_id)]


@pytest.mark.parametrize("kind", ["approve", "reject"])
async def test_a_link_in_the_chat_asks_and_its_form_answers_once(kind: str, bench: Bench, settings: Settings) -> None:
    turn = await asked(bench, locale="de")
    link = await link_in_chat(settings, turn)
    async with web(settings, host="127.0.0.1") as http:
        for _ in range(3):  # by the reader, and by whatever previews links
            status, text = await said(http, link)
            assert status == 200
            assert "Darf der Agent das?" in text
            assert "git push <b>x</b>" in text
        assert (await bench.client.reader.read_turn(turn.turn_id)).state is TurnState.SUSPENDED
        assert await lines(bench, turn) == [], "reading changes nothing"
        status, text = await said(http, link, kind, note="so")
        assert (status, "Danke" in text) == (200, True)
        status, text = await said(http, link, "approve")
        assert (status, "Schon beantwortet: " + ("Ja" if kind == "approve" else "Nein") in text) == (409, True)
    assert await lines(bench, turn) == [(kind, LINK_HOLDER, False), ("approve", LINK_HOLDER, True)]
    turn = await went_on(bench, turn)
    orders = (("data", "audit"), ("turn", "show", turn.turn_id))
    command_says = [(await asyncio.to_thread(command, settings, *words)).stdout for words in orders]
    async with web(settings) as http:
        page_says = [Document((await http.get(path)).text).text for path in ("/audit", f"/turns/{turn.turn_id}")]
    assert all(LINK_HOLDER in told for told in (*command_says, *page_says)), (command_says, page_says)
    assert ["refused" in told for told in (command_says[0], page_says[0])] == [True, True]
    assert (turn.outcome, turn.decision.kind, turn.decision.by) == (Outcome.PASSED, kind, LINK_HOLDER)


async def test_of_two_holders_at_once_one_answers_and_the_other_reads_what(bench: Bench, settings: Settings) -> None:
    turn = await asked(bench, locale="en")
    link = await link_in_chat(settings, turn)
    async with web(settings) as http:
        both = await asyncio.gather(*(said(http, link, kind) for kind in ("approve", "reject")))
    assert sorted(status for status, _ in both) == [200, 409]
    [other] = [text for status, text in both if status == 409]
    won = (await bench.client.reader.read_turn(turn.turn_id)).decision.kind
    assert f"Already answered: {'Yes' if won == 'approve' else 'No'}" in other


async def test_a_link_answers_its_own_question_and_no_later_one(bench: Bench, settings: Settings) -> None:
    second = asks(replace(PUSH, call="c2", arguments={"command": "rm -rf /"}), "Und nun?")
    turn_id = await bench.submit(asks(PUSH), second, says(GOOD), locale="en")
    bench.carry_out(turn_id)
    turn = await bench.client.reader.read_turn(turn_id)
    link = await link_in_chat(settings, turn)
    await bench.client.inbox.decide_turn(turn_id, "approve", by="alice")
    turn = await went_on(bench, turn)
    assert (turn.state, turn.interruption.asked["arguments"]) == (TurnState.SUSPENDED, {"command": "rm -rf /"})
    async with web(settings) as http:
        status, text = await said(http, link)
        assert (status, "no longer open" in text, "rm -rf" in text) == (200, True, False)
        assert (await said(http, link, "approve"))[0] == 409
    with pytest.raises(TurnNotSuspended, match="another question waits"):
        await bench.client.inbox.decide_turn(turn_id, "approve", by="alice", suspended_at=turn.suspended_at - 1)
    assert (await bench.client.reader.read_turn(turn_id)).state is TurnState.SUSPENDED
    await bench.client.inbox.decide_turn(turn_id, "approve", by="alice", suspended_at=turn.suspended_at)


async def test_an_expired_a_foreign_and_a_changed_link_are_refused_and_noted(
    bench: Bench, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, other = await asked(bench, locale="en"), await asked(bench, session_id="other", locale="en")
    link, others = await link_in_chat(settings, turn), await link_in_chat(settings, other)
    until = re.search(r"until=(\d+)", link)[1]
    signature = link.partition("signature=")[2]
    forged = [
        others.replace(other.turn_id, turn.turn_id),
        link.replace(f"until={until}", f"until={int(until) + 1}"),
        link.replace(signature, "A" * len(signature)),
        link.replace(signature, ""),
        link.replace("suspended=", "suspended=1"),
        f"/answer/{turn.turn_id}",
    ]
    async with web(settings) as http:
        for each in forged:
            for kind in ("", "approve"):
                assert (await said(http, each, kind))[0] == 403, each
        assert (await said(http, link.replace(turn.turn_id, "turn-" + "0" * 32), "approve"))[0] == 403
        assert set(await lines(bench, turn)) == {("answer", LINK_HOLDER, True)}
        assert (await said(http, link, "edit", text="x"))[0] == 400
        late = float(until) + 1
        monkeypatch.setattr("api_client.web.relay.question_links.time.time", lambda: late)
        status, text = await said(http, link, "approve")
        assert (status, "no longer open" in text) == (409, True)
    assert (await lines(bench, turn))[-1] == ("approve", LINK_HOLDER, True)
    assert (await bench.client.reader.read_turn(turn.turn_id)).state is TurnState.SUSPENDED


async def test_a_form_that_another_site_sends_answers_nothing(bench: Bench, settings: Settings) -> None:
    turn = await asked(bench)
    link = await link_in_chat(settings, turn)
    async with web(settings) as http:
        foreign = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
        assert (await http.post(link, data={"decision": "approve"}, headers=foreign)).status_code == 403
    assert (await bench.client.reader.read_turn(turn.turn_id)).state is TurnState.SUSPENDED


@pytest.mark.parametrize("mode", list(StreamMode))
async def test_a_chat_shows_the_question_once_and_sends_it_to_no_agent(
    mode: StreamMode, bench: Bench, settings: Settings
) -> None:
    call = replace(PUSH, arguments={"command": CODE})
    turn = await asked(bench, call=call)
    reader = await chat(settings, turn, mode)
    assert reader.text.count("/answer/") == 1
    assert f"\n````text\nBash\ncommand: {CODE}\n````\n" in reader.text, "what an agent wrote is code in it"
    assert "/answer/" not in strip_additions(reader.text)
    assert strip_additions(reader.text + GOOD).endswith(GOOD)


async def test_where_a_link_alone_answers_nothing_the_chat_leads_to_the_sign_in(
    bench: Bench, settings: Settings
) -> None:
    turn = await asked(bench, call=replace(PUSH, who=Answerer.SIGNED_IN), locale="en")
    text = (await chat(settings, turn)).text
    assert (f"({PUBLIC}/turns/{turn.turn_id})" in text, "/answer/" in text) == (True, False)
    with pytest.raises(BadRequest, match="sign in"):
        await bench.client.inbox.decide_turn(turn.turn_id, "approve", by=LINK_HOLDER, owner=turn.request.owner)
    assert (await lines(bench, turn))[-1] == ("approve", LINK_HOLDER, True)
    await bench.client.inbox.decide_turn(turn.turn_id, "approve", by="key:1", owner=turn.request.owner)


async def test_a_long_line_is_broken_where_a_reader_sees_it(bench: Bench, settings: Settings) -> None:
    command = "echo " + "x" * 250 + "\t; evil"
    turn = await asked(bench, call=replace(PUSH, arguments={"command": command}))
    text = (await chat(settings, turn)).text
    block = text.split("```text\n")[1].split("\n```")[0]
    assert max(map(len, block.splitlines())) <= 104
    assert block.replace("⟦…⟧\n", "") == "Bash\ncommand: " + command.replace("\t", "⟦tab⟧")
    assert strip_additions(text + GOOD).endswith(GOOD)


async def test_a_question_for_operators_has_no_link(bench: Bench, settings: Settings) -> None:
    turn = await asked(bench, call=replace(PUSH, who=Answerer.OPERATOR))
    assert "/answer/" not in (await chat(settings, turn)).text
