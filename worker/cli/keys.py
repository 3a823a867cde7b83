"""Implement ``turns keys``: manage the relay's API keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from api_client import api_keys as ring
from api_client.contract.settings import load_settings
from worker.cli.output import fit_line, json_option, write_json, write_result, write_table

#: Note about the first key, printed on stderr; the key alone goes to stdout.
_FIRST = """\
from now on every caller needs a key, on this machine too; for one more: turns keys create NAME
(--right operator for the overview and everybody's turns, --right metrics for Prometheus)"""
_LAST = """\
no key is active any more, so the relay answers nobody; make one with `turns keys create NAME`, or
remove {file} to serve this machine without keys again"""


@click.group()
def keys() -> None:
    """Manage the relay's API keys.

    Kept as hashes in HELIX_KEYS_FILE (default: HELIX_ROOT/.helix/keys.json); a running relay sees changes at once. Keys
    in HELIX_API_KEYS and HELIX_FORWARDING_KEYS are valid too.
    """


@keys.command(epilog="Example: turns keys create webui --forwards-users")
@click.argument("name")
@click.option("--owner", help="Whose turns it sees; keys of one owner see the same. The key's name when left out.")
@click.option(
    "--right",
    type=click.Choice(ring.RIGHTS),
    default="user",
    help="operator: sees and cancels all turns. metrics: reads figures over all.",
)
@click.option("--models", default="", metavar="MODEL,...", help="The models it may use; all when left out.")
@click.option(
    "--per-minute",
    type=click.IntRange(0, 10**6),
    default=0,
    help="Turns that an owner may submit per minute, and at once; default: 60.",
)
@click.option("--weight", type=click.IntRange(1, 100), default=1, help="Share of slots relative to a key of weight 1.")
@click.option("--at-once", type=click.IntRange(0, 10**6), default=0, help="Most agents at once; 0: no limit.")
@click.option("--background", is_flag=True, help="Its turns never start before turns that somebody waits for.")
@click.option("--forwards-users", is_flag=True, help="For Open WebUI: each request names its user, who is the owner.")
@json_option
def create(
    name: str,
    owner: str | None,
    right: str,
    models: str,
    per_minute: int,
    forwards_users: bool,
    as_json: bool,
    **share: Any,
) -> None:
    """Create an API key and show it once."""
    settings = load_settings()
    allowed = tuple(filter(None, (model.strip() for model in models.split(","))))
    unknown = [model for model in allowed if model not in settings.models]
    if unknown:
        offered = ", ".join(settings.models)
        raise click.UsageError(f"no model {fit_line(unknown[0])!r} in HELIX_MODELS; there is: {offered}")
    if not name.isprintable() or not name or " " in name:
        raise click.UsageError("the name must be printable, without blanks, and not empty")
    key = ring.ApiKey(
        name=name,
        hash="",
        owner=owner or name,
        right=right,
        models=allowed,
        per_minute=per_minute,
        forwards_users=forwards_users,
        **share,
    )
    first = not (settings.keys_path.exists() or settings.api_keys or settings.forwarding_keys)
    if forwards_users and right == "metrics":
        raise click.UsageError("--forwards-users and --right metrics: each forwarded user would read figures over all")
    if problem := ring.explain_contradiction(key):
        raise click.UsageError(problem)
    secret = ring.add_key(settings.keys_path, key)
    if as_json:
        write_json({"name": name, "key": secret, "file": str(settings.keys_path)})
    else:
        click.echo(secret)
        click.echo(f"kept as a hash in {settings.keys_path}; this is the only time it is shown", err=True)
    if first:
        click.echo(_FIRST, err=True)


@keys.command("list", epilog="Example: turns keys list")
@json_option
def list_keys(as_json: bool) -> None:
    """List the names and rights of API keys."""
    settings = load_settings()
    found = ring.read_keys(settings.keys_path)
    if as_json:
        write_json([{name: value for name, value in asdict(key).items() if name != "hash"} for key in found])
        return
    if settings.api_keys:
        click.echo(f"{len(settings.api_keys)} in HELIX_API_KEYS")
    if settings.forwarding_keys:
        click.echo(f"{len(settings.forwarding_keys)} in HELIX_FORWARDING_KEYS, which speak for several users")
    if not found:
        click.echo("no keys" if settings.keys_path.exists() else f"no keys: there is no {settings.keys_path}")
        return
    rows: list[tuple[str, ...]] = [("name", "owner", "right", "models", "a minute", "share", "made", "revoked")]
    for key in found:
        owner = f"{key.owner} and its users" if key.forwards_users else key.owner
        limit, models = str(key.per_minute or 60), ",".join(key.models) or "all"
        share = f"{key.weight or 1}" + (f", {key.at_once} at once" if key.at_once else "")
        share += ", background" if key.background else ""
        who = (fit_line(key.name), fit_line(owner), key.right, models, limit)
        rows.append((*who, share, key.created_at, key.revoked_at))
    write_table(rows)


@keys.command(epilog="Example: turns keys revoke webui")
@click.argument("name")
@json_option
def revoke(name: str, as_json: bool) -> None:
    """Revoke an API key immediately and permanently. Its owner's turns are kept."""
    settings = load_settings()
    ring.revoke_key(settings.keys_path, name)
    write_result(as_json, {"name": name, "revoked": True}, f"revoked {fit_line(name)}")
    if not (
        settings.api_keys or settings.forwarding_keys or any(k.in_force for k in ring.read_keys(settings.keys_path))
    ):
        click.echo(_LAST.format(file=settings.keys_path), err=True)
