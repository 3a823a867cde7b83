"""What a turn's page has besides its story: its session's other turns, its owner, its export, the workers that died."""

import io
import json
import zipfile
from dataclasses import replace
from functools import partial

import pytest
from click.testing import CliRunner

from api_client.api_keys import make_token
from api_client.contract.errors import SettingsError, TurnNotFinished
from api_client.contract.order_log import Orders
from api_client.contract.owners import owner_of_key
from api_client.contract.process_exit import ProcessExit
from api_client.contract.settings import Settings, load_settings
from api_client.web.pages import page_part
from api_client.web.pages.page_part import PagePart
from api_client.web.pages.rendering import facts, with_code
from tests.html import Document
from tests.installation import environ_of, web
from tests.integration.engine import GOOD, Bench, says
from tests.integration.test_pages import Browser, browser, dead_letter, read
from worker.cli import cli
from worker.cli.turns.bundle import pack_bundle
from worker.runners.base import Emit, Order, RunResult, Stop
from worker.runners.sent_input import SentInput

__all__ = ["browser"]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, strikes=2, lease_seconds=0.5)


def links(page: Document, **attributes: str) -> list[str]:
    return [link.attributes["href"] for link in page.all("a", **attributes)]


async def test_a_turns_page_leads_to_its_neighbours_in_the_session_and_to_its_export(
    bench: Bench, browser: Browser
) -> None:
    first, second, third = [await bench.outcome(says(GOOD), session_id="talk") for _ in range(3)]
    await bench.outcome(says(GOOD), session_id="other")
    http = await browser()
    page = await read(http, f"/turns/{second.turn_id}")
    assert links(page, rel="prev") == [f"/turns/{first.turn_id}"]
    assert links(page, rel="next") == [f"/turns/{third.turn_id}"]
    assert f"/turns?owner={second.request.owner}" in links(page)
    answer = await http.get(f"/turns/{second.turn_id}/export")
    assert answer.headers["content-disposition"] == f'attachment; filename="{second.turn_id}.json"'
    told = answer.json()
    assert (told["turn"]["turn_id"], told["attempts"][0]["text"]) == (second.turn_id, GOOD)
    assert told["events"][-1]["kind"] == "turn.finished"


async def test_an_operator_downloads_the_bundle_of_a_turn_without_what_was_written(
    bench: Bench, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ_of(settings).items():
        monkeypatch.setenv(name, value)
    turn = await bench.outcome(says(GOOD))
    async with web(settings, pack=partial(pack_bundle, settings)) as http:
        assert f"/turns/{turn.turn_id}/bundle" not in links(Document((await http.get(f"/turns/{turn.turn_id}")).text))
        assert (await http.get(f"/turns/{turn.turn_id}/bundle")).status_code == 403, "it shows settings"
        await http.post("/sign-in", data={"key": make_token(settings.token_path)})
        assert f"/turns/{turn.turn_id}/bundle" in links(await read(http, f"/turns/{turn.turn_id}"))
        answer = await http.get(f"/turns/{turn.turn_id}/bundle")
    assert answer.headers["content-disposition"] == f'attachment; filename="turns-{turn.turn_id}.zip"'
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert set(files) == {"turn.json", "settings.json", "versions.json", "doctor.json", "logs.txt"}
    assert json.loads(files["turn.json"])["turn"]["turn_id"] == turn.turn_id
    assert GOOD.splitlines()[0] not in "".join(files.values())


async def test_a_finished_turns_page_leads_to_its_trace_where_traces_have_a_page(
    bench: Bench, settings: Settings
) -> None:
    ended, waits = await bench.outcome(says(GOOD)), await bench.submit(says(GOOD), session_id="waits")
    async with web(replace(settings, trace_page="http://127.0.0.1:16686/trace/{trace_id}?uiFind=turn")) as http:
        page = Document((await http.get(f"/turns/{ended.turn_id}")).text)
        other = Document((await http.get(f"/turns/{waits}")).text)
    assert f"http://127.0.0.1:16686/trace/{ended.turn_id.removeprefix('turn-')}?uiFind=turn" in links(page)
    assert not [link for link in links(other) if "16686" in link], "it has no trace before it has ended"


def test_the_address_of_a_traces_page_needs_a_place_for_its_id() -> None:
    with pytest.raises(SettingsError, match=r"HELIX_TRACE_PAGE.*must hold \{trace_id\}"):
        load_settings({"HELIX_TRACE_PAGE": "http://127.0.0.1:16686/trace/"})


async def test_a_dead_letter_names_the_workers_that_died_with_it(
    bench: Bench, browser: Browser, settings: Settings
) -> None:
    import asyncio

    turn_id = await dead_letter(bench, "local")
    client = bench.client
    long_ago = {"worker": "w", "pid": "6", "code": "-15"}  # the name had another process before
    await client.store.redis.xadd(bench.keys.exits, long_ago, id="1-1")  # type: ignore[arg-type]
    for ended in (ProcessExit(worker="other", pid=8, code=3), ProcessExit(worker="w", pid=7, code=-9)):
        await client.store.redis.xadd(bench.keys.exits, ended.to_fields())  # type: ignore[arg-type]
    done = await asyncio.to_thread(CliRunner().invoke, cli, ["turn", "dead", "--json"], env=environ_of(settings))
    [told] = json.loads(done.stdout)
    assert told["turn_id"] == turn_id
    assert {death["worker"] for death in told["deaths"]} == {"w"}
    assert len(told["deaths"]) == told["strikes"]
    assert {(death["signal"], death["exit_code"]) for death in told["deaths"]} == {("SIGKILL", -9)}
    shown = await asyncio.to_thread(CliRunner().invoke, cli, ["turn", "dead"], env=environ_of(settings))
    assert "w while running: killed by SIGKILL" in shown.stdout
    page = await read(await browser(), f"/turns/{turn_id}")
    assert "Workers that died during this turn" in page.text
    assert page.text.count("while running: killed by SIGKILL") == told["strikes"]


async def test_what_was_really_sent_is_on_the_page_and_its_instructions_are_the_operators(
    bench: Bench, browser: Browser
) -> None:
    sent = SentInput(system="House rules.", messages=({"role": "user", "content": "Sent with sk-abcdefghijklmnop"},))

    def plays(order: Order, emit: Emit, stop: Stop) -> RunResult:
        return replace(says(GOOD)(order, emit, stop), sent=sent)

    turn = await bench.outcome(plays, owner=owner_of_key("key-one"))
    page = await read(await browser(), f"/turns/{turn.turn_id}")
    assert "House rules." in page.text
    assert "Sent with sk-***" in page.text
    owners = await read(await browser("key-one"), f"/turns/{turn.turn_id}")
    assert "Sent with sk-***" in owners.text
    assert "House rules." not in owners.text
    [shown] = await bench.client.reader.read_attempts(turn.turn_id, owner=owner_of_key("key-one"))
    assert set(shown.sent) == {"messages"}


async def test_an_action_that_was_refused_is_said_to_be_refused_in_the_audit(bench: Bench, browser: Browser) -> None:
    http = await browser()
    turn_id = await bench.submit(session_id="goes-on")
    orders: Orders = bench.client.orders
    with pytest.raises(TurnNotFinished):
        async with orders.place_order("replay", by="ann", turn_id=turn_id):
            raise TurnNotFinished(turn_id)
    async with orders.place_order("cancel", by="bob", turn_id=turn_id):
        await bench.client.canceller.cancel(turn_id)
    refused, done = await bench.client.audit.read_lines()
    assert (refused.action, refused.refused, done.action, done.refused) == (
        "replay",
        f"turn {turn_id!r} is still running",
        "cancel",
        "",
    )
    page = await read(http, "/audit")
    rows = [row for row in page.text.split("cancel") if "replay" in row]
    assert rows
    assert page.text.count("refused") == 1


async def test_an_address_without_a_page_is_a_page_for_browsers_and_an_error_object_for_programs(
    browser: Browser,
) -> None:
    http = await browser()
    shown = await http.get("/nowhere", headers={"accept": "text/html,*/*"})
    assert (shown.status_code, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Not found" in Document(shown.text).text
    for address, accept in (("/nowhere", "*/*"), ("/v1/nowhere", "text/html")):
        told = await http.get(address, headers={"accept": accept})
        assert (told.status_code, told.json()["error"]["code"]) == (404, "not_found")


def test_facts_of_any_depth_are_names_and_values_and_commands_are_code() -> None:
    found = {"verdict": "complete", "evidence": {"exit_code": 0, "marks": ["a", "b"], "why": None}, "busy": False}
    assert facts(found) == [
        ("verdict", "complete"), ("evidence exit code", "0"), ("evidence marks", "a, b"), ("busy", "no"),
    ]  # fmt: skip
    assert with_code("run `turns <up>` & wait") == "run <code>turns &lt;up&gt;</code> &amp; wait"


async def test_the_page_stands_without_the_parts_of_capabilities_and_shows_a_new_one(
    bench: Bench, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await bench.outcome(says(GOOD))
    http = await browser()
    assert "Replay" in (await read(http, f"/turns/{turn.turn_id}")).text

    async def read_nothing(*_: object) -> dict[str, object]:
        return {"replays": []}

    toy = PagePart(page="turn.html", templates={"cards": "policy_replays.html"}, read=read_nothing)
    monkeypatch.setattr(page_part, "_load_parts", lambda: [toy])
    page = (await read(http, f"/turns/{turn.turn_id}")).text
    assert ("turns policy replay" in page, "Replay" in page) == (True, False)
