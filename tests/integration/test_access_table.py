"""Every route and every kind of caller, with the exact answer (the classes "foreign object" and "low user to code").

The routes are the application's own list: a new one without a row fails. Real store; no worker runs, so turns wait.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest
from fastapi.routing import iter_route_contexts

from api_client import api_keys as ring
from api_client.api_keys import make_token
from api_client.client import TurnsClient
from api_client.contract.owners import LOCAL_OWNER, owner_of_name
from api_client.contract.settings import Settings
from api_client.contract.turn import TurnRequest
from api_client.web.app import relay_server as relay_app
from api_client.web.app.relay_server import create_app
from api_client.web.pages.rendering import VERSION
from api_client.web.pages.visitor import COOKIE
from tests.constants import Constants
from tests.unit.web.conftest import caller
from tests.unit.web.fake import FakeTurns, app_with

#: In the order of the table's columns. The first seven ask a relay with keys, the last two one without.
CALLERS = ("no key", "wrong key", "owner", "other", "forwarded user", "metrics", "operator", "keyless", "keyless+token")
KEYS: dict[str, dict[str, Any]] = {
    "owner": {},
    "other": {},
    "forwarded user": {"forwards_users": True},
    "metrics": {"right": "metrics"},
    "operator": {"right": "operator"},
}
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hallo"}]}
PHASE = {"id": "a", "description": "Write.", "output_files": ["a.txt"]}
COMMAND = {**PHASE, "quality_gate": {"type": "command", "command": ["true"]}}


@dataclass(frozen=True)
class Row:
    """One request, and its answer to each caller: nine of them, split at '|', or one for all who have a key."""

    method: str
    path: str
    answers: str
    json: Any = None
    form: Any = None
    ended: bool = False  # the turn has ended; else it waits
    query: str = ""

    @property
    def expected(self) -> list[str]:
        cells = [cell.strip() for cell in self.answers.split("|")]
        return cells if len(cells) == len(CALLERS) else [NO_KEY, NO_KEY, *(cells * 7)]


NO_KEY = "401 invalid_api_key"
FOREIGN = "404 turn_not_found"
#: What belongs to one owner: others hear that it does not exist.
OWN = "|".join([NO_KEY, NO_KEY, "200", FOREIGN, FOREIGN, FOREIGN, "200", "200", "200"])
WAITS = "409 turn_not_suspended"
DECIDE = "|".join([NO_KEY, NO_KEY, WAITS, FOREIGN, FOREIGN, FOREIGN, WAITS, "403 operators_only", WAITS])
REFUSED = "403 operators_only"
FIGURES = "|".join([NO_KEY, NO_KEY, REFUSED, REFUSED, REFUSED, "200", "200", "200", "200"])
RUNS_COMMANDS = "|".join([NO_KEY, NO_KEY, REFUSED, REFUSED, REFUSED, REFUSED, "202", REFUSED, "202"])
PAUSES = "|".join([NO_KEY, NO_KEY, *[REFUSED] * 4, "OK", REFUSED, "OK"])
#: As their page: this machine may read it without a key.
NOTIFICATIONS = "|".join([NO_KEY, NO_KEY, *[REFUSED] * 4, *["200"] * 3])
ALL_200 = "|".join(["200"] * 9)
#: No provider is configured.
ALL_404 = "|".join(["404"] * 9)
SIGN_IN = "303 /sign-in"
OPERATORS_PAGE = "|".join([SIGN_IN, SIGN_IN, *["303 /turns"] * 4, *["200"] * 3])
#: No worker has the name, which only those hear who may order one.
ORDER = "|".join([NO_KEY, NO_KEY, *[REFUSED] * 4, "400 invalid_value", REFUSED, "400 invalid_value"])
PAUSE_FORM = "|".join([SIGN_IN, SIGN_IN, *["403"] * 4, "303 /paused", "403", "303 /paused"])
NOTICE_FORM = "|".join([SIGN_IN, SIGN_IN, *["403"] * 4, "303 /notifications", "403", "303 /notifications"])
OWN_PAGE = "|".join([SIGN_IN, SIGN_IN, "200", "404", "404", "404", "200", "200", "200"])
OWN_FORM = "|".join([SIGN_IN, SIGN_IN, "303 /turns/ID", "404", "404", "404", *["303 /turns/ID"] * 3])

TABLE = [
    Row("GET", "/healthz", ALL_200),
    Row("GET", "/readyz", "|".join(["503 no_worker"] * 9)),
    Row("GET", "/openapi.json", ALL_200),
    Row("GET", "/v1/models", "200"),
    Row("GET", "/v1/models/{model}", "200"),
    Row("POST", "/v1/chat/completions", "200", json=CHAT),
    Row("POST", "/v1/responses", "200", json={"model": "scripted", "input": "Hallo", "background": True}),
    Row("GET", "/v1/responses/{response_id}", OWN),
    Row("POST", "/v1/responses/{response_id}/cancel", OWN),
    Row("POST", "/v1/turns", "202", json=CHAT),
    Row("GET", "/v1/turns", "200"),
    Row("GET", "/v1/turns/{turn_id}", OWN),
    Row("GET", "/v1/turns/{turn_id}/attempts", OWN),
    Row("GET", "/v1/turns/{turn_id}/events", OWN, ended=True),
    Row("POST", "/v1/turns/{turn_id}/cancel", OWN),
    Row("DELETE", "/v1/turns/{turn_id}", OWN),
    Row("POST", "/v1/turns/{turn_id}/replay", OWN.replace("200", "202"), json={"message": "Und?"}, ended=True),
    Row("GET", "/v1/turns/{turn_id}/files", OWN),
    Row("GET", "/v1/turns/{turn_id}/files/{path}", OWN.replace("200", "404 file_not_found"), ended=True),
    Row("GET", "/files/{turn_id}/{path}", "|".join(["403 link_invalid"] * 9)),
    Row("POST", "/v1/phases", "202", json={"directory": "work", "phases": [PHASE]}),
    Row("POST", "/v1/phases", RUNS_COMMANDS, json={"directory": "work", "phases": [COMMAND]}),
    Row("GET", "/v1/inbox", "200"),
    Row("GET", "/v1/inbox/{turn_id}", OWN),
    Row("POST", "/v1/inbox/{turn_id}/decision", DECIDE, json={"decision": "approve"}),
    Row("GET", "/answer/{turn_id}", "|".join(["403"] * 9)),
    Row("POST", "/answer/{turn_id}", "|".join(["403"] * 9), form={"decision": "approve"}),
    Row("GET", "/v1/pauses", "200"),
    Row("POST", "/v1/pauses", PAUSES.replace("OK", "201"), json={"what": "queue", "name": "check", "seconds": 1}),
    Row("DELETE", "/v1/pauses/{what}", PAUSES.replace("OK", "200")),
    Row("DELETE", "/v1/pauses/{what}/{name}", PAUSES.replace("OK", "200")),
    Row("GET", "/v1/notifications", NOTIFICATIONS),
    Row("GET", "/v1/notifications/dead", NOTIFICATIONS),
    Row("POST", "/v1/notifications/dead/resend", PAUSES.replace("OK", "200"), json={"all": True}),
    Row("POST", "/v1/notifications/dead/drop", PAUSES.replace("OK", "200"), json={"all": True}),
    Row("GET", "/v1/budgets", "200"),
    Row("GET", "/budgets", "|".join([SIGN_IN, SIGN_IN, *["303 /turns"] * 4, *["200"] * 3])),
    Row("GET", "/v1/stats", FIGURES),
    Row("GET", "/v1/retry-rate", FIGURES),
    Row("GET", "/metrics", FIGURES),
    Row("GET", "/v1/workers", FIGURES),
    Row("POST", "/v1/workers/{name}/{order}", ORDER),
    Row("GET", "/", "|".join([SIGN_IN, SIGN_IN, *["303 /turns"] * 4, *["303 /overview"] * 3])),
    Row("GET", "/overview", OPERATORS_PAGE),
    Row("GET", "/workers", OPERATORS_PAGE),
    Row("POST", "/workers/{name}/{order}", "|".join([SIGN_IN, SIGN_IN, *["403"] * 4, "400", "403", "400"]), form={}),
    Row("GET", "/audit", OPERATORS_PAGE),
    Row("GET", "/policies", OPERATORS_PAGE),
    Row("GET", "/policies/{replay_id}", OPERATORS_PAGE.replace("200", "404")),
    Row("GET", "/turns", "|".join([SIGN_IN, SIGN_IN, *["200"] * 7])),
    Row("GET", "/turns/{turn_id}", OWN_PAGE),
    Row("GET", "/turns/{turn_id}/export", OWN_PAGE),
    Row("GET", "/turns/{turn_id}/bundle", "|".join([SIGN_IN, SIGN_IN, *["403"] * 4, "404", "403", "404"])),
    Row("POST", "/turns/{turn_id}/cancel", OWN_FORM, form={}),
    Row("POST", "/turns/{turn_id}/replay", OWN_FORM, form={}, ended=True),
    Row("POST", "/turns/{turn_id}/replay-changed", OWN_FORM, form={"message": "Und?"}, ended=True),
    Row("GET", "/turns/bulk", "|".join([SIGN_IN, SIGN_IN, *["200"] * 7]), query="action=cancel"),
    Row("GET", "/turns/bulk", "|".join([SIGN_IN, SIGN_IN, *["403"] * 4, "200", "403", "200"]), query="action=drop"),
    Row("POST", "/turns/bulk", "|".join([SIGN_IN, SIGN_IN, *["200"] * 7]), form={"action": "cancel", "bulk": "b1"}),
    Row("POST", "/turns/{turn_id}/drop", "|".join([SIGN_IN, SIGN_IN, *["403"] * 4, "409", "403", "409"]), form={}),
    Row(
        "POST",
        "/turns/{turn_id}/decision",
        "|".join([SIGN_IN, SIGN_IN, "409", "404", "404", "404", "409", "403", "409"]),
        form={"decision": "approve"},
    ),
    Row(
        "POST",
        "/turns/{turn_id}/tool-sign-in",
        "|".join([SIGN_IN, SIGN_IN, "409", "404", "404", "404", "409", "403", "409"]),
        form={"suspended": "1"},
    ),
    Row("POST", "/answer/{turn_id}/tool-sign-in", "|".join(["403"] * 9), form={}),
    Row("GET", "/tools/signed-in/{server}", "|".join(["403"] * 9)),
    Row("GET", "/paused", "|".join([SIGN_IN, SIGN_IN, *["303 /turns"] * 4, *["200"] * 3])),
    Row("POST", "/paused", PAUSE_FORM, form={"what": "queue", "name": "check", "for": "1s"}),
    Row("POST", "/paused/resume", PAUSE_FORM, form={"what": "queue", "name": "check"}),
    Row("GET", "/notifications", "|".join([SIGN_IN, SIGN_IN, *["303 /turns"] * 4, *["200"] * 3])),
    Row("POST", "/notifications/resend", NOTICE_FORM, form={}),
    Row("POST", "/notifications/drop", NOTICE_FORM, form={}),
    Row("GET", "/sign-in", ALL_200),
    Row("POST", "/sign-in", "|".join(["403", "403", *["303 /"] * 5, "403", "303 /"]), form={"key": "KEY"}),
    Row("GET", "/sign-in/start", ALL_404),
    Row("GET", "/sign-in/callback", ALL_404),
    Row("GET", "/sign-in/out", ALL_404),
    Row("POST", "/sign-out", "|".join([SIGN_IN] * 9), form={}),
    Row("GET", "/favicon.ico", "|".join([f"303 /assets/{VERSION}/icon.svg"] * 9)),
    Row("GET", "/assets/{version}/{name}", ALL_200),
]


def routes() -> set[tuple[str, str]]:
    """Method and path of every route, as the application itself has them; HEAD goes with GET."""
    found = set()
    for context in iter_route_contexts(app_with(FakeTurns()).routes):
        path = str(context.path).replace(":path}", "}")
        found |= {(method, path) for method in context.methods or () if method != "HEAD"}
    return found


def test_every_route_has_a_row() -> None:
    assert routes() == {(row.method, row.path) for row in TABLE}


@dataclass
class Door:
    """A caller with a way in. ``key`` is what it sends; pages know it by the cookie of its sign-in."""

    name: str
    key: str
    http: httpx2.AsyncClient
    client: TurnsClient
    owner: str  # whose turns the table's turns are

    async def ask(self, row: Row) -> str:
        """Send the row's request about a turn of its own; the answer as the table writes it."""
        turn_id = await self._turn(ended=row.ended)
        names = {"turn_id": turn_id, "response_id": f"resp_{turn_id}", "model": "scripted", "path": "a.txt"}
        if "{what}" in row.path:
            names["what"] = "queue" if "{name}" in row.path else "intake"
        name = "check" if "{what}" in row.path else "pages.css"
        path = row.path.format(**names, version=VERSION, name=name, order="quiet", replay_id="none", server="jira")
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        if self.name == "forwarded user":
            headers["x-owui-user-id"] = "u1"
        if row.path == "/v1/chat/completions":
            headers["x-owui-task"] = "title_generation"  # answered at once: no worker runs here
        form = None
        if row.form is not None:
            form = {**row.form, "csrf": self._csrf()}
            form |= {"key": self.key} if "key" in form else {}
        path = f"{path}?{row.query}" if row.query else path
        answer = await self.http.request(row.method, path, json=row.json, data=form, headers=headers)
        return self._said(answer, turn_id)

    def _said(self, answer: httpx2.Response, turn_id: str) -> str:
        if answer.status_code == 303:
            place = answer.headers["location"].partition("?")[0]
            return f"303 {'/turns/ID' if place.startswith('/turns/t') else place}"
        if answer.status_code < 400 or answer.headers["content-type"] != "application/json":
            return str(answer.status_code)
        body = answer.json()
        return f"{answer.status_code} {body['error']['code'] if 'error' in body else body['status']}"

    def _csrf(self) -> str:
        if not self.http.cookies.get(COOKIE):
            self.http.cookies.set(COOKIE, "any", domain="127.0.0.1")
        return hmac.new(self.http.cookies[COOKIE].encode(), b"helix-form", hashlib.sha256).hexdigest()

    async def _turn(self, *, ended: bool) -> str:
        request = TurnRequest(
            model="scripted",
            messages=({"role": "user", "content": "Hallo"},),
            session_id=f"s-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}",
            owner=self.owner,
        )
        turn_id = await self.client.submitter.submit(request)
        if ended:
            await self.client.canceller.cancel(turn_id)
        return turn_id


@pytest.fixture
async def doors(settings: Settings, monkeypatch: pytest.MonkeyPatch, constants: Constants) -> AsyncIterator[list[Door]]:
    """All callers, those with a key signed in to the pages."""
    monkeypatch.setattr(relay_app, "CLAIM_SECONDS", 0.01)
    constants("api_client.web.identity.access", TURNS_PER_MINUTE=0, UNFINISHED_TURNS=0)
    (settings.root / "work").mkdir()
    granted = tuple(f"work={name.replace(' ', '-')}" for name in KEYS)
    keyed = replace(settings, keys_file=str(settings.root / "keys.json"), phase_directories=granted)
    keyless = replace(settings, namespace=f"{settings.namespace}-keyless")
    secrets = {
        name: ring.add_key(keyed.keys_path, ring.ApiKey(name=name, hash="", owner=name.replace(" ", "-"), **more))
        for name, more in KEYS.items()
    }
    secrets |= {"wrong key": "wrong", "keyless+token": make_token(keyless.token_path)}
    async with AsyncExitStack() as stack:
        apps = {}
        for used in (keyed, keyless):
            client = TurnsClient(used)
            app = create_app(used, client)
            await stack.enter_async_context(app.router.lifespan_context(app))
            apps[used.namespace] = (app, client)
        found = []
        for name in CALLERS:
            local = name.startswith("keyless")
            app, client = apps[(keyless if local else keyed).namespace]
            http = await stack.enter_async_context(caller(app))
            key = secrets.get(name, "")
            if key and key != "wrong":
                assert (await http.post("/sign-in", data={"key": key})).status_code == 303
            found.append(Door(name, key, http, client, LOCAL_OWNER if local else owner_of_name("owner")))
        yield found


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.method} {row.path}")
async def test_each_caller_gets_exactly_this_answer(doors: list[Door], row: Row) -> None:
    said = {door.name: await door.ask(row) for door in doors}
    assert said == dict(zip(CALLERS, row.expected, strict=True))
