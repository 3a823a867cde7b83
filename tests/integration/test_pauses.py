"""Pausing from the command line, the API and the page, with a real worker: who waits, who is told, and what goes on."""

import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest

from api_client.api_keys import ApiKey, add_key, make_token
from api_client.client import TurnsClient
from api_client.contract.owners import owner_of_name
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.pauses.pause import Pause
from api_client.web.app.relay_server import create_app
from tests.installation import Installation, asked, command, web
from tests.integration.conftest import async_client
from tests.integration.engine import GOOD
from tests.integration.lua.test_held_turns import time_passes
from tests.integration.served import HI, PAGE, serving
from tests.support import playing, put, wait_until
from tests.unit.web.conftest import caller
from tests.unit.web.openwebui import Reader

BODY: dict[str, Any] = {"model": "scripted", "messages": HI}
GOOD_SCRIPT = f"- attempts: [[say: {json.dumps(GOOD)}]]\n"
#: A service that is out until its file appears.
SERVICE_OUT = """
- attempts:
  - - error: {kind: transient, message: "HTTP 503: upstream is out"}
"""


@pytest.fixture
async def http(settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    token = make_token(settings.token_path)
    async with web(settings, authorization=f"Bearer {token}") as client:
        yield client


async def test_a_chat_user_reads_why_and_until_when_and_gets_the_answer_when_the_pause_ends_by_itself(
    installation: Installation,
) -> None:
    used = installation.play(GOOD_SCRIPT)
    installation.worker()
    paused = command(used, "pause", "start", "model", "scripted", "--reason", "Wartung", "--for", "1h")
    assert paused.returncode == 0, paused.stderr
    page, ended = Reader(), False
    async with (
        serving(used) as relay,
        relay.http.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}, headers=PAGE) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                page.read([json.loads(line.removeprefix("data: "))])
            if any(said.startswith("Pausiert") for said in page.status) and not ended:
                ended = True
                store = installation.store
                time_passes(store, used)
    [told] = [line for line in page.status if line.startswith("Pausiert")]
    assert re.fullmatch(r"Pausiert bis \d\d:\d\d \S+: Wartung", told)
    assert page.status.index("Es geht weiter") > page.status.index(told)
    assert page.completed == ["Alles klar."]


async def test_turns_of_a_paused_model_wait_while_others_run_and_go_on_when_it_is_resumed(
    installation: Installation,
) -> None:
    used = installation.play(GOOD_SCRIPT)
    used.models["other"] = used.models["scripted"]
    installation.worker()
    assert command(used, "pause", "start", "model", "scripted", "--reason", "out", "--json").returncode == 0
    client = installation.client
    waits = await client.submitter.submit(_request("scripted", "s1"))
    done = await client.submitter.submit(_request("other", "s2"))
    assert (await client.reader.await_result(done, timeout=60)).outcome == "passed"
    assert (await client.reader.read_turn(waits)).state == "queued"
    told = json.loads(command(used, "pause", "list", "--json").stdout)
    assert (told["held_turns"], [each["name"] for each in told["pauses"]]) == (1, ["scripted"])
    assert command(used, "pause", "end", "model", "scripted").stdout == "resumed: model scripted\n"
    assert (await client.reader.await_result(waits, timeout=60)).outcome == "passed"
    assert command(used, "pause", "end", "model", "scripted").returncode == 1
    assert command(used, "pause", "list").stdout == "nothing is paused\n"


async def test_a_model_whose_service_fails_is_left_alone_until_one_turn_finds_it_well(
    installation: Installation,
) -> None:
    script = installation.settings.root / "script.yaml"
    used = playing(
        installation.settings,
        SERVICE_OUT,
        breaker_errors=3,
        breaker_seconds=1.0,
        transient_retries=100,
        transient_delay_seconds=0.05,
    )
    installation.worker(settings=used)
    async with TurnsClient(used) as client:
        waiting = [await client.submitter.submit(_request("scripted", f"s{n}")) for n in range(4)]

        async def is_open() -> bool:
            return any(each.what == "breaker" for each in await client.pauses.list_active())

        await wait_until(is_open)
        [breaker] = await client.pauses.list_active()
        assert "503" in breaker.reason
        assert "breaker scripted" in command(used, "pause", "list").stdout
        put(script, GOOD_SCRIPT)
        for turn_id in waiting:
            assert (await client.reader.await_result(turn_id, timeout=120)).outcome == "passed"
        assert await client.pauses.list_active() == []


def _request(model: str, session: str) -> TurnRequest:
    return asked("Hallo", session, model=model)


async def test_a_paused_intake_answers_503_with_retry_after_in_openais_shape(settings: Settings) -> None:
    async with serving(settings) as relay:
        assert command(settings, "pause", "start", "intake", "--reason", "update", "--for", "1h").returncode == 0
        async with async_client(str(relay.http.base_url), max_retries=0) as client:
            with pytest.raises(openai.InternalServerError) as refused:
                await client.chat.completions.create(model="scripted", messages=HI)  # type: ignore[call-overload]
        assert (refused.value.status_code, refused.value.code) == (503, "intake_paused")
        assert 3000 <= int(refused.value.response.headers["retry-after"]) <= 3600
        assert "update" in refused.value.message
        assert (await relay.http.get("/healthz")).status_code == 200
        assert command(settings, "pause", "end", "--all").returncode == 0
        assert (await relay.http.post("/v1/turns", json=BODY)).status_code == 202


async def test_the_api_pauses_shows_and_resumes(http: httpx2.AsyncClient) -> None:
    until = int(time.time()) + 3600
    begun = await http.post("/v1/pauses", json={"what": "model", "name": "scripted", "reason": "out", "until": until})
    assert (begun.status_code, begun.json()["until"]) == (201, until)
    turn = (await http.post("/v1/turns", json=BODY)).json()
    told = (await http.get("/v1/pauses")).json()
    assert (told["held_turns"], told["data"][0]["name"], told["data"][0]["reason"]) == (1, "scripted", "out")
    assert (await http.delete("/v1/pauses/model/scripted")).json()["resumed"] is True
    assert (await http.delete("/v1/pauses/model/scripted")).json()["resumed"] is False
    assert (await http.post(f"/v1/turns/{turn['turn_id']}/cancel")).status_code == 200
    assert (await http.get("/v1/pauses")).json() == {"object": "list", "data": [], "held_turns": 0}


async def test_an_owner_is_paused_and_resumed_over_http_by_name(http: httpx2.AsyncClient) -> None:
    """The name was taken for the owner's hash: 201, and nobody's turns were held."""
    paused = await http.post("/v1/pauses", json={"what": "owner", "name": "anna"})
    assert (paused.status_code, paused.json()["name"]) == (201, owner_of_name("anna"))
    assert (await http.delete("/v1/pauses/owner/anna")).json()["resumed"]
    assert (await http.get("/v1/pauses")).json()["data"] == []


async def test_users_see_what_is_paused_but_neither_whose_turns_nor_who_paused_them(settings: Settings) -> None:
    secret = add_key(settings.keys_path, ApiKey(name="anna", hash="", owner="anna"))
    operator = add_key(settings.keys_path, ApiKey(name="ops", hash="", owner="ops", right="operator"))
    app = create_app(settings)
    async with app.router.lifespan_context(app), TurnsClient(settings) as client:
        for what, name in (("model", "scripted"), ("key", "webui"), ("owner", "bob")):
            await client.pauses.set_pause(Pause(what=what, name=name, reason="out", by="night shift"))
        async with caller(app, authorization=f"Bearer {secret}") as http:
            seen = (await http.get("/v1/pauses")).json()["data"]
        async with caller(app, authorization=f"Bearer {operator}") as http:
            everything = (await http.get("/v1/pauses")).json()["data"]
    assert [(each["what"], each["reason"], each["by"]) for each in seen] == [("model", "out", "")]
    assert {(each["what"], each["by"]) for each in everything} == {
        (what, "night shift") for what in ("model", "key", "owner")
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"what": "moon"}, "what"),
        ({"what": "model", "name": "nobody"}, "name"),
        ({"what": "intake", "reason": 7}, "reason"),
        ({"what": "intake", "seconds": "long"}, "seconds"),
        ({"what": "intake", "seconds": 5, "until": 9}, "until"),
        ({"what": "intake", "for": "2h"}, "for"),
    ],
)
async def test_the_api_refuses_a_pause_that_can_never_work(
    body: dict[str, Any], param: str, http: httpx2.AsyncClient
) -> None:
    answer = await http.post("/v1/pauses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pause", "start", "model", "nobody"), "unknown model"),
        (("pause", "start", "moon"), "moon"),
        (("pause", "start", "intake", "--for", "2h", "--until", "14:30"), "not both"),
        (("pause", "start", "intake", "--until", "soon"), "soon"),
        (("pause", "end"), "--all"),
    ],
)
def test_the_command_line_refuses_a_pause_in_one_line(
    settings: Settings, arguments: tuple[str, ...], said: str
) -> None:
    done = command(settings, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


async def test_the_page_shows_what_is_paused_and_its_forms_pause_and_resume(settings: Settings) -> None:
    async with serving(settings) as relay:
        token = make_token(settings.token_path)
        assert (await relay.http.post("/sign-in", data={"key": token})).status_code == 303
        form = (await relay.http.get("/paused")).text
        assert "Nothing is paused." in form
        options = re.findall(r"<option value=[^>]*>([^<]+)</option>", form)
        assert max(map(len, options)) < 20, "a list of choices is as wide as its widest, on a phone too"
        csrf = re.search(r'name="csrf" value="([^"]+)"', form)
        assert csrf
        wanted = {"csrf": csrf[1], "what": "model", "name": "scripted", "reason": "<b>out</b>", "for": "2h"}
        assert (await relay.http.post("/paused", data=wanted)).headers["location"] == "/paused"
        shown = (await relay.http.get("/paused")).text
        assert "model scripted" in shown
        assert "&lt;b&gt;out&lt;/b&gt;" in shown
        assert (await relay.http.post("/paused/resume", data=wanted)).status_code == 303
        assert "Nothing is paused." in (await relay.http.get("/paused")).text
