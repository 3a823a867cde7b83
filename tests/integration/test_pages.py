"""The pages operators look at, over a real store: what they show, to whom, and what they refuse."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import redis

from api_client import api_keys as keys
from api_client.api_keys import make_token
from api_client.contract.completion import Verdict
from api_client.contract.decision import DecisionKind
from api_client.contract.escalation import Escalation
from api_client.contract.order_log import name_caller
from api_client.contract.owners import owner_of_key, owner_of_name
from api_client.contract.settings import Settings
from api_client.contract.tasks import RESUME, ChainTask
from api_client.contract.turn import Outcome, TurnState
from api_client.web.app.relay_server import create_app
from api_client.web.pages.visitor import COOKIE
from tests.html import Document
from tests.installation import web
from tests.integration.engine import FIRST, GOOD, NO_MARKER, Bench, ends, says
from tests.integration.test_phases import BAD_CODE, PhaseBench, writes
from tests.integration.test_stuck import memory_full
from tests.on_loop import Ledger
from tests.support import wait_until
from tests.unit.web.conftest import caller
from worker.processes.embedded_broker import EmbeddedBroker

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)> \u202e {{ 7*7 }} </textarea></pre>'
KEYS = ("key-one", "key-two")

Browser = Callable[..., Awaitable[httpx2.AsyncClient]]


@pytest.fixture
async def browser(settings: Settings) -> AsyncIterator[Browser]:
    """Makes browsers: ``browser()`` on this machine without keys, signed in with the operator's token;
    ``browser("key-one")`` signed in from elsewhere."""
    opened: list[httpx2.AsyncClient] = []
    apps = []

    async def open_browser(key: str = "") -> httpx2.AsyncClient:
        app = create_app(replace(settings, api_keys=KEYS if key else ()))
        lifespan = app.router.lifespan_context(app)
        await lifespan.__aenter__()
        apps.append(lifespan)
        http = caller(app, host="203.0.113.7" if key else "127.0.0.1")
        opened.append(http)
        answer = await http.post("/sign-in", data={"key": key or make_token(settings.token_path)})
        assert answer.status_code == 303
        return http

    yield open_browser
    for http in opened:
        await http.aclose()
    for lifespan in apps:
        await lifespan.__aexit__(None, None, None)


async def read(http: httpx2.AsyncClient, address: str, status: int = 200) -> Document:
    answer = await http.get(address)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return Document(answer.text)


async def test_the_overview_answers_an_operators_questions(bench: Bench, browser: Browser) -> None:
    await bench.outcome(says(NO_MARKER), says(GOOD), session_id="a")
    await bench.outcome(says(GOOD), session_id="b")
    waiting = await bench.submit(session_id="c")
    running = await bench.submit(session_id="d")
    bench.ledger.claim_turn(running, "d", FIRST)
    page = await read(await browser(), "/overview?span=1h")
    tiles = {tile.text: number.text for tile, number in zip(page.all("dt"), page.all("dd")[::2], strict=True)}
    assert tiles == {
        "At work": "1",
        "Waiting": "1",
        "Workers": "0",
        "Passed": "100%",
        "Cost": "$0.00",
        "Lost": "0",
        "Asked again": "50.0%",
        "Dead letters": "0",
    }
    assert "step_marker" in page.text
    assert "1 of 3" in page.text
    assert "MISSING_STEP_MARKER 1" in page.text
    assert "passed after retry 1" in page.text
    [work] = page.all("section", **{"aria-labelledby": "working"})
    assert next(e.attributes["href"] for e in work.inside if e.tag == "a") == f"/turns/{running}"
    assert waiting not in page.text


async def test_a_turns_page_tells_why_it_was_asked_again(bench: Bench, browser: Browser) -> None:
    turn = await bench.outcome(says(NO_MARKER), says(GOOD))
    page = await read(await browser(), f"/turns/{turn.turn_id}")
    for expected in ("passed after retry", "Wie geht das?", "MISSING_STEP_MARKER", "Feedback sent to the agent", GOOD):
        assert " ".join(expected.split()) in page.text
    rows = [row.text.split() for row in page.all("div", **{"class": "row"})]
    assert [row[:2] for row in rows if row[:1] == ["Attempt"]] == [["Attempt", "1"], ["Attempt", "2"]]
    bars = [e.attributes["class"] for e in page.all("rect")]
    assert bars == ["queue", "run", "validate", "queue", "run", "validate"]
    assert [e.text for e in page.all("div", **{"class": "added"})] == ["+", "+<!-- STEP: done -->"]
    kinds = [e.text for e in page.all("details", id="events")[0].inside if e.tag == "code"]
    assert (kinds[0], kinds[-1]) == ("turn.queued", "turn.finished")
    assert "attempt.output" not in kinds
    assert page.all("body")[0].attributes["data-refresh"] == "0"


async def test_issues_that_an_attempt_repeats_are_folded(bench: Bench, browser: Browser) -> None:
    turn = await bench.outcome(says(NO_MARKER), says(NO_MARKER), says(GOOD))
    page = await read(await browser(), f"/turns/{turn.turn_id}")
    [repeated] = page.all("details", id="issues-2")
    assert "the same as of attempt 1" in repeated.text
    assert "MISSING_STEP_MARKER" in repeated.text
    assert not page.all("details", id="issues-1")


async def test_a_turns_page_shows_what_was_edited_before_the_rules_looked(bench: Bench, browser: Browser) -> None:
    turn = await bench.outcome(says(f"<think>\nHm.\n</think>\n{GOOD}"))
    (attempt,) = await bench.client.reader.read_attempts(turn.turn_id)
    (edit,) = attempt.to_dict()["edits"]
    assert "(`<think>`) (1×, 3 " in edit
    assert edit in (await read(await browser(), f"/turns/{turn.turn_id}")).text
    assert (turn.response, turn.outcome) == (GOOD, "passed")


async def test_what_anybody_wrote_is_text_and_never_markup(bench: Bench, browser: Browser) -> None:
    session = f"s{HOSTILE}"
    messages = ({"role": "system", "content": HOSTILE}, {"role": "user", "content": HOSTILE})
    asked = {"messages": messages, "session_id": session}
    first = (await bench.outcome(says(HOSTILE), says(HOSTILE + GOOD), **asked)).turn_id
    second = (await bench.outcome(ends(Verdict.INCOMPLETE), **asked, max_attempts=1)).turn_id
    http = await browser()
    for address in (f"/turns/{first}", f"/turns/{second}", "/turns", "/overview"):
        page = await read(http, address)
        assert "<script>alert(1)</script>" in page.text  # shown, as text
        assert not page.all("img")
        assert [e.attributes.get("src", "")[:8] for e in page.all("script")] == ["/assets/"]
        assert not [name for e in page.elements for name in e.attributes if name.startswith("on") or name == "style"]
    searched = await read(http, f"/turns?session={HOSTILE}")
    assert [e.attributes["value"] for e in searched.all("input", name="session")] == [HOSTILE]
    assert first in (await http.get("/turns", params={"session": session})).text
    missing = await read(http, "/turns/%3Cscript%3Ealert(1)", 404)
    assert len(missing.all("script")) == 1


async def test_every_answer_forbids_what_a_page_does_not_need(bench: Bench, browser: Browser) -> None:
    turn = await bench.outcome(says(GOOD))
    http = await browser()
    for address in ("/overview", "/turns", f"/turns/{turn.turn_id}", "/turns/none", "/"):
        headers = (await http.get(address)).headers
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    page = await read(http, "/overview")
    loaded = [e.attributes.get("href") or e.attributes["src"] for e in page.all("link") + page.all("script")]
    for address in loaded:
        asset = await http.get(address)
        assert asset.status_code == 200
        assert "immutable" in asset.headers["cache-control"]
        assert "http" not in asset.text.replace("http://www.w3.org/2000/svg", "")  # nothing from elsewhere
    assert (await http.get("/assets/x/../routes.py")).status_code == 404


async def test_who_has_not_signed_in_is_asked_to_and_comes_back(bench: Bench, browser: Browser) -> None:
    turn = await bench.outcome(says(GOOD), owner=owner_of_key("key-one"))
    http = await browser("key-one")
    http.cookies.clear()
    for address in ("/overview", "/turns", "/", f"/turns/{turn.turn_id}?x=1"):
        assert (await http.get(address)).headers["location"].startswith("/sign-in")
    asked = await http.get(f"/turns/{turn.turn_id}?x=1")
    form = Document((await http.get(asked.headers["location"])).text).form("/sign-in")
    assert form == {"next": f"/turns/{turn.turn_id}?x=1", "key": ""}
    refused = await http.post("/sign-in", data={**form, "key": "key-on"})
    assert (refused.status_code, COOKIE in http.cookies) == (403, False)
    assert "not valid" in refused.text
    accepted = await http.post("/sign-in", data={**form, "key": "key-one"})
    assert accepted.headers["location"] == f"/turns/{turn.turn_id}?x=1"
    cookie = accepted.headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "key-one" not in cookie
    assert owner_of_key("key-one") not in cookie
    assert (await http.get(accepted.headers["location"])).status_code == 200


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.test/", "//evil.test", "/\\evil.test", "/sign-out", "x", "/turns\n"]
)
async def test_signing_in_leads_nowhere_but_to_our_pages(browser: Browser, elsewhere: str) -> None:
    http = await browser("key-one")
    answer = await http.post("/sign-in", data={"key": "key-one", "next": elsewhere})
    assert answer.headers["location"] == "/"


async def test_an_owner_sees_only_turns_asked_with_the_own_key(bench: Bench, browser: Browser) -> None:
    mine = await bench.outcome(says(GOOD), owner=owner_of_key("key-one"), session_id="mine")
    theirs = await bench.outcome(says(GOOD), owner=owner_of_key("key-two"), session_id="theirs")
    waiting = await bench.submit(owner=owner_of_key("key-two"), session_id="waiting")
    http = await browser("key-one")
    listed = (await http.get("/turns")).text
    assert mine.turn_id in listed
    assert theirs.turn_id not in listed
    assert waiting not in listed
    assert (await http.get("/overview")).headers["location"] == "/turns"
    csrf = Document((await http.get(f"/turns/{mine.turn_id}")).text).form(f"/turns/{mine.turn_id}/replay")
    for method, address in [
        ("GET", f"/turns/{theirs.turn_id}"),
        ("POST", f"/turns/{theirs.turn_id}/replay"),
        ("POST", f"/turns/{waiting}/cancel"),
    ]:
        assert (await http.request(method, address, data=csrf if method == "POST" else None)).status_code == 404
    assert (await bench.client.reader.read_turn(waiting)).state is TurnState.QUEUED


async def test_a_turn_is_cancelled_and_replayed_by_its_buttons(bench: Bench, browser: Browser) -> None:
    turn_id = await bench.submit()
    http = await browser()
    page = await read(http, f"/turns/{turn_id}")
    assert page.all("body")[0].attributes["data-refresh"] != "0"
    answer = await http.post(f"/turns/{turn_id}/cancel", data=page.form(f"/turns/{turn_id}/cancel"))
    assert (answer.status_code, answer.headers["location"]) == (303, f"/turns/{turn_id}")
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.CANCELLED
    page = await read(http, f"/turns/{turn_id}")
    assert not page.all("form", action=f"/turns/{turn_id}/cancel")
    again = [
        (await http.post(f"/turns/{turn_id}/replay", data=page.form(f"/turns/{turn_id}/replay"))).headers["location"]
        for _ in range(2)
    ]
    assert again[0] == again[1]  # twice makes one turn
    assert (await bench.client.reader.read_turn(again[0].removeprefix("/turns/"))).labels["replay_of"] == turn_id
    page = await read(http, f"/turns/{turn_id}")
    assert [e.text for e in page.all("a", href=again[0], **{"class": "button"})] == ["See the replay"]


async def dead_letter(bench: Bench, owner: str) -> str:
    """A turn that took down its worker the last time it was allowed to."""
    ledger = Ledger(replace(bench.settings, strikes=1, lease_seconds=0.5), "w")
    turn_id = await bench.submit(owner=owner, session_id="poison")
    ledger.claim_turn(turn_id, "poison", FIRST, alone=True)
    await wait_until(lambda: ledger.reap_turn(turn_id, may_take=True).outcome == "dead")
    return turn_id


async def test_a_dead_letter_is_dropped_by_its_button_and_only_by_an_operator(bench: Bench, browser: Browser) -> None:
    turn_id = await dead_letter(bench, owner_of_key("key-one"))
    its_owner, operator = await browser("key-one"), await browser()
    page, drop = await read(its_owner, f"/turns/{turn_id}"), f"/turns/{turn_id}/drop"
    assert not page.all("form", action=drop)
    refused = await its_owner.post(drop, data=page.form(f"/turns/{turn_id}/replay"))
    assert refused.status_code == 403
    assert [turn.turn_id for turn in await bench.client.dead_letters.list_all()] == [turn_id]

    assert (await read(operator, f"/turns/{turn_id}")).all("form", action=drop)
    overview = await read(operator, "/overview")
    answer = await operator.post(drop, data=overview.form(drop))
    assert (answer.status_code, answer.headers["location"]) == (303, "/overview")
    assert await bench.client.dead_letters.list_all() == []
    assert not (await read(operator, f"/turns/{turn_id}")).all("form", action=drop)
    [line] = await bench.client.audit.read_lines(turn_id=turn_id)
    assert (line.action, line.detail) == ("drop", "page")


async def test_what_is_no_dead_letter_is_not_dropped(bench: Bench, browser: Browser) -> None:
    turn, http = await bench.outcome(says(GOOD)), await browser()
    page = await read(http, f"/turns/{turn.turn_id}")
    refused = await http.post(f"/turns/{turn.turn_id}/drop", data=page.form(f"/turns/{turn.turn_id}/replay"))
    assert refused.status_code == 409
    assert "not a dead letter" in refused.text


@pytest.mark.parametrize(
    ("fields", "outcome", "response"),
    [
        ({"decision": "approve"}, Outcome.PASSED_BY_HUMAN, NO_MARKER),
        ({"decision": "edit", "text": "Mein Text.\r\n"}, Outcome.PASSED_BY_HUMAN, "Mein Text.\n"),
        ({"decision": "retry", "note": "Denk an den Marker!"}, Outcome.PASSED_AFTER_RETRY, GOOD),
        ({"decision": "reject", "note": "so nicht"}, Outcome.FAILED, ""),
    ],
)
async def test_a_person_decides_on_the_turns_page(
    bench: Bench, browser: Browser, fields: dict[str, str], outcome: Outcome, response: str
) -> None:
    turn = await bench.suspended(says(GOOD))
    http = await browser()
    page = await read(http, f"/turns/{turn.turn_id}")
    assert page.all("body")[0].attributes["data-refresh"] == "0"  # nothing that is typed is taken away
    assert {e.attributes["value"] for e in page.all("button", name="decision")} == set(DecisionKind)
    assert f"Proposed answer: attempt 1{NO_MARKER}" in page.text
    assert f"/turns/{turn.turn_id}#decide" in (await http.get("/overview")).text
    address = f"/turns/{turn.turn_id}/decision"
    form = {**page.form(address), **fields}
    for _ in range(2):  # twice decides once
        assert (await http.post(address, data=form)).status_code == 303
    bench.carry_out(turn.turn_id, ChainTask(RESUME, 1))
    ended = await bench.client.reader.read_turn(turn.turn_id)
    assert (ended.outcome, ended.response) == (outcome, response)
    page = await read(http, f"/turns/{turn.turn_id}")
    assert fields.get("note", "") in page.text
    [row] = [row.text for row in page.all("div", **{"class": "row"}) if "Inbox" in row.text]
    assert f"{fields['decision']} by " in row
    assert {line.action for line in await bench.client.audit.read_lines(turn_id=turn.turn_id)} == {fields["decision"]}
    late = await http.post(address, data={**form, "decision_id": "later"})
    assert (late.status_code, "turn_not_suspended" in late.text) == (409, True)


async def test_a_phases_page_shows_what_was_verified_and_takes_a_decision(
    bench: Bench, browser: Browser, settings: Settings
) -> None:
    phases = PhaseBench(replace(settings, locale="en"), bench.client)
    turn = await phases.phase(writes(BAD_CODE), max_attempts=1, escalation=Escalation())
    phases.leases.close()
    page = await read(await browser(), f"/turns/{turn.turn_id}")
    assert "Phasebuild of work" in page.text
    assert "Verification by gates" in page.text
    assert "add.py:1 syntax" in page.text
    assert not page.all("textarea", name="text")  # its files are repaired where they lie
    assert {e.attributes["value"] for e in page.all("button", name="decision")} == set(DecisionKind)


async def test_who_may_not_see_a_suspended_turn_may_not_decide_on_it(bench: Bench, browser: Browser) -> None:
    turn = await bench.suspended(owner=owner_of_key("key-two"))
    mine = await bench.suspended(owner=owner_of_key("key-one"), session_id="mine")
    http = await browser("key-one")
    form = Document((await http.get(f"/turns/{mine.turn_id}")).text).form(f"/turns/{mine.turn_id}/decision")
    approve = {**form, "decision": "approve"}
    assert (await http.post(f"/turns/{turn.turn_id}/decision", data=approve)).status_code == 404
    assert (await http.post(f"/turns/{mine.turn_id}/decision", data={"decision": "approve"})).status_code == 403
    assert (await http.post(f"/turns/{mine.turn_id}/decision", data={**form, "decision": "x"})).status_code == 400
    assert {each.turn_id for each in await bench.client.inbox.list_suspended()} == {turn.turn_id, mine.turn_id}


async def test_an_answer_of_any_length_can_be_repaired_on_the_page(bench: Bench, browser: Browser) -> None:
    turn = await bench.suspended()
    http = await browser()
    address = f"/turns/{turn.turn_id}/decision"
    form = Document((await http.get(f"/turns/{turn.turn_id}")).text).form(address)
    text = "Ä" * 20_000
    assert (await http.post(address, data={**form, "decision": "edit", "text": text})).status_code == 303
    assert (await bench.client.reader.read_turn(turn.turn_id)).decision.text == text


async def test_a_form_without_the_visitors_own_token_changes_nothing(bench: Bench, browser: Browser) -> None:
    turn_id = await bench.submit(owner=owner_of_key("key-one"))
    mine, other = await browser("key-one"), await browser("key-one")
    address = f"/turns/{turn_id}/cancel"
    good = Document((await mine.get(f"/turns/{turn_id}")).text).form(address)
    foreign = Document((await other.get(f"/turns/{turn_id}")).text).form(address)
    for fields in ({}, {"csrf": ""}, {"csrf": "é"}, foreign):
        assert (await mine.post(address, data=fields)).status_code == 403
    crossing = await mine.post(address, data=good, headers={"sec-fetch-site": "cross-site"})
    assert crossing.status_code == 403
    assert (await mine.post(address, data={"csrf": "x" * 9000})).status_code == 413
    assert (await bench.client.reader.read_turn(turn_id)).state is TurnState.QUEUED
    assert (await mine.post(address, data=good, headers={"sec-fetch-site": "same-origin"})).status_code == 303
    assert (await bench.client.reader.read_turn(turn_id)).outcome is Outcome.CANCELLED


async def test_an_operators_key_sees_all_until_it_is_revoked(bench: Bench, settings: Settings) -> None:
    theirs = await bench.outcome(says(GOOD), owner=owner_of_key("key-two"))
    waiting = await bench.submit(owner=owner_of_key("key-two"), session_id="w")
    path = settings.keys_path
    key = keys.add_key(path, keys.ApiKey(name="ops", hash="", owner="ops", right="operator"))
    user_key = keys.add_key(path, keys.ApiKey(name="user", hash="", owner="user"))
    async with web(settings, host="203.0.113.7") as http:
        await http.post("/sign-in", data={"key": user_key})
        assert (await http.get("/")).headers["location"] == "/turns"
        assert (await http.get(f"/turns/{theirs.turn_id}")).status_code == 404
        await http.post("/sign-in", data={"key": key})
        assert (await http.get("/")).headers["location"] == "/overview"
        assert (await http.get("/overview")).status_code == 200
        assert theirs.turn_id in (await http.get("/turns")).text
        address = f"/turns/{waiting}/cancel"
        form = Document((await http.get(f"/turns/{waiting}")).text).form(address)
        assert (await http.post(address, data=form)).status_code == 303
        [line] = await bench.client.audit.read_lines(turn_id=waiting)
        assert (line.action, line.by) == ("cancel", name_caller(owner_of_name("ops")))
        keys.revoke_key(path, "ops")
        assert (await http.get("/overview")).headers["location"].startswith("/sign-in")


async def test_signing_out_ends_the_sign_in_for_every_copy_of_the_cookie(browser: Browser, settings: Settings) -> None:
    http = await browser("key-one")
    stolen = http.cookies[COOKIE]
    store = redis.Redis.from_url(settings.redis_url)
    assert not [key for key in store.scan_iter(f"{settings.namespace}*") if stolen.encode() in key]  # only its hash
    form = Document((await http.get("/turns")).text).form("/sign-out")
    assert (await http.post("/sign-out", data=form)).headers["location"] == "/sign-in"
    http.cookies.set(COOKIE, stolen)
    assert (await http.get("/turns")).headers["location"].startswith("/sign-in")


async def test_who_signs_in_while_the_store_takes_no_writes_sees_why_until_the_key_is_revoked(
    settings: Settings, tmp_path: Path
) -> None:
    path = settings.keys_path
    key = keys.add_key(path, keys.ApiKey(name="ops", hash="", owner="ops", right="operator"))
    with EmbeddedBroker(tmp_path / "b") as broker:
        async with web(replace(settings, broker_url=broker.url, store_url=broker.url), host="203.0.113.7") as http:
            await http.post("/sign-in", data={"key": key})
            http.cookies.clear()
            memory_full(broker)
            assert (await http.post("/sign-in", data={"key": f"{key}x"})).status_code == 403
            assert (await http.post("/sign-in", data={"key": key})).status_code == 303
            assert "OOM" in (await read(http, "/overview")).text
            token = http.cookies[COOKIE]
            prefix, named, until, seal = token.split(".")
            for forged in (f"{named}.{int(until) + 1}.{seal}", f"{'0' * 64}.{until}.{seal}", f"{named}.{until}.", ""):
                http.cookies.clear()
                http.cookies.set(COOKIE, f"{prefix}.{forged}")
                assert (await http.get("/overview")).headers["location"].startswith("/sign-in")
            http.cookies.clear()
            http.cookies.set(COOKIE, token)
            form = Document((await http.get("/turns")).text).form("/sign-out")
            assert (await http.post("/sign-out", data=form)).headers["location"] == "/sign-in"
            http.cookies.clear()
            http.cookies.set(COOKIE, token)
            assert (await http.get("/overview")).status_code == 200, "a copy ends after an hour"
            keys.revoke_key(path, "ops")
            assert (await http.get("/overview")).headers["location"].startswith("/sign-in")


async def test_without_keys_the_pages_serve_this_machine_only(settings: Settings) -> None:
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        for options in ({"host": "203.0.113.7"}, {"x-forwarded-for": "1.2.3.4"}):
            async with caller(app, **options) as http:
                answer = await http.get("/turns")
                assert answer.status_code == 403
                assert Document(answer.text).all("h1")[0].text == "Not allowed"


async def test_the_list_is_filtered_and_paged_without_a_gap(bench: Bench, browser: Browser) -> None:
    first = await bench.outcome(says(GOOD), session_id="one")
    failed = await bench.outcome(ends(Verdict.INCOMPLETE), session_id="two", max_attempts=1)
    store, names = bench.store, bench.keys
    at = int((await bench.client.reader.read_turn(first.turn_id)).finished_at * 1000)
    copies = [f"turn-{number:032x}" for number in range(120)]
    for number, turn_id in enumerate(copies):  # many of them within one millisecond
        store.copy(names.turn(first.turn_id), names.turn(turn_id))
        store.copy(names.texts(first.turn_id), names.texts(turn_id))
        store.hset(names.turn(turn_id), "id", turn_id)
        store.zadd(names.finished, {turn_id: at - 10 - number // 40})
    http = await browser()
    seen: list[str] = []
    address = "/turns"
    while address:
        page = await read(http, address)
        seen += [e.attributes["href"] for e in page.all("a", **{"class": "ask"})]
        address = next((e.attributes["href"] for e in page.all("a", rel="next")), "")
    assert seen[0] == f"/turns/{failed.turn_id}"
    assert len(seen) == len(set(seen)) == 122
    only = await read(http, "/turns?status=unsuccessful")
    assert [e.attributes["href"] for e in only.all("a", **{"class": "ask"})] == [f"/turns/{failed.turn_id}"]
    only = await read(http, "/turns?status=success&session=one")
    assert len(only.all("a", **{"class": "ask"})) == 50
    for wrong in ("?status=nonsense", "?cursor=1", "?cursor=fx.turn-1", "?since=yesterday"):
        assert (await http.get(f"/turns{wrong}")).status_code == 400
    to_one = await http.get("/turns", params={"turn": f" {first.turn_id} "})
    assert to_one.headers["location"] == f"/turns/{first.turn_id}"


async def test_a_damaged_record_hides_no_other(bench: Bench, browser: Browser) -> None:
    turn = await bench.outcome(says(GOOD))
    store, names = bench.store, bench.keys
    damaged = {f"turn-{number:032x}": turn.finished_at * 1000 for number in range(3)}
    store.zadd(names.finished, damaged)
    store.set(names.turn("turn-" + "0" * 32), "no hash")
    store.hset(names.turn("turn-" + "0" * 31 + "1"), mapping={"state": "finished", "outcome": "unknown"})
    http = await browser()
    assert turn.turn_id in (await http.get("/turns")).text
    assert turn.turn_id in (await http.get("/overview")).text


async def test_a_store_that_is_away_is_an_error_page(private_settings: Settings) -> None:
    async with web(replace(private_settings, store_url="unix:///nowhere/at.all")) as http:
        answer = await http.get("/overview")
    assert answer.status_code == 503
    assert "store_unavailable" in Document(answer.text).text


async def test_the_pages_are_no_part_of_the_api(browser: Browser) -> None:
    paths = (await (await browser()).get("/openapi.json")).json()["paths"]
    assert not [path for path in paths if not path.startswith(("/v1", "/healthz", "/readyz", "/metrics"))]


def test_templates_and_files_are_beside_the_code_and_so_in_the_wheel() -> None:
    package = Path(__file__).parents[2] / "api_client/web/pages"
    assert {file.suffix for file in (package / "templates").iterdir()} == {".html"}
    assert {file.name for file in (package / "assets").iterdir()} == {"pages.css", "live.js", "icon.svg"}
