"""Sign-in of people to MCP servers: authorization code with PKCE, from the question to the call and its renewal."""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

pytest.importorskip("mcp")

from mcp.shared.auth import OAuthToken

from api_client.api_keys import ApiKey, add_key, make_token
from api_client.contract.errors import SettingsError, StoreUnavailable
from api_client.contract.owners import owner_of_name
from api_client.contract.settings import load_settings
from api_client.contract.turn import Outcome
from api_client.oidc.person import SignInRefused
from api_client.secrets.secret_store import SecretId, SecretStore
from api_client.tools.sign_in_server import SignInServer, find_sign_in_server
from api_client.tools.tool_grants import GrantEnded, ToolGrant, ToolGrants
from api_client.tools.tool_sign_in import ToolSignIn
from api_client.web.pages.page_parts.tool_sign_in import COOKIE
from tests.html import Document
from tests.installation import Installation, environ_of, turns, web
from tests.ports import free_port
from tests.support import wait_for, wait_until
from tests.tools.running import HERE, PYTHON, block, call, equip, rows, told
from tests.tools.stored_secrets import CANARY, find_holders, run_secrets
from worker.plugins.tools.credentials import StoredCredentials
from worker.plugins.tools.oauth import StoredTokens
from worker.plugins.tools.server_checks import tools
from worker.plugins.tools.tool_servers import list_servers
from worker.plugins.tools.upstream_pool import UpstreamPool

PUBLIC = "http://127.0.0.1:8765"
TELL = ("jira__tell", {})
Browser = httpx2.AsyncClient


class Served(NamedTuple):
    """A server to which people sign in, and the log of the tokens that it gave."""

    url: str
    log: Path


@pytest.fixture(scope="module")
def sign_in_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    port, log = free_port(), tmp_path_factory.mktemp("sign-in") / "tokens.log"
    started = subprocess.Popen([PYTHON, "-m", "tests.tools.sign_in_server", str(port), log], cwd=HERE.parents[1])
    try:
        with socket.socket() as probe:
            wait_for(lambda: probe.connect_ex(("127.0.0.1", port)) == 0)
        yield Served(f"http://127.0.0.1:{port}", log)
    finally:
        started.kill()
        started.wait()


@pytest.fixture
def served(sign_in_server: Served) -> Served:
    """The server with an empty log; what it gave to the clients of other tests is of no use to this one's."""
    for file in sign_in_server.log.parent.iterdir():
        file.unlink()
    return sign_in_server


def configure(installation: Installation, served: Served, **oauth: Any) -> None:
    run_secrets(installation, "new-key")
    oauth = {"issuer": served.url, "sign_in": True, "scopes": ["read"], **oauth}
    tools = block("jira", url=f"{served.url}/mcp", oauth=oauth, writes="allow")
    equip(installation, tools, public_url=PUBLIC, log_level="debug")
    installation.settings = load_settings(environ_of(installation.settings))


@pytest.fixture
async def browser(installation: Installation, served: Served) -> AsyncIterator[Browser]:
    """A browser of an operator, on an installation whose agent may use the server."""
    configure(installation, served)
    async with web(installation.settings) as http:
        token = make_token(installation.settings.token_path)
        await http.post("/sign-in", data={"key": token})
        yield http


async def ask(installation: Installation, *calls: tuple[str, dict[str, Any]], **more: Any) -> str:
    """Submit a turn that makes these calls, and wait until it waits for a person."""
    turn_id = await call(installation, *(calls or (TELL,)), **{"owner": "local", "locale": "en", **more})
    await installation.until(turn_id, "suspended")
    return turn_id


async def begin(browser: Browser, turn_id: str) -> str:
    """Press the button on the turn's page, and return the issuer's address."""
    page = Document((await browser.get(f"/turns/{turn_id}")).text)
    form = page.form(f"/turns/{turn_id}/decision")
    [button] = [each for each in page.all("button") if "formaction" in each.attributes]
    answer = await browser.post(button.attributes["formaction"], data=form)
    assert answer.status_code == 200, answer.text
    return find_address(answer)


def find_address(answer: httpx2.Response) -> str:
    [link] = [each for each in Document(answer.text).all("a") if "/authorize?" in each.attributes["href"]]
    return link.attributes["href"]


async def agree(address: str) -> str:
    """Agree at the issuer; the path and query with which it sends the browser back."""
    async with httpx2.AsyncClient(follow_redirects=False) as http:
        back = (await http.get(address)).headers["location"]
    assert back.startswith(PUBLIC)
    return back.removeprefix(PUBLIC)


async def sign_in(browser: Browser, turn_id: str) -> httpx2.Response:
    return await browser.get(await agree(await begin(browser, turn_id)))


def listed(installation: Installation) -> list[tuple[str, str, str]]:
    found = json.loads(run_secrets(installation, "list", "--json").stdout)
    return [(each["server"], each["owner"], each["has"]) for each in found]


async def test_a_turn_waits_for_the_sign_in_of_its_person_and_goes_on_with_the_persons_token(
    installation: Installation, served: Served, browser: Browser
) -> None:
    installation.worker()
    turn_id = await ask(installation, ("list", {}), ("jira__sign_in", {}), TELL)
    page = Document((await browser.get(f"/turns/{turn_id}")).text).text
    assert "jira wants you to sign in" in page
    address = await begin(browser, turn_id)
    asked = {name: each[0] for name, each in parse_qs(urlsplit(address).query).items()}
    assert (asked["code_challenge_method"], asked["resource"], asked["scope"]) == ("S256", f"{served.url}/mcp", "read")
    back = await browser.get(await agree(address))
    assert back.status_code == 200
    assert "You are signed in to jira" in Document(back.text).text
    turn = await installation.result(turn_id)
    assert turn.outcome is Outcome.PASSED, told(installation, turn)
    assert "tools: jira__fail jira__tell" in turn.response, "the agent sees the server's own tools now"
    assert "The user has signed in to jira" in turn.response
    assert '"told": "it is Bearer ***"' in turn.response
    assert listed(installation) == [("jira", "local", "OAuth token")]
    assert served.log.read_text() == f"code read {served.url}/mcp\n"
    second = await installation.result(await call(installation, TELL, owner="local", session="second"))
    assert "Bearer ***" in second.response, "who has signed in once is not asked again"


async def test_an_expired_token_is_renewed_and_an_ended_sign_in_is_asked_for_again(
    installation: Installation, served: Served, browser: Browser
) -> None:
    installation.worker()
    turn_id = await ask(installation)
    await sign_in(browser, turn_id)
    assert (await installation.result(turn_id)).outcome is Outcome.PASSED
    served.log.with_suffix(".expire").touch()
    turn = await installation.result(await call(installation, TELL, TELL, owner="local", session="second"))
    assert turn.response.count("it is Bearer ***") == 2, told(installation, turn)
    assert served.log.read_text().split()[::3] == ["code", "refresh"]
    served.log.with_suffix(".revoke").touch()
    again = await ask(installation, session="third")
    assert listed(installation) == []
    assert [row["state"] for row in rows(installation, again)] in ([], ["failed"])
    await sign_in(browser, again)
    turn = await installation.result(again)
    assert "Bearer ***" in turn.response, told(installation, turn)


async def test_the_agent_goes_on_without_the_server_when_the_person_refuses_or_nobody_can_be_asked(
    installation: Installation, browser: Browser
) -> None:
    installation.worker()
    turn_id = await ask(installation, TELL, TELL)
    page = Document((await browser.get(f"/turns/{turn_id}")).text)
    form = page.form(f"/turns/{turn_id}/decision") | {"decision": "reject"}
    assert (await browser.post(f"/turns/{turn_id}/decision", data=form)).status_code == 303
    turn = await installation.result(turn_id)
    assert turn.response.count("The user did not sign in to jira; go on without it.") == 2, told(installation, turn)
    assert listed(installation) == []


async def test_tokens_codes_and_verifiers_are_stored_encrypted_alone(
    installation: Installation, browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    installation.worker()
    turn_id = await ask(installation, TELL, ("jira__fail", {}))
    back = await agree(await begin(browser, turn_id))
    assert CANARY in back
    assert find_holders(installation, '"redirect_uri"') == set(), "what has begun is stored encrypted too"
    await browser.get(back)
    turn = await installation.result(turn_id)
    assert turn.response.count("***") >= 2, told(installation, turn)
    key = installation.settings.secrets_key_path
    assert find_holders(installation, CANARY, installation.settings.root) == set()
    assert CANARY not in caplog.text + turn.response
    assert find_holders(installation, key.read_text().strip(), installation.settings.root) == {f"file {key}"}


@pytest.fixture
async def waiting(installation: Installation, browser: Browser) -> str:
    """A turn that waits for its person's sign-in."""
    installation.worker()
    return await ask(installation)


async def refuse(installation: Installation, http: Browser, back: str, words: str) -> None:
    """Come back with an address that must not sign in."""
    answer = await http.get(back)
    assert (answer.status_code, words in Document(answer.text).text) == (403, True), answer.text
    assert listed(installation) == []


async def test_nobody_says_that_a_person_signed_in_without_the_sign_in(
    installation: Installation, browser: Browser, waiting: str
) -> None:
    answer = await browser.post(
        f"/v1/inbox/{waiting}/decision",
        json={"decision": "approve"},
        headers={"authorization": f"Bearer {make_token(installation.settings.token_path)}"},
    )
    assert (answer.status_code, f"{PUBLIC}/turns/{waiting}" in answer.text) == (400, True), answer.text
    form = Document((await browser.get(f"/turns/{waiting}")).text).form(f"/turns/{waiting}/decision")
    answer = await browser.post(f"/turns/{waiting}/decision", data=form | {"decision": "approve"})
    assert answer.status_code == 400
    environ = environ_of(installation.settings)
    approved = subprocess.run(turns("inbox", "approve", waiting), env=environ, capture_output=True, text=True)
    assert (approved.returncode != 0, f"/turns/{waiting}" in approved.stderr) == (True, True)
    shown = subprocess.run(turns("inbox", "show", waiting), env=environ, capture_output=True, text=True)
    assert re.search(r"answers +reject\n", shown.stdout), shown.stdout
    assert (await installation.client.reader.read_turn(waiting)).state == "suspended"


async def test_one_sign_in_continues_all_turns_of_its_person_that_wait_for_it(
    installation: Installation, served: Served, browser: Browser, waiting: str
) -> None:
    others = [await ask(installation, session=session) for session in ("second", "third")]
    await sign_in(browser, waiting)
    for turn_id in (waiting, *others):
        assert "Bearer ***" in (await installation.result(turn_id)).response
    assert served.log.read_text().split()[::3] == ["code"]


async def test_a_person_who_has_signed_in_already_is_sent_nowhere(
    installation: Installation, browser: Browser, waiting: str
) -> None:
    await sign_in_directly(installation)
    form = Document((await browser.get(f"/turns/{waiting}")).text).form(f"/turns/{waiting}/decision")
    answer = await browser.post(f"/turns/{waiting}/tool-sign-in", data=form)
    assert "You are signed in to jira" in Document(answer.text).text
    assert "Bearer ***" in (await installation.result(waiting)).response


async def test_a_sign_in_is_finished_by_the_browser_that_began_it_and_once(
    installation: Installation, browser: Browser, waiting: str
) -> None:
    back = await agree(await begin(browser, waiting))
    async with web(installation.settings) as other:
        await refuse(installation, other, back, "this browser has not begun this sign-in")
        other.cookies.set(COOKIE, "x" * 43)
        await refuse(installation, other, back, "this browser has not begun this sign-in")
    cookie = browser.cookies[COOKIE]
    assert (await browser.get(back)).status_code == 200
    browser.cookies.set(COOKIE, cookie, domain="127.0.0.1", path="/tools/signed-in/jira")
    again = await browser.get(back)
    assert "finished before" in Document(again.text).text
    assert again.status_code == 403


async def test_a_page_at_another_host_than_the_way_back_begins_no_sign_in(
    installation: Installation, browser: Browser, waiting: str
) -> None:
    form = Document((await browser.get(f"/turns/{waiting}")).text).form(f"/turns/{waiting}/decision")
    elsewhere = {"origin": "http://localhost:8765", "sec-fetch-site": "same-origin"}
    answer = await browser.post(f"/turns/{waiting}/tool-sign-in", data=form, headers=elsewhere)
    assert (answer.status_code, COOKIE in browser.cookies) == (403, False)
    said = Document(answer.text).text
    assert "This sign-in cannot be finished" in said
    assert "You opened this page at localhost, and the sign-in leads back to 127.0.0.1" in said


async def test_who_cannot_be_signed_in_without_keys_reads_the_remedy_in_the_turns_language(
    installation: Installation, browser: Browser, waiting: str
) -> None:
    form = Document((await browser.get(f"/turns/{waiting}")).text).form(f"/turns/{waiting}/decision")
    installation.settings.secrets_key_path.unlink()
    answer = await browser.post(f"/turns/{waiting}/tool-sign-in", data=form)
    assert answer.status_code == 403
    assert "Ask an operator to run <code>turns doctor</code>." in answer.text


async def test_an_operator_reads_whose_chat_gets_the_account(installation: Installation, browser: Browser) -> None:
    installation.worker()
    ada = owner_of_name("ada")
    turn_id = await ask(installation, owner=ada)
    form = Document((await browser.get(f"/turns/{turn_id}")).text).form(f"/turns/{turn_id}/decision")
    answer = await browser.post(f"/turns/{turn_id}/tool-sign-in", data=form)
    assert f"This chat belongs to {ada}, not to you" in Document(answer.text).text
    cookie = answer.headers["set-cookie"]
    assert "Path=/tools/signed-in/jira;" in cookie


async def test_a_code_of_another_sign_in_is_refused(installation: Installation, browser: Browser, waiting: str) -> None:
    foreign = parse_qs(urlsplit(await agree(await begin(browser, waiting))).query)["code"][0]
    own = urlsplit(await agree(await begin(browser, waiting)))
    query = httpx2.QueryParams(own.query).set("code", foreign)
    await refuse(installation, browser, f"{own.path}?{query}", "invalid_grant")


async def test_an_answer_that_was_changed_signs_nobody_in(
    installation: Installation, browser: Browser, waiting: str
) -> None:
    changes = [
        ({"iss": "https://attacker.example"}, "", "came from another provider"),
        ({"state": "x"}, "", "this browser has not begun this sign-in"),
        ({"code": "", "error": "access_denied"}, "", "access_denied"),
        ({}, "/tools/signed-in/other", "the provider of another server"),
    ]
    for changed, path, words in changes:
        back = urlsplit(await agree(await begin(browser, waiting)))
        query = httpx2.QueryParams(back.query).merge(changed)
        if path:  # a browser keeps the cookie to its own server's address
            browser.cookies.set(COOKIE, browser.cookies[COOKIE], domain="127.0.0.1", path=path)
        await refuse(installation, browser, f"{path or back.path}?{query}", words)
    assert (await installation.client.reader.read_turn(waiting)).state == "suspended"


async def test_an_issuer_that_calls_itself_another_one_gets_nobody(
    installation: Installation, served: Served, browser: Browser, waiting: str
) -> None:
    tools = installation.settings.tools_settings
    changed = {"jira": {**tools["jira"], "oauth": {**tools["jira"]["oauth"], "issuer": f"{served.url}/"}}}
    async with web(replace(installation.settings, tools_settings=changed)) as http:
        await http.post("/sign-in", data={"key": make_token(installation.settings.token_path)})
        form = Document((await http.get(f"/turns/{waiting}")).text).form(f"/turns/{waiting}/decision")
        answer = await http.post(f"/turns/{waiting}/tool-sign-in", data=form)
    assert answer.status_code == 403
    assert "the provider is another one" in answer.text


async def test_an_owner_signs_in_for_own_turns_alone_and_only_that_owner_uses_the_tokens(
    installation: Installation, served: Served
) -> None:
    configure(installation, served)
    keys = {
        name: add_key(installation.settings.keys_path, ApiKey(name=name, hash="", owner=name))
        for name in ("ada", "ben")
    }
    ada, ben = owner_of_name("ada"), owner_of_name("ben")
    installation.worker()
    turn_id = await ask(installation, owner=ada)
    async with web(installation.settings) as hers, web(installation.settings) as his:
        await his.post("/sign-in", data={"key": keys["ben"]})
        await hers.post("/sign-in", data={"key": keys["ada"]})
        page = Document((await hers.get(f"/turns/{turn_id}")).text)
        form = page.form(f"/turns/{turn_id}/decision")
        own = Document((await his.get("/turns")).text).form("/sign-out")
        stolen = await his.post(f"/turns/{turn_id}/tool-sign-in", data={**form, "csrf": own["csrf"]})
        assert stolen.status_code == 404
        forged = await hers.post(f"/turns/{turn_id}/tool-sign-in", data={**form, "csrf": "x"})
        assert forged.status_code == 403
        across = await hers.post(f"/turns/{turn_id}/tool-sign-in", data=form, headers={"sec-fetch-site": "cross-site"})
        assert across.status_code == 403
        assert (await sign_in(hers, turn_id)).status_code == 200
    assert "Bearer ***" in (await installation.result(turn_id)).response
    assert listed(installation) == [("jira", ada, "OAuth token")]
    assert await ask(installation, owner=ben, session="his"), "who has not signed in is asked"


@pytest.mark.parametrize("who", ["owner", "signed_in"])
async def test_the_link_of_a_chat_begins_a_sign_in_only_where_the_settings_say_so(
    installation: Installation, served: Served, who: str
) -> None:
    configure(installation, served, who=who)
    add_key(installation.settings.keys_path, ApiKey(name="ada", hash="", owner="ada"))
    installation.worker()
    turn_id = await ask(installation, owner=owner_of_name("ada"))
    async with web(installation.settings) as http:
        link = await link_to(http, installation, turn_id)
        place, _, query = link.partition("?")
        answer = await http.post(f"{place}/tool-sign-in?{query}")
        if who == "signed_in":
            assert (answer.status_code, COOKIE in http.cookies) == (403, False)
            return
        wrong = await http.post(f"{place}/tool-sign-in?{query}x")
        assert wrong.status_code == 403
        assert f'formaction="{place}/tool-sign-in?' in (await http.get(link)).text
        assert "Continue only if this is your own chat" in answer.text
        back = await http.get(await agree(find_address(answer)))
        assert "Back to the turn" not in back.text
    assert "Bearer ***" in (await installation.result(turn_id)).response


async def link_to(http: Browser, installation: Installation, turn_id: str) -> str:
    """The signed link to a turn's question, as the chat of Open WebUI shows it for questions to the owner."""
    turn = await installation.client.reader.read_turn(turn_id)
    suspended, until = round(turn.suspended_at * 1000), int(turn.suspended_at + 3600)
    signature = await installation.client.links.sign_link("question", turn_id, str(suspended), until=until)
    return f"/answer/{turn_id}?suspended={suspended}&until={until}&signature={signature}"


class Signed(NamedTuple):
    """A server to which the owner ``local`` has signed in, and the grant."""

    server: SignInServer
    grant: ToolGrant


@pytest.fixture
async def signed(installation: Installation, served: Served) -> Signed:
    configure(installation, served)
    return await sign_in_directly(installation)


async def sign_in_directly(installation: Installation) -> Signed:
    """Sign the owner ``local`` in without a turn."""
    server = find_sign_in_server(installation.settings, "jira")
    assert server
    flows = ToolSignIn(installation.client.store)
    address, pending = await flows.prepare_sign_in(server, "local", f"{PUBLIC}/back", "state")
    await flows.store_grant(server, pending, dict(httpx2.QueryParams(urlsplit(await agree(address)).query)))
    grant, _ = await ToolGrants(installation.client.store).find_grant(server, "local")
    return Signed(server, grant)


async def test_a_renewed_token_is_stored_although_the_request_that_needed_it_was_given_up(
    installation: Installation, served: Served, signed: Signed
) -> None:
    grants, hold = ToolGrants(installation.client.store), served.log.with_suffix(".hold")
    hold.touch()
    asking = asyncio.create_task(grants.renew_grant(signed.server, "local", signed.grant))
    await wait_until(lambda: "refresh" in served.log.read_text())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    hold.unlink()
    renewed = await ToolGrants(installation.client.store).renew_grant(signed.server, "local", signed.grant)
    assert renewed.access_token != signed.grant.access_token
    assert served.log.read_text().split()[::3] == ["code", "refresh"]


async def test_a_renewed_token_is_stored_in_spite_of_an_outage_and_of_another_encryption_meanwhile(
    installation: Installation, served: Served, signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, failed = installation.client.store, list[str]()
    send = store.send_command

    async def send_badly(*parts: Any) -> Any:
        if parts[0] == "EVAL" and "HSET" in parts[1] and len(failed) < 2:
            failed.append("write")
            if len(failed) == 1:
                raise StoreUnavailable("the store is out")
            await SecretStore(installation.client.store).encrypt_all_again()
        return await send(*parts)

    monkeypatch.setattr(store, "send_command", send_badly)
    renewed = await ToolGrants(store).renew_grant(signed.server, "local", signed.grant)
    assert await ToolGrants(store).find_grant(signed.server, "local") == (renewed, "local")
    assert renewed.access_token != signed.grant.access_token


async def test_a_client_whose_secret_changed_costs_nobody_the_sign_in(
    installation: Installation, served: Served
) -> None:
    about = {"redirect_uris": [f"{PUBLIC}/back"], "scope": "read", "token_endpoint_auth_method": "client_secret_basic"}
    async with httpx2.AsyncClient() as http:
        client = (await http.post(f"{served.url}/register", json=about)).json()
    configure(installation, served, client_id=client["client_id"])
    secrets, grants = SecretStore(installation.client.store), ToolGrants(installation.client.store)
    secret_id, right = SecretId(name="jira"), {"client_secret": client["client_secret"]}
    await secrets.write_secret(secret_id, right)
    server, used = await sign_in_directly(installation)
    await secrets.write_secret(secret_id, {"client_secret": "wrong"})
    with pytest.raises(SignInRefused, match="401"):
        await grants.renew_grant(server, "local", used)
    await secrets.write_secret(secret_id, right)
    earlier = replace(used, client_secret="earlier")
    await grants.write_grant(server, "local", earlier)
    renewed = await grants.renew_grant(server, "local", earlier)
    assert (renewed.access_token != used.access_token, renewed.client_secret) == (True, client["client_secret"])


async def test_a_persons_tokens_serve_no_client_of_its_own(installation: Installation, signed: Signed) -> None:
    secret_id = SecretId(name="jira", owner="local", server="jira")
    tokens = StoredTokens(SecretStore(installation.client.store), secret_id, [])
    assert await tokens.get_tokens() is None
    await tokens.set_tokens(OAuthToken(access_token="own"))
    assert await tokens.get_tokens() == OAuthToken(access_token="own")


async def test_of_processes_that_renew_a_token_at_once_one_asks_the_issuer(
    installation: Installation, served: Served, signed: Signed
) -> None:
    server = signed.server
    grants = [ToolGrants(installation.client.store) for _ in range(5)]
    used, owner = await grants[0].find_grant(server, "local")
    assert owner == "local"
    renewed = await asyncio.gather(*(each.renew_grant(server, "local", used) for each in grants))
    assert {each.access_token == used.access_token for each in renewed} == {False}
    assert len({each.access_token for each in renewed}) == 1
    assert served.log.read_text().split()[::3] == ["code", "refresh"]
    served.log.with_suffix(".revoke").touch()
    store = installation.client.store
    pool = UpstreamPool(installation.settings, StoredCredentials(SecretStore(store)), store)
    [listed_server] = list_servers(installation.settings)
    with pytest.raises(GrantEnded):  # the session's start finds out
        await pool.find_session(listed_server, "local")
    await pool.close()
    await grants[0].write_grant(server, "local", renewed[0])
    with pytest.raises(GrantEnded):
        await grants[0].find_grant(replace(server, url="https://other.example/mcp"), "local")
    assert run_secrets(installation, "delete", "jira", "--owner", "local").returncode == 0
    with pytest.raises(GrantEnded):
        await grants[0].renew_grant(server, "local", renewed[0])


def test_the_doctor_says_where_people_sign_in(installation: Installation, served: Served) -> None:
    configure(installation, served)
    [finding] = tools(installation.settings)
    assert (finding.state, "people sign in at 127.0.0.1" in finding.message) == ("ok", True)
    configure(installation, served, issuer=f"{served.url}/other")
    [finding] = tools(installation.settings)
    assert finding.state == "wrong"


@contextlib.asynccontextmanager
async def signing_in_from_a_terminal(installation: Installation) -> AsyncIterator[tuple[Process, str]]:
    """``turns secrets sign-in``, and the address to which the issuer sends the browser back."""
    command, environ = turns("secrets", "sign-in", "jira", "--owner", "ada"), environ_of(installation.settings)
    started = await asyncio.create_subprocess_exec(*command, env=environ, stderr=PIPE, stdout=PIPE)
    assert started.stderr
    try:
        while "/authorize?" not in (line := (await started.stderr.readline()).decode()):
            assert line
        async with httpx2.AsyncClient(follow_redirects=False) as http:
            yield started, (await http.get(line.strip())).headers["location"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()


async def test_a_person_signs_in_from_a_terminal(installation: Installation, served: Served) -> None:
    configure(installation, served)
    unknown = run_secrets(installation, "sign-in", "other")
    assert "there is no such server" in unknown.stderr
    async with signing_in_from_a_terminal(installation) as (started, back), httpx2.AsyncClient() as http:
        port = urlsplit(back).port
        _, spare = await asyncio.open_connection("127.0.0.1", port)  # as browsers do
        _, long = await asyncio.open_connection("127.0.0.1", port)
        long.write(b"x" * 100_000)
        assert (await http.get(f"{back.partition('?')[0]}?code=x&state=x")).status_code == 404
        assert (await http.get(back)).text == "You can close this page."
        said, errors = await started.communicate()
        assert ("signed in to jira" in said.decode(), errors.decode().strip()) == (True, "")
        assert started.returncode == 0
        for each in (spare, long):
            each.close()
    assert listed(installation) == [("jira", owner_of_name("ada"), "OAuth token")]


async def test_the_browser_of_a_terminals_sign_in_says_that_the_provider_refused(
    installation: Installation, served: Served
) -> None:
    configure(installation, served)
    async with signing_in_from_a_terminal(installation) as (started, back), httpx2.AsyncClient() as http:
        query = httpx2.QueryParams(urlsplit(back).query).remove("code").set("error", "access_denied")
        page = await http.get(f"{back.partition('?')[0]}?{query}")
        assert page.text == "You are not signed in: 'access_denied'. You can close this page."
        _, errors = await started.communicate()
        assert "access_denied" in errors.decode()
    assert listed(installation) == []


def test_a_server_to_which_people_sign_in_is_checked_when_settings_are_loaded(
    installation: Installation, served: Served
) -> None:
    for oauth, words in (
        ({"issuer": "http://login.example.com"}, "'issuer' must begin with https://"),
        ({"sign_in": False}, "'oauth' needs 'url', and 'credentials'"),
        ({"who": "operator"}, "who"),
    ):
        with pytest.raises(SettingsError, match=re.escape(words)):
            configure(installation, served, **oauth)
        installation.change(config="")
