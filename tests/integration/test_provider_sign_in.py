"""Sign-in to the pages with an OpenID Connect provider: who gets in, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from api_client.contract.errors import SettingsError
from api_client.contract.owners import owner_of_name
from api_client.contract.settings import Settings, load_settings
from api_client.contract.settings.setting_faults import find_setting_faults
from api_client.oidc.person import SignedInPerson
from api_client.web.pages.provider_sign_in import PENDING_COOKIE
from api_client.web.pages.visitor import COOKIE
from tests.html import Document
from tests.installation import web
from tests.integration.engine import GOOD, Bench, says
from tests.integration.test_stuck import memory_full
from tests.oidc_provider import Claims, StandInProvider, sign_with_curve
from worker.cli.checks.sign_in import check_sign_in
from worker.processes.embedded_broker import EmbeddedBroker

CALLBACK = "/sign-in/callback"


@pytest.fixture
def provider() -> Iterator[StandInProvider]:
    with StandInProvider() as running:
        yield running


def configure(settings: Settings, provider: StandInProvider, **more: Any) -> Settings:
    return replace(
        settings,
        public_url="http://127.0.0.1:8765",
        oidc_issuer=provider.url,
        oidc_client_id="relay",
        oidc_client_secret="s%cret/:",
        oidc_rights={"staff": "user", "admins": "operator"},
        **more,
    )


@pytest.fixture
async def http(settings: Settings, provider: StandInProvider) -> AsyncIterator[httpx2.AsyncClient]:
    async with web(configure(settings, provider), host="203.0.113.7") as browser:
        yield browser


async def begin(http: httpx2.AsyncClient, provider: StandInProvider, back: str = "/turns") -> dict[str, str]:
    """Go to the provider; the query of its answer."""
    answer = await http.get("/sign-in/start", params={"next": back})
    assert answer.status_code == 303
    return provider.sign_in(answer.headers["location"])


async def refuse(http: httpx2.AsyncClient, query: dict[str, str]) -> str:
    """Come back with a query that must not sign in; what the page says."""
    answer = await http.get(CALLBACK, params=query)
    assert (answer.status_code, COOKIE in http.cookies) == (403, False)
    return Document(answer.text).text


async def test_an_operator_signs_in_orders_and_signs_out(
    http: httpx2.AsyncClient, provider: StandInProvider, bench: Bench
) -> None:
    waiting = await bench.submit(session_id="a")
    asked = await http.get(f"/turns/{waiting}?x=1")
    [link] = [
        each.attributes["href"]
        for each in Document((await http.get(asked.headers["location"])).text).all("a")
        if "start" in each.attributes["href"]
    ]
    to_provider = await http.get(link)
    cookie = to_provider.headers["set-cookie"].lower()
    assert {"httponly", "samesite=lax", f"path={CALLBACK}"} <= {part.strip() for part in cookie.split(";")}
    came = await http.get(CALLBACK, params=provider.sign_in(to_provider.headers["location"]))
    assert came.status_code == 200, came.text
    assert [each.attributes["content"] for each in Document(came.text).all("meta", **{"http-equiv": "refresh"})] == [
        f"0;url=/turns/{waiting}?x=1"
    ]
    cookies = came.headers.get_list("set-cookie")
    assert any("samesite=strict" in each.lower() and "httponly" in each.lower() for each in cookies)
    page = Document((await http.get(f"/turns/{waiting}")).text)
    form = page.form(f"/turns/{waiting}/cancel")
    across = await http.post(f"/turns/{waiting}/cancel", data=form, headers={"sec-fetch-site": "cross-site"})
    assert across.status_code == 403
    forged = await http.post(f"/turns/{waiting}/cancel", data={**form, "csrf": "x"})
    assert forged.status_code == 403
    assert (await http.post(f"/turns/{waiting}/cancel", data=form)).status_code == 303
    [line] = await bench.client.audit.read_lines(turn_id=waiting)
    assert (line.action, line.by) == ("cancel", "oidc:ada")
    stolen = http.cookies[COOKIE]
    out = await http.post("/sign-out", data=page.form("/sign-out"))
    assert "/sign-in/out" in (await http.get(out.headers["location"])).text
    left = await http.get("/sign-in/out")
    assert left.headers["location"].startswith(f"{provider.url}/end?client_id=relay&post_logout_redirect_uri=http")
    http.cookies.set(COOKIE, stolen)
    assert (await http.get("/turns")).headers["location"].startswith("/sign-in")


async def test_the_client_proves_itself_with_secret_and_verifier(
    http: httpx2.AsyncClient, provider: StandInProvider
) -> None:
    query = await begin(http, provider)
    await http.get(CALLBACK, params=query)
    [token] = [asked for asked in provider.asked if asked.path == "/token"]
    kind, _, said = token.headers["authorization"].partition(" ")
    assert (kind, base64.b64decode(said)) == ("Basic", b"relay:s%25cret%2F%3A")
    form = {name: values[0] for name, values in parse_qs(token.body.decode()).items()}
    assert form["redirect_uri"] == f"http://127.0.0.1:8765{CALLBACK}"
    assert len(form["code_verifier"]) >= 43
    assert "client_secret" not in form


async def test_a_group_gives_its_right_for_as_long_as_the_settings_say(
    settings: Settings, provider: StandInProvider, bench: Bench
) -> None:
    mine = await bench.outcome(says(GOOD), owner=owner_of_name("ada@example.org"), session_id="mine")
    theirs = await bench.outcome(says(GOOD), owner=owner_of_name("other"), session_id="theirs")
    provider.claims = {
        "sub": "7", "email": "ada@example.org", "email_verified": True, "realm_access": {"roles": ["staff"]},
    }  # fmt: skip
    used = configure(settings, provider, oidc_groups_claim="realm_access.roles", oidc_owner_claim="email")
    async with web(used, host="203.0.113.7") as http:
        await http.get(CALLBACK, params=await begin(http, provider))
        cookie, listed = http.cookies[COOKIE], (await http.get("/turns")).text
        assert mine.turn_id in listed
        assert theirs.turn_id not in listed
        assert (await http.get("/overview")).headers["location"] == "/turns"
    changes: list[dict[str, Any]] = [
        {"oidc_rights": {"admins": "operator"}},
        {"oidc_issuer": ""},
        {"oidc_client_id": "other"},
    ]
    for changed in changes:
        async with web(replace(used, api_keys=("key",), **changed), host="203.0.113.7") as http:
            http.cookies.set(COOKIE, cookie)
            assert (await http.get("/turns")).headers["location"].startswith("/sign-in")
    async with web(replace(used, oidc_rights={"staff": "operator"}), host="203.0.113.7") as http:
        http.cookies.set(COOKIE, cookie)
        assert (await http.get("/overview")).status_code == 200


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"sub": "ada", "groups": ["guests"]}, "none of your groups has access here"),
        ({"sub": "ada"}, "the claim 'groups' names no group"),
        ({"sub": "ada", "groups": {"admins": True}}, "names no group"),
        ({"sub": "ada", "groups": "admins", "email": "a@b"}, "has not verified your e-mail address"),
        ({"sub": "ada", "groups": "admins", "email": 7}, "did not send your email"),
        ({"sub": "", "groups": "admins", "email": "a@b", "email_verified": True}, "names no person"),
    ],
)
async def test_who_has_no_right_is_told_why(
    settings: Settings, provider: StandInProvider, claims: Claims, said: str
) -> None:
    provider.claims = claims
    async with web(configure(settings, provider, oidc_owner_claim="email"), host="203.0.113.7") as http:
        assert said in await refuse(http, await begin(http, provider))


def _sign_as_hmac(provider: StandInProvider, claims: Claims) -> str:
    """Sign with HS256 and the public key as its secret, as a verifier that trusts the header would check it."""
    public = provider.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head, body = (_encode(part) for part in ({"alg": "HS256", "kid": provider.key_id}, claims))
    signature = hmac.new(public, f"{head}.{body}".encode(), hashlib.sha256).digest()
    return f"{head}.{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def _sign_with_client_secret(provider: StandInProvider, claims: Claims) -> str:
    secret = base64.urlsafe_b64encode(b"s%cret/:").decode().rstrip("=")
    provider.published = [{"kty": "oct", "k": secret, "kid": "h"}]
    return jwt.encode(claims, "s%cret/:", "HS256", headers={"kid": "h"})


def _encode(part: Claims) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def _sign_with_stranger(provider: StandInProvider, claims: Claims) -> str:
    with StandInProvider() as stranger:
        stranger.rotate_key()
        stranger.key_id = provider.key_id
        return stranger.sign_claims(claims)


def _change(**more: Any) -> Callable[[StandInProvider, Claims], str]:
    return lambda provider, claims: provider.sign_claims({**claims, **more})


def _leave_out(name: str) -> Callable[[StandInProvider, Claims], str]:
    return lambda provider, claims: provider.sign_claims({key: claims[key] for key in claims if key != name})


SPOILED: dict[str, Callable[[StandInProvider, Claims], str]] = {
    "alg none": lambda provider, claims: f"{_encode({'alg': 'none'})}.{_encode(claims)}.",
    "HS256 with the public key": _sign_as_hmac,
    "HS256 with the client's secret": _sign_with_client_secret,
    "a stranger's key": _sign_with_stranger,
    "another issuer": _change(iss="https://evil.example"),
    "another audience": _change(aud="other"),
    "another party of two": _change(aud=["relay", "other"], azp="other"),
    "no party of two": _change(aud=["relay", "other"]),
    "expired": _change(exp=int(time.time()) - 120),
    "not yet": _change(iat=int(time.time()) + 3_600),
    "another sign-in's nonce": _change(nonce="x"),
    "half a character as nonce": _change(nonce="\ud800"),
    "no nonce": _leave_out("nonce"),
    "no end": _leave_out("exp"),
    "no subject": _leave_out("sub"),
    "no audience": _leave_out("aud"),
    "subject is a number": _change(sub=7),
    "no token": lambda provider, claims: "",
    "no JSON": lambda provider, claims: "a.b.c",
}


@pytest.mark.parametrize("name", SPOILED)
async def test_a_wrong_id_token_signs_nobody_in(http: httpx2.AsyncClient, provider: StandInProvider, name: str) -> None:
    provider.sign = lambda claims: SPOILED[name](provider, claims)
    said = await refuse(http, await begin(http, provider))
    assert "the provider’s id token" in said.lower().replace("'", "’")


async def test_clocks_may_differ_a_little_and_keys_change_at_any_time(
    http: httpx2.AsyncClient, provider: StandInProvider
) -> None:
    now = int(time.time())
    signs: list[Callable[[Claims], str]] = [
        provider.sign_claims,
        lambda claims: provider.sign_claims({**claims, "exp": now - 30}),
        lambda claims: provider.sign_claims({**claims, "iat": now + 30, "nbf": now + 30}),
        lambda claims: sign_with_curve(provider, claims),
        lambda claims: jwt.encode(claims, provider.key, "PS256"),
    ]
    for sign in signs:
        http.cookies.clear()
        provider.rotate_key()
        provider.sign = sign
        await http.get(CALLBACK, params=await begin(http, provider))
        assert (await http.get("/overview")).status_code == 200


async def test_an_answer_works_once_and_in_the_browser_that_asked(
    settings: Settings, http: httpx2.AsyncClient, provider: StandInProvider
) -> None:
    query = await begin(http, provider)
    async with web(configure(settings, provider), host="203.0.113.8") as other:
        assert "did not start this sign-in" in await refuse(other, query)
        await begin(other, provider)
        assert "another browser" in await refuse(other, query)
        for wrong in ("a.b", "a.b.c", "...", "a.9999999999.2f"):
            other.cookies.clear()
            other.cookies.set(PENDING_COOKIE, wrong, path=CALLBACK)
            await refuse(other, query)
    assert "another browser" in await refuse(http, {**query, "state": "x"})
    kept = http.cookies[PENDING_COOKIE]
    assert (await http.get(CALLBACK, params=query)).status_code == 200
    http.cookies.delete(COOKIE)
    assert "the sign-in was already used" in await refuse(http, query)
    http.cookies.set(PENDING_COOKIE, kept, path=CALLBACK)
    assert "invalid_grant" in await refuse(http, query), "the provider takes a code once"


async def test_a_sign_in_ends_after_ten_minutes(
    http: httpx2.AsyncClient, provider: StandInProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api_client.web.pages.provider_sign_in.PENDING_SECONDS", -1)
    answer = await http.get("/sign-in/start")
    cookie = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
    http.cookies.set(PENDING_COOKIE, cookie, path=CALLBACK)
    assert "more than ten minutes" in await refuse(http, provider.sign_in(answer.headers["location"]))


@pytest.mark.parametrize("issuer", ["https://evil.example", "", None])
async def test_another_providers_answer_is_refused_before_its_code_is_used(
    http: httpx2.AsyncClient, provider: StandInProvider, issuer: str | None
) -> None:
    query = await begin(http, provider)
    query = {**query, "iss": issuer} if issuer is not None else {"code": query["code"], "state": query["state"]}
    assert "another provider" in await refuse(http, query)
    assert not [asked for asked in provider.asked if asked.path == "/token"]


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.test/", "//evil.test", "///evil.test", "/\\evil.test", "\\\\evil.test", "javascript:alert(1)",
        "/sign-out", "/turns\n//evil.test", "/turns\t", "/overview@evil.test", "/turns" + "x" * 3_000, "x", "",
        "/%2f/evil.test", "http:turns", "/turns\u2028", "@evil.test",
    ],
)  # fmt: skip
async def test_a_sign_in_leads_nowhere_but_to_our_pages(
    http: httpx2.AsyncClient, provider: StandInProvider, elsewhere: str
) -> None:
    came = await http.get(CALLBACK, params=await begin(http, provider, elsewhere))
    [refresh] = Document(came.text).all("meta", **{"http-equiv": "refresh"})
    assert refresh.attributes["content"] == "0;url=/"


async def test_a_path_in_the_cookie_is_signed(http: httpx2.AsyncClient, provider: StandInProvider) -> None:
    query = await begin(http, provider)
    token, until, _ = http.cookies[PENDING_COOKIE].split(".")
    http.cookies.clear()
    http.cookies.set(PENDING_COOKIE, f"{token}.{until}.{b'/overview'.hex()}", path=CALLBACK)
    assert "another browser" in await refuse(http, query)


async def test_the_providers_refusal_and_its_absence_are_told_in_plain_words(
    http: httpx2.AsyncClient, provider: StandInProvider
) -> None:
    query = await begin(http, provider)
    said = await refuse(http, {**query, "error": "access_denied", "error_description": "<b>call 555</b>"})
    assert "The provider did not sign you in: 'access_denied'" in said
    assert "555" not in said
    query = await begin(http, provider)
    provider.down = True
    assert "the provider refused the relay" in (await refuse(http, query)).replace("The", "the")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"issuer": "https://evil.example"}, "HELIX_OIDC_ISSUER"),
        ({"token_endpoint": "http://evil.example/token"}, "token_endpoint must begin with https://"),
        ({"jwks_uri": "file:///etc/passwd"}, "jwks_uri must look like https://"),
        ({"authorization_endpoint": None}, "authorization_endpoint"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({}, "signs people in"),
    ],
)
def test_the_doctor_reads_the_discovery_document(
    settings: Settings, provider: StandInProvider, document: Claims, said: str
) -> None:
    provider.document = document
    [found] = check_sign_in(configure(settings, provider))
    assert said in found.message
    assert found.state == ("wrong" if document else "ok")


def test_the_doctor_tells_of_a_provider_that_is_not_there(settings: Settings, provider: StandInProvider) -> None:
    provider.down = True
    [found] = check_sign_in(configure(settings, provider))
    assert "503" in found.message
    [found] = check_sign_in(replace(configure(settings, provider), oidc_issuer="http://127.0.0.1:1"))
    assert "cannot be reached at http://127.0.0.1:1/.well-known" in found.message
    assert not [*check_sign_in(settings)]


async def test_people_sign_in_while_the_store_takes_no_writes(
    settings: Settings, provider: StandInProvider, tmp_path: Path
) -> None:
    with EmbeddedBroker(tmp_path / "b") as broker:
        used = configure(replace(settings, broker_url=broker.url, store_url=broker.url), provider)
        async with web(used, host="203.0.113.7") as http:
            await http.get(CALLBACK, params=await begin(http, provider))
            http.cookies.clear()
            memory_full(broker)
            await http.get(CALLBACK, params=await begin(http, provider))
            assert "OOM" in (await http.get("/overview")).text
            prefix, who, until, seal = http.cookies[COOKIE].split(".")
            person = SignedInPerson.from_text(who)
            assert person is not None
            better = replace(person, subject="root").to_text()
            http.cookies.clear()
            http.cookies.set(COOKIE, f"{prefix}.{better}.{until}.{seal}")
            assert (await http.get("/overview")).headers["location"].startswith("/sign-in")


async def test_a_provider_alone_closes_the_pages_and_the_api_to_who_has_no_sign_in(
    settings: Settings, http: httpx2.AsyncClient
) -> None:
    assert (await http.get("/v1/models")).status_code == 401
    assert (await http.get("/turns")).headers["location"].startswith("/sign-in")
    async with web(settings) as keyless:
        for path in ("/sign-in/start", CALLBACK, "/sign-in/out"):
            assert (await keyless.get(path)).status_code == 404


def test_all_faults_of_the_settings_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x\n")
    whole = {
        "HELIX_OIDC_ISSUER": "https://login.example",
        "HELIX_OIDC_CLIENT_ID": "relay",
        "HELIX_OIDC_CLIENT_SECRET_FILE": str(secret),
        "HELIX_OIDC_RIGHTS": "cn=admins=operator,staff=user",
        "HELIX_PUBLIC_URL": "https://turns.example",
    }
    read = load_settings(whole)
    assert (read.oidc_client_secret, read.oidc_rights) == ("x", {"cn=admins": "operator", "staff": "user"})
    monkeypatch.setattr("api_client.setting_checks.sign_in._PACKAGES", ("no_such_package",))
    assert "sign-in needs no_such_package" in next(find_setting_faults(read)).message
    wrong = {
        "HELIX_OIDC_ISSUER": "http://login.example",
        "HELIX_OIDC_RIGHTS": "admins",
        "HELIX_OIDC_CLIENT_SECRET_FILE": str(tmp_path / "none"),
        "HELIX_OIDC_CLIENT_ID": "relay",
    }
    for environ, count in (
        (wrong, 3),
        ({"HELIX_OIDC_CLIENT_ID": "x"}, 1),
        ({**whole, "HELIX_PUBLIC_URL": "http://turns.example"}, 1),
    ):
        with pytest.raises(SettingsError) as caught:
            load_settings(environ)
        assert len(caught.value.problems) == count, caught.value.problems
    with pytest.raises(SettingsError) as caught:
        load_settings({"HELIX_OIDC_ISSUER": "https://login.example"})
    assert len(caught.value.problems) == 3


def test_a_person_is_told_from_a_keys_hash() -> None:
    person = SignedInPerson(issuer="i", client="c", subject="s", owner="o", groups=("admins",))
    assert SignedInPerson.from_text(person.to_text()) == person
    assert "." not in person.to_text()
    assert SignedInPerson.from_text("0" * 64) is None
