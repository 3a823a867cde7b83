"""Credentials of MCP servers: their form, what is masked of them, and whose credential an owner's server gets."""

from typing import Any

import pytest

from api_client.contract.errors import SettingsError
from api_client.secrets.secret_store import SecretId, StoredSecret
from worker.plugins.tools.credentials import Credential, StoredCredentials


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        "canary",
        {"header": {"a": "canary"}},
        {"headers": "canary"},
        {"headers": {"a": 1}},
        {"environment": {"a": ""}},
        {"environment": {"a": ["canary"]}},
        {"client_secret": ""},
        {"client_secret": 5},
        {"headers": {"a": "canary"}, "personal": True},
    ],
)
def test_a_value_of_another_form_is_refused_without_being_shown(value: Any) -> None:
    with pytest.raises(ValueError, match=r"must") as raised:
        Credential.from_value(value)
    assert "canary" not in str(raised.value)


def test_what_is_masked_is_each_text_and_a_token_without_its_scheme_the_longest_first() -> None:
    value = {"headers": {"a": "Bearer token-1"}, "environment": {"b": "token"}, "client_secret": "secret-of-a-client"}
    found = Credential.from_value(value)
    assert found.secrets == ("secret-of-a-client", "Bearer token-1", "token-1", "token")
    assert "token" not in repr(found)
    assert Credential().secrets == ()


class Places:
    """Stored secrets by owner."""

    def __init__(self, **found: str) -> None:
        self._found = found

    async def read_secret(self, *secret_ids: SecretId) -> StoredSecret | None:
        for secret_id in secret_ids:
            if token := self._found.get(secret_id.owner or "all"):
                return StoredSecret(secret_id=secret_id, value={"headers": {"x": token}}, set_at=0)
        return None


@pytest.mark.parametrize(
    ("stored", "owner", "token", "personal"),
    [
        ({"ada": "hers", "all": "all"}, "ada", "hers", True),
        ({"ada": "hers", "all": "all"}, "eve", "all", False),
        ({"all": "all"}, "ada", "all", False),
        ({"all": "all"}, "", "all", False),
        ({"ada": "hers"}, "eve", "", False),
        ({"ada": "hers"}, "", "", False),
    ],
)
async def test_an_owner_gets_an_own_credential_before_everybodys_and_nobody_elses(
    stored: dict[str, str], owner: str, token: str, personal: bool
) -> None:
    places: Any = Places(**stored)
    reading = StoredCredentials(places).read_credential("c", owner)
    if not token:
        with pytest.raises(SettingsError, match="there are no credentials 'c'"):
            await reading
        return
    found = await reading
    assert (found.headers, found.personal) == ({"x": token}, personal)
