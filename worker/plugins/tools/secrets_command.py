"""Implement ``turns secrets``: credentials of MCP servers, encrypted in the store."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click

from api_client.client import TurnsClient
from api_client.contract.owners import parse_owner
from api_client.contract.settings import load_settings
from api_client.secrets.cipher import UnreadableSecret, add_key
from api_client.secrets.secret_store import SecretId, SecretStore, StoredSecret
from worker.cli import NO
from worker.cli.output import count_noun, fit_line, format_time, json_option, write_list, write_result
from worker.cli.store_access import run_with_client
from worker.cli.text_input import read_text
from worker.plugins.tools.credentials import Credential
from worker.plugins.tools.sign_in_command import sign_in

_OWNER = click.option("--owner", default="", help="Whose secret it is: a key's name or an owner; default: everybody's.")


@click.group()
def secrets() -> None:
    """Manage credentials of MCP servers. Blocks [tools.NAME] refer to them by `credentials`.

    They are encrypted with the keys in HELIX_SECRETS_KEY_FILE. An owner's own secret is preferred to everybody's.
    """


@secrets.command("set", epilog="Example: turns secrets set jira --bearer --owner ada")
@click.argument("name")
@_OWNER
@click.option("--bearer", is_flag=True, help="The value is a token for the header Authorization.")
@click.option("--header", default="", metavar="NAME", help="The value is this HTTP header.")
@click.option("--environment", default="", metavar="NAME", help="The value is this variable of the server's command.")
@click.option("--client-secret", is_flag=True, help="The value is the secret of an OAuth client.")
@click.option("--file", default="", help="Read the value from a file, - for standard input; else you are asked.")
@json_option
def set_secret(
    name: str, owner: str, bearer: bool, header: str, environment: str, client_secret: bool, file: str, as_json: bool
) -> None:
    """Store a secret, replacing an earlier one. You are asked for the value, which is never an argument.

    Without the options that name its kind, the value is JSON: {"headers": {...}, "environment": {...}}.
    """
    if sum(map(bool, (bearer, header, environment, client_secret))) > 1:
        raise click.UsageError("give one of --bearer, --header, --environment and --client-secret")
    text = _read_value(name, file).strip("\r\n")
    try:
        value = {"client_secret": text} if client_secret else _shape_value(text, bearer, header, environment)
        Credential.from_value(value)
    except ValueError as error:
        raise click.UsageError(f"the value of {name}: {error}") from None
    secret_id = SecretId(name=name, owner=parse_owner(owner))
    _run(lambda store: store.write_secret(secret_id, value))
    write_result(as_json, {"name": name, "owner": secret_id.owner}, f"stored {_describe_secret_id(secret_id)}")


def _read_value(name: str, file: str) -> str:
    if not file and sys.stdin.isatty():
        return str(click.prompt(f"Value of {name}", hide_input=True))
    return read_text(file or "-")


def _shape_value(text: str, bearer: bool, header: str, environment: str) -> Any:
    """Return the JSON object to store for a secret. Raises ``ValueError`` without revealing the secret."""
    if not text:
        raise ValueError("is empty")
    if bearer or header:
        return {"headers": {header or "Authorization": f"Bearer {text}" if bearer else text}}
    if environment:
        return {"environment": {environment: text}}
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError("is not JSON; for a plain text, give --bearer, --header or --environment") from None


@secrets.command("list", epilog="Example: turns secrets list")
@json_option
def list_secrets(as_json: bool) -> None:
    """List secrets: name, owner, kind and time, never a value. Exit code 2 if one is unreadable."""
    found = _run(lambda store: store.list_secrets())
    data = [_describe_secret(each) for each in found]
    write_list(as_json, data, "no secrets", ("name", "owner", "has", "set"), map(_to_row, data))
    if lost := [each.secret_id for each in found if each.value is None]:
        path = load_settings().secrets_key_path
        raise UnreadableSecret([f"HELIX_SECRETS_KEY_FILE: no key in {path} decrypts {_describe_secret_id(lost[0])}"])


def _describe_secret(secret: StoredSecret) -> dict[str, Any]:
    has = "unreadable" if secret.value is None else ", ".join(_name_parts(secret.value))
    return {
        "name": secret.secret_id.name,
        "owner": secret.secret_id.owner,
        "server": secret.secret_id.server,
        "has": has,
        "set_at": secret.set_at,
    }


def _name_parts(value: Mapping[str, Any]) -> list[str]:
    kinds = {"headers": "header", "environment": "variable"}
    names = [f"{word} {name}" for part, word in kinds.items() for name in value.get(part, {})]
    return names + [said for part, said in _WHOLE.items() if part in value]


_WHOLE = {"client_secret": "client secret", "access_token": "OAuth token"}


def _to_row(data: Mapping[str, Any]) -> tuple[str, ...]:
    has = f"{data['has']} for {data['server']}" if data["server"] else data["has"]
    return data["name"], data["owner"] or "everybody", fit_line(has), format_time(data["set_at"])


@secrets.command("delete", epilog="Example: turns secrets delete jira --owner ada")
@click.argument("name")
@_OWNER
@json_option
def delete_secret(name: str, owner: str, as_json: bool) -> None:
    """Delete a secret, and OAuth tokens that were obtained with it. Exit code 1 if there is none.

    No call has it any more. A server's process that was started with it ends with its worker.
    """
    secret_id = SecretId(name=name, owner=parse_owner(owner))
    deleted = _run(lambda store: store.delete_secret(secret_id.name, secret_id.owner))
    said = f"{'deleted' if deleted else 'there is no secret'} {_describe_secret_id(secret_id)}"
    write_result(as_json, {"name": name, "owner": secret_id.owner, "deleted": deleted}, said)
    if not deleted:
        raise click.exceptions.Exit(NO)


@secrets.command("new-key", epilog="Example: turns secrets new-key")
@json_option
def new_key(as_json: bool) -> None:
    """Add a new key as the first line of HELIX_SECRETS_KEY_FILE. Earlier keys stay, and still decrypt."""
    settings = load_settings()
    count = add_key(settings)
    path = str(settings.secrets_key_path)
    said = f"{path} has {count_noun(count, 'key')}; keep a copy, because backups do not contain it"
    write_result(as_json, {"file": path, "keys": count}, said)
    if count > 1:
        click.echo("copy the file to all machines with workers, then `turns secrets rotate`", err=True)


@secrets.command(epilog="Example: turns secrets rotate")
@json_option
def rotate(as_json: bool) -> None:
    """Encrypt all secrets again with the first key of the file. Its other lines can then be removed."""
    count = _run(lambda store: store.encrypt_all_again())
    write_result(as_json, {"encrypted": count}, f"{count_noun(count, 'secret')} encrypted with the first key")


secrets.add_command(sign_in)


def _run(action: Callable[[SecretStore], Awaitable[Any]]) -> Any:
    async def act(client: TurnsClient) -> Any:
        return await action(SecretStore(client.store))

    return run_with_client(act)


def _describe_secret_id(secret_id: SecretId) -> str:
    return (
        f"{fit_line(secret_id.name)} of {secret_id.owner}"
        if secret_id.owner
        else f"{fit_line(secret_id.name)} of everybody"
    )
