"""Keys in a file: hashed, revocable while the relay runs, each with its owner, right, models and limit."""

import base64
import hashlib
import hmac
import json
import stat
import time
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from click.testing import CliRunner, Result

from api_client.api_keys import ApiKey, add_key, read_keys, revoke_key
from api_client.contract.errors import KeyNotFound, SettingsError
from api_client.contract.owners import owner_of_name, owner_of_user
from api_client.web.identity.signed_user import verify_user_token
from tests.unit.web.conftest import caller
from tests.unit.web.fake import TURN_ID, FakeTurns, app_with
from worker.cli.keys import keys as command

BODY: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "keys.json"


def made(path: Path, name: str = "team", **more: Any) -> dict[str, str]:
    """A new key, as the header that shows it."""
    return {
        "authorization": f"Bearer {add_key(path, ApiKey(name=name, hash='', owner=more.pop('owner', name), **more))}"
    }


def client(turns: FakeTurns, path: Path, **settings: Any) -> httpx2.AsyncClient:
    return caller(app_with(turns, keys_file=str(path), **settings), host="203.0.113.7")


async def test_a_key_opens_the_relay_until_it_is_revoked_and_nothing_is_started_anew(
    turns: FakeTurns, path: Path
) -> None:
    first = made(path)
    async with client(turns, path, api_keys=("from-the-environment",)) as http:
        later = made(path, "other")
        for headers in (first, later, {"authorization": "Bearer from-the-environment"}):
            assert (await http.get("/v1/models", headers=headers)).status_code == 200
        revoke_key(path, "team")
        assert (await http.get("/v1/models", headers=first)).status_code == 401
        assert (await http.get("/v1/models", headers=later)).status_code == 200


async def test_when_all_are_revoked_nobody_is_let_in_not_even_this_machine(turns: FakeTurns, path: Path) -> None:
    headers = made(path)
    revoke_key(path, "team")
    async with caller(app_with(turns, keys_file=str(path))) as http:
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.get("/v1/models", headers=headers)).status_code == 401


async def test_a_file_that_breaks_while_the_relay_runs_changes_nothing(turns: FakeTurns, path: Path) -> None:
    headers = made(path)
    async with client(turns, path) as http:
        path.write_text("{")
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
        assert (await http.get("/v1/models")).status_code == 401
        path.unlink()
        assert (await http.get("/v1/models", headers=headers)).status_code == 403  # loopback only, and this is not


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2, "keys": []}', '{"version": 1, "keys": [{}]}'])
def test_a_broken_file_is_a_settings_error_at_start(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(SettingsError, match="HELIX_KEYS_FILE"):
        app_with(FakeTurns(), keys_file=str(path))


async def test_keys_of_one_owner_see_the_same_turns_and_an_operator_sees_all(turns: FakeTurns, path: Path) -> None:
    turns.owner = owner_of_name("team")
    of_team = [made(path, "old", owner="team"), made(path, "new", owner="team")]
    stranger, operator = made(path, "other"), made(path, "ops", right="operator")
    async with client(turns, path) as http:
        for headers, status in [*((key, 200) for key in of_team), (stranger, 404), (operator, 200)]:
            url = f"/v1/turns/{TURN_ID}"
            assert (await http.get(url, headers=headers)).status_code == status
            assert (await http.get(f"{url}/events", headers=headers)).status_code == status
            assert (await http.get(f"/v1/responses/resp_{TURN_ID}", headers=headers)).status_code == status


async def test_a_key_sees_its_own_models_only(turns: FakeTurns, path: Path) -> None:
    headers = made(path, models=("one",))
    async with client(turns, path, models={"one": "scripted", "two": "scripted"}) as http:
        listed = (await http.get("/v1/models", headers=headers)).json()["data"]
        assert [model["id"] for model in listed] == ["one"]
        for model, status in [("one", 202), ("two", 404)]:
            assert (await http.post("/v1/turns", json={**BODY, "model": model}, headers=headers)).status_code == status
        assert (await http.get("/v1/models/two", headers=headers)).status_code == 404
        body = {**BODY, "model": "one", "escalation": {"model": "two"}}
        escalating = await http.post("/v1/turns", json=body, headers=headers)
        assert (escalating.status_code, escalating.json()["error"]["param"]) == (400, "escalation.model")


#: As long as its hash is, so that nobody warns.
SECRET = "s" * 32


def token(secret: str = SECRET, alg: str = "HS256", head: bool = False, **claims: Any) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    header = {"alg": alg, "typ": "JWT", **(claims if head else {})}
    signed = f"{part(header)}.{part({'sub': 'u1', 'exp': time.time() + 60, **claims})}"
    signature = hmac.new(secret.encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


async def test_a_forwarding_key_must_name_its_user_and_each_user_is_an_owner(turns: FakeTurns, path: Path) -> None:
    headers = made(path, forwards_users=True)
    async with client(turns, path) as http:
        for unnamed in ({}, {"x-owui-user-id": "{{USER_ID}}"}):
            answer = await http.post("/v1/turns", json=BODY, headers={**headers, **unnamed})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "user_required")
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
        for name in ("x-owui-user-id", "x-openwebui-user-id"):
            for user in ("u1", "u2"):
                await http.post("/v1/turns", json=BODY, headers={**headers, name: user})
    expected = [owner_of_user(owner_of_name("team"), user) for user in ("u1", "u2")]
    assert [request.owner for request in turns.submitted] == expected * 2


@pytest.mark.parametrize("name", ["x-owui-user-id", "x-openwebui-user-id"])
async def test_a_request_that_names_two_users_names_none(turns: FakeTurns, path: Path, name: str) -> None:
    """The user may have put the first one in, and a proxy the second."""
    headers = [*made(path, forwards_users=True).items(), (name, "u1"), (name, "u2")]
    async with client(turns, path) as http:
        answer = await http.post("/v1/turns", json=BODY, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "user_required")


async def test_a_key_that_does_not_forward_is_itself_whatever_user_it_names(turns: FakeTurns, path: Path) -> None:
    headers = made(path)
    async with client(turns, path) as http:
        await http.post("/v1/turns", json=BODY, headers={**headers, "x-openwebui-user-id": "somebody"})
    assert turns.submitted[0].owner == owner_of_name("team")


async def test_where_users_are_signed_a_plain_name_is_not_enough(turns: FakeTurns, path: Path) -> None:
    headers = made(path, forwards_users=True)
    async with client(turns, path, user_jwt_secret=SECRET) as http:
        forged = [{}, {"x-openwebui-user-jwt": token("another " * 4)}, {"x-openwebui-user-jwt": "a.b.c"}]
        for more in forged:
            answer = await http.post("/v1/turns", json=BODY, headers={**headers, "x-owui-user-id": "u1", **more})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "user_required")
        signed = {**headers, "x-openwebui-user-jwt": token()}
        assert (await http.post("/v1/turns", json=BODY, headers=signed)).status_code == 202
    assert turns.submitted[0].owner == owner_of_user(owner_of_name("team"), "u1")


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param("", id="empty"),
        pytest.param("a", id="one part"),
        pytest.param("..", id="no content"),
        pytest.param("é.é.é", id="not ascii"),
        pytest.param(token(alg="none"), id="no algorithm"),
        pytest.param(token(alg="HS512"), id="says another algorithm"),
        pytest.param(jwt.encode({"sub": "u1", "exp": 1e11}, SECRET * 2, "HS512"), id="another algorithm"),
        pytest.param(token(exp=1), id="expired"),
        pytest.param(token(exp=True), id="expiry is true"),
        pytest.param(token(exp=None), id="no expiry"),
        pytest.param(token(exp=float("inf")), id="never ends"),
        pytest.param(token(exp=1e300), id="ends after all times"),
        pytest.param(token(nbf=time.time() + 3600), id="not valid yet"),
        pytest.param(token(nbf="1"), id="its beginning is a text"),
        pytest.param(token(crit=["b64"], head=True), id="an extension we do not know"),
        pytest.param(token(sub=3), id="user is a number"),
        pytest.param(token("another " * 4), id="another secret"),
        pytest.param(token()[:-4], id="cut"),
        pytest.param(token().rpartition(".")[0] + ".", id="not signed"),
    ],
)
def test_a_token_that_is_not_right_names_nobody(bad: str) -> None:
    assert verify_user_token(bad, SECRET) == verify_user_token(bad, SECRET * 2) == ""
    assert verify_user_token(token(), SECRET) == "u1"


async def test_limits_of_a_conversation_are_settings(turns: FakeTurns) -> None:
    strict: dict[str, Any] = {"max_messages": 2, "max_message_chars": 5}
    bad = {
        "too_many_messages": [{"role": "user", "content": "a"}] * 3,
        "content_too_long": [{"role": "user", "content": "123456"}],
        "invalid_value": [{"role": "critic", "content": "a"}, {"role": "user", "content": "a"}],
    }
    async with caller(app_with(turns, **strict)) as http:
        for code, messages in bad.items():
            answer = await http.post("/v1/turns", json={"model": "scripted", "messages": messages})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


async def test_an_answer_that_was_delivered_may_come_back_in_the_history(turns: FakeTurns) -> None:
    """An answer has 2 MiB at most (`worker/files/workspace.py`), one message of a user fewer characters."""
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b" * 2 * 2**20}]
    async with caller(app_with(turns)) as http:
        messages = [*history, {"role": "user", "content": "And now?"}]
        answer = await http.post("/v1/turns", json={"model": "scripted", "messages": messages})
    assert answer.status_code == 202


def run(path: Path, *arguments: str) -> Result:
    environ = {"HELIX_KEYS_FILE": str(path), "HELIX_ROOT": str(path.parents[1]), "REDIS_URL": ""}
    return CliRunner(env=environ).invoke(command, list(arguments))


def test_a_key_without_its_own_limit_is_listed_with_the_limit_that_holds(path: Path) -> None:
    run(path, "create", "plain")
    [line] = [line for line in run(path, "list").output.splitlines() if line.startswith("plain")]
    assert " 60 " in line


def test_the_command_makes_lists_and_revokes_and_the_file_holds_no_key(path: Path) -> None:
    made = run(path, "create", "team", "--right", "operator", "--per-minute", "5", "--json")
    key = json.loads(made.stdout)["key"]
    assert key not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [shown] = json.loads(run(path, "list", "--json").output)
    assert (shown["name"], shown["right"], shown["per_minute"]) == ("team", "operator", 5)
    assert "hash" not in shown
    assert "team" in run(path, "list").output
    assert isinstance(run(path, "create", "team").exception, SettingsError)  # the name is taken
    assert run(path, "revoke", "team").exit_code == 0
    assert isinstance(run(path, "revoke", "team").exception, KeyNotFound)
    assert run(path, "create", "team").exit_code == 0  # a revoked key's name is free again
    assert [found.in_force for found in read_keys(path)] == [False, True]


def test_the_first_key_says_what_changes_and_the_last_one_revoked_says_the_way_back(path: Path) -> None:
    first, second = run(path, "create", "webui", "--forwards-users"), run(path, "create", "me")
    assert "from now on every caller needs a key" in first.stderr
    assert "for one more: turns keys create NAME" in first.stderr
    assert first.stdout.startswith(ring_prefix := "helix-")
    assert first.stdout.count("\n") == 1
    assert (second.stdout.startswith(ring_prefix), "from now on" in second.stderr) == (True, False)
    assert "no key is active" not in run(path, "revoke", "webui").stderr
    last = run(path, "revoke", "me")
    assert "no key is active any more" in last.stderr
    assert f"remove {path}" in last.stderr


def test_an_operators_key_cannot_speak_for_users(path: Path) -> None:
    """CVE class "low user to admin": every user forwarded by such a key was an operator."""
    refused = run(path, "create", "x", "--right", "operator", "--forwards-users")
    assert refused.exit_code == 2
    assert "cannot speak for users" in refused.output
    assert not path.exists()


def test_a_key_that_reads_figures_over_all_is_not_made_for_forwarded_users(path: Path) -> None:
    refused = run(path, "create", "x", "--right", "metrics", "--forwards-users")
    assert refused.exit_code == 2
    assert "each forwarded user would read figures over all" in refused.output
    assert not path.exists()


def test_a_file_with_such_a_key_is_refused_by_the_relay_and_the_key_can_be_revoked(path: Path) -> None:
    made(path, "both", forwards_users=True)
    file = json.loads(path.read_text())
    file["keys"][0]["right"] = "operator"
    path.write_text(json.dumps(file))
    with pytest.raises(SettingsError, match="key 'both': an operator's key cannot speak for users"):
        app_with(FakeTurns(), keys_file=str(path))
    assert run(path, "revoke", "both").exit_code == 0
    app_with(FakeTurns(), keys_file=str(path))


async def test_keys_of_the_settings_can_speak_for_users_too(turns: FakeTurns, path: Path) -> None:
    key = {"authorization": "Bearer webui"}
    async with client(turns, path, forwarding_keys=("webui",), api_keys=("mine",)) as http:
        assert (await http.get("/v1/models", headers=key)).status_code == 200
        unnamed = await http.post("/v1/turns", json=BODY, headers=key)
        assert (unnamed.status_code, unnamed.json()["error"]["code"]) == (403, "user_required")
        for user in ("u1", "u2"):
            assert (await http.post("/v1/turns", json=BODY, headers={**key, "x-owui-user-id": user})).status_code == 202
    first, second = (request.owner for request in turns.submitted)
    assert first != second


def test_the_command_refuses_what_cannot_work(path: Path) -> None:
    assert run(path, "create", "a", "--models", "gpt-9").exit_code == 2
    assert run(path, "create", " ").exit_code == 2
    assert run(path, "create", "a", "--per-minute", "-1").exit_code == 2
    assert not path.exists()
