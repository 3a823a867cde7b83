"""Secrets of MCP servers: commands, key file, rotation, and what no stored thing contains."""

import importlib.util
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from api_client.contract.errors import SettingsError
from api_client.contract.settings import Settings
from api_client.secrets.cipher import SecretCipher, add_key
from api_client.secrets.secret_store import SecretId, SecretStore
from tests.installation import Installation, environ_of, turns
from tests.tools.stored_secrets import CANARY, run_secrets, store_secret

JIRA = SecretId(name="jira")


def test_a_secret_is_stored_from_a_file_listed_without_its_value_and_deleted(
    installation: Installation, tmp_path: Path
) -> None:
    root = installation.settings.root
    assert "1 key" in run_secrets(installation, "new-key").stdout
    assert (root / ".helix" / "secrets.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "token").write_text(f"{CANARY}\n")
    stored = run_secrets(installation, "set", "jira", "--bearer", "--file", str(tmp_path / "token"))
    assert (stored.returncode, stored.stdout) == (0, "stored jira of everybody\n")
    store_secret(installation, "jira", {"environment": {"TOKEN": CANARY}}, owner="ada")
    listed = run_secrets(installation, "list").stdout
    assert "header Authorization" in listed
    assert "variable TOKEN" in listed
    assert CANARY not in listed + run_secrets(installation, "list", "--json").stdout
    assert run_secrets(installation, "delete", "jira").returncode == 0
    again = run_secrets(installation, "delete", "jira")
    assert (again.returncode, again.stdout) == (1, "there is no secret jira of everybody\n")
    left = json.loads(run_secrets(installation, "list", "--json").stdout)
    assert [each["has"] for each in left] == ["variable TOKEN"]


def test_the_prompt_for_a_value_does_not_show_it(installation: Installation) -> None:
    run_secrets(installation, "new-key")
    ours, theirs = pty.openpty()
    command, environ = turns("secrets", "set", "jira", "--bearer"), environ_of(installation.settings)
    started = subprocess.Popen(command, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = os.read(ours, 1_000)
    os.write(ours, f"{CANARY}\n".encode())
    while b"stored jira" not in shown:
        shown += os.read(ours, 1_000)
    assert started.wait() == 0
    assert CANARY.encode() not in shown


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("no JSON secret-canary", ()), ("[]", ()), ("{}", ()), ('{"header": {"a": "secret-canary"}}', ()),
        ('{"headers": {"a": 1}}', ()), ('{"headers": "secret-canary"}', ()), ("", ("--bearer",)),
        ("secret-canary\nsecond", ("--header", "X")), ("a", ("--bearer", "--header", "X")),
        (" secret-canary ", ("--bearer",)), ("secret-canary", ("--header", "X Y: z")), ('{"headers": {}}', ()),
        ('{"headers": {"X": "secret-canary\\n"}}', ()), ('{"headers": {"X": "secret-canary-\\u00fc"}}', ()),
        ("secret-canary", ("--environment", "A=B")), ("secret-canary\0", ("--environment", "A")),
        ('{"environment": {"": "secret-canary"}}', ()),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_without_being_shown(
    installation: Installation, text: str, options: tuple[str, ...]
) -> None:
    run_secrets(installation, "new-key")
    refused = run_secrets(installation, "set", "jira", *options, text=text)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "secret-canary" not in refused.stderr
    assert run_secrets(installation, "list").stdout == "no secrets\n"


def test_a_new_key_without_the_package_for_it_is_one_line_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(root=tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(SettingsError, match="secrets need the package cryptography"):
        add_key(settings)
    assert not settings.secrets_key_path.exists()


def test_new_keys_made_at_once_are_all_in_the_file(installation: Installation) -> None:
    run_secrets(installation, "new-key")
    command, environ = turns("secrets", "new-key"), environ_of(installation.settings)
    for started in [subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) for _ in range(4)]:
        assert started.wait() == 0
    assert len(set(installation.settings.secrets_key_path.read_text().split())) == 5


@pytest.mark.parametrize("earlier", ["# kept by ada\n{key}\n", "{key}\n" * 2_000, "no key at all\n"])
def test_a_new_key_costs_nothing_of_a_file_that_is_not_a_file_of_keys(installation: Installation, earlier: str) -> None:
    run_secrets(installation, "new-key")
    path = installation.settings.secrets_key_path
    text = earlier.format(key=path.read_text().strip())
    path.write_text(text)
    refused = run_secrets(installation, "new-key")
    assert (refused.returncode, path.read_text() == text) == (2, True)
    assert "move the file away" in refused.stderr


def test_a_new_key_is_written_where_a_link_leads(installation: Installation, tmp_path: Path) -> None:
    run_secrets(installation, "new-key")
    path, shared = installation.settings.secrets_key_path, tmp_path / "shared.key"
    path.rename(shared)
    path.symlink_to(shared)
    assert "2 keys" in run_secrets(installation, "new-key").stdout
    assert path.is_symlink()
    assert len(shared.read_text().split()) == 2


def test_without_its_key_nothing_is_stored_and_the_error_is_one_line_with_the_remedy(
    installation: Installation,
) -> None:
    key = installation.settings.secrets_key_path
    missing = run_secrets(installation, "set", "jira", "--bearer", text=CANARY)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "turns secrets new-key" in missing.stderr
    run_secrets(installation, "new-key")
    store_secret(installation, "jira", {"headers": {"Authorization": CANARY}})
    kept = key.read_bytes()
    for wrong, said in ((b"no key", "is not a key file"), (b"", "is empty; `turns secrets new-key`")):
        key.write_bytes(wrong)
        refused = run_secrets(installation, "list")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert said in refused.stderr
    key.unlink()
    run_secrets(installation, "new-key")
    other = run_secrets(installation, "list")
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "unreadable" in other.stdout
    assert "no key in" in other.stderr
    found = installation.run("doctor", "--json").stdout
    assert [each["state"] for each in json.loads(found)["findings"] if each["check"] == "secrets"] == ["wrong"]
    key.write_bytes(kept)
    key.chmod(0o644)
    assert "chmod 600" in run_secrets(installation, "list").stderr
    key.chmod(0o600)
    assert run_secrets(installation, "list").returncode == 0


async def test_a_new_key_encrypts_and_the_earlier_one_still_decrypts_until_all_are_encrypted_again(
    installation: Installation,
) -> None:
    run_secrets(installation, "new-key")
    store, key = SecretStore(installation.client.store), installation.settings.secrets_key_path
    await store.write_secret(JIRA, {"headers": {"a": CANARY}})
    old = key.read_text()
    assert run_secrets(installation, "new-key").returncode == 0
    new, rest = key.read_text().splitlines()
    assert rest == old.strip()
    for _ in range(2):  # again, as after an interruption
        assert run_secrets(installation, "rotate").stdout == "1 secret encrypted with the first key\n"
    key.write_text(new)
    found = await store.read_secret(JIRA)
    assert found is not None
    assert found.value == {"headers": {"a": CANARY}}
    key.write_text(old)
    with pytest.raises(SettingsError, match="no key in"):
        await store.read_secret(JIRA)
    assert run_secrets(installation, "rotate").returncode == 2
    key.write_text(new)
    assert await store.read_secret(JIRA), "what nobody could read is still there"


async def test_a_secret_that_somebody_moved_to_another_owner_is_not_used(installation: Installation) -> None:
    run_secrets(installation, "new-key")
    store = SecretStore(installation.client.store)
    await store.write_secret(SecretId(name="jira", owner="a"), {"headers": {"a": CANARY}})
    name = f"{installation.keys.prefix}secrets"
    moved: Any = installation.store.hget(name, "jira/a")
    installation.store.hset(name, "jira/b", moved)
    with pytest.raises(SettingsError, match="was stored for jira/a"):
        await store.read_secret(SecretId(name="jira", owner="b"), JIRA)


async def test_a_secret_that_is_set_while_all_are_encrypted_again_is_the_one_that_stays(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_secrets(installation, "new-key")
    store, cipher = SecretStore(installation.client.store), SecretCipher(installation.settings)
    await store.write_secret(JIRA, {"headers": {"a": "earlier"}})
    later = cipher.encrypt(JIRA.field, {"headers": {"a": "later"}})

    def set_meanwhile(_: SecretCipher, token: bytes) -> bytes:
        installation.store.hset(f"{installation.keys.prefix}secrets", JIRA.field, later)
        return token

    monkeypatch.setattr(SecretCipher, "encrypt_again", set_meanwhile)
    await store.encrypt_all_again()
    found = await store.read_secret(JIRA)
    assert found is not None
    assert found.value == {"headers": {"a": "later"}}
