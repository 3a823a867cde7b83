"""Commands that list nouns of operators (``api_client/nouns.py``); ``turns budgets`` and ``turns paused``."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from api_client import api_keys as ring
from api_client.api_keys import with_names
from api_client.client import TurnsClient
from api_client.contract.notices import Entry, Notice
from api_client.contract.settings import load
from api_client.nouns import BUDGETS, GIVEN_UP, NOTICES, PAUSES, Column, Noun, Sight
from api_client.pauses import clock_time
from worker.cli import NO
from worker.cli.terminal import (
    json_option,
    moment,
    number_of,
    one_line,
    whoami,
    with_client,
    write_json,
    write_said,
    write_table,
)
from worker.notices import NotSent, deliver, shown, targets


def list_of(noun: Noun[Any], name: str, about: str, *, under: str = "") -> click.Command:
    """The command that lists a noun. ``under``: its JSON is an object, with the rows under this name."""

    @json_option
    def listed(as_json: bool) -> None:
        rows, facts = with_client(lambda client: noun.read(client, -1))
        data = [row.to_dict() for row in rows]
        if as_json:
            write_json({**facts, under: data} if under else data)
        elif not rows:
            click.echo(noun.none)
        else:
            write_rows(noun.columns, rows)
            if under:
                click.echo(noun.caption(facts))

    return click.command(name, help=about)(listed)


def write_rows(columns: Sequence[Column[Any]], rows: Sequence[Any], now: float = 0.0) -> None:
    """Rows as a table; ``now`` in seconds since the epoch, 0 for this moment."""
    sight = Sight(now or time.time(), with_names(load().keys_path))
    cells = [tuple(_cell(column, row, sight) for column in columns) for row in rows]
    write_table([tuple(column.head for column in columns), *cells])


def _cell(column: Column[Any], row: Any, sight: Sight) -> str:
    value = column.cell(row, sight)
    if column.kind == "when":
        return moment(value)
    return clock_time(value, sight.now) if column.kind == "clock" else one_line(value, column.most)


budgets = list_of(
    BUDGETS,
    "budgets",
    """Show each budget of HELIX_BUDGETS, what was spent of it today, and when it resets; the most used first.

    A budget that is spent, or set aside for turns at work, refuses new turns: 429 budget_exceeded.
    """,
)
paused = list_of(
    PAUSES,
    "paused",
    "Show the pauses and which breakers are open: why, since when, until when, by whom.",
    under="pauses",
)


# ``turns keys``: who may use the relay.

#: What the first key changes. The key that was made is on standard output, alone.
_FIRST = """\
from now on every caller needs a key, on this machine too; for one more: turns keys create NAME
(--right operator for the overview and everybody's turns, --right metrics for Prometheus)"""
_LAST = """\
no key is active any more, so the relay answers nobody; make one with `turns keys create NAME`, or
remove {file} to serve this machine without keys again"""


@click.group()
def keys() -> None:
    """API keys of the relay.

    Kept as hashes in HELIX_KEYS_FILE (else HELIX_ROOT/.helix/keys.json); a running relay sees every change at once.
    Keys in HELIX_API_KEYS and HELIX_FORWARDING_KEYS work beside them.
    """


@keys.command()
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
    help="Turns an owner may submit a minute, and at once; 60 if none.",
)
@click.option("--weight", type=click.IntRange(1, 100), default=1, help="Slots it gets beside a key of weight 1.")
@click.option("--at-once", type=click.IntRange(0, 10**6), default=0, help="Its agents at once; 0: no limit.")
@click.option("--background", is_flag=True, help="None of its turns goes before one that somebody waits for.")
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
    """Make a key and show it, once."""
    settings = load()
    allowed = tuple(filter(None, (model.strip() for model in models.split(","))))
    unknown = [model for model in allowed if model not in settings.models]
    if unknown:
        offered = ", ".join(settings.models)
        raise click.UsageError(f"no model {one_line(unknown[0])!r} in HELIX_MODELS; there is: {offered}")
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
    if problem := ring.contradiction(key):
        raise click.UsageError(problem)
    secret = ring.add(settings.keys_path, key)
    if as_json:
        write_json({"name": name, "key": secret, "file": str(settings.keys_path)})
    else:
        click.echo(secret)
        click.echo(f"kept as a hash in {settings.keys_path}; this is the only time it is shown", err=True)
    if first:
        click.echo(_FIRST, err=True)


@keys.command("list")
@json_option
def list_keys(as_json: bool) -> None:
    """List the keys, without the keys themselves."""
    settings = load()
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
        limit, models = str(key.per_minute or "-"), ",".join(key.models) or "all"
        share = f"{key.weight or 1}" + (f", {key.at_once} at once" if key.at_once else "")
        share += ", background" if key.background else ""
        who = (one_line(key.name), one_line(owner), key.right, models, limit)
        rows.append((*who, share, key.created_at, key.revoked_at))
    write_table(rows)


@keys.command()
@click.argument("name")
@json_option
def revoke(name: str, as_json: bool) -> None:
    """Take a key out of force, at once and for good. Its owner's turns stay."""
    settings = load()
    ring.revoke(settings.keys_path, name)
    write_said(as_json, {"name": name, "revoked": True}, f"revoked {one_line(name)}")
    if not (
        settings.api_keys or settings.forwarding_keys or any(k.in_force for k in ring.read_keys(settings.keys_path))
    ):
        click.echo(_LAST.format(file=settings.keys_path), err=True)


# ``turns notices``: calls for help, what is waiting to be sent, what was given up (docs/webhooks.md).


@click.group()
def notices() -> None:
    """Calls for help, sent to HELIX_WEBHOOK_URLS and HELIX_NOTICE_COMMAND.

    A notice is tried for a day, with growing pauses; then it is given up, into the list of `turns notices dead`.
    """


notices.add_command(list_of(NOTICES, "list", "List what is waiting to be sent, the next one first."))
notices.add_command(list_of(GIVEN_UP, "dead", "List what was given up, the newest first."))


def _acting(action: str, past: str, said: str, about: str) -> None:
    """Add a command about notices that were given up."""

    @click.argument("notice_ids", metavar="[NOTICE]...", nargs=-1)
    @click.option("--all", "everything", is_flag=True, help="All that were given up.")
    @json_option
    def command(notice_ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
        if bool(notice_ids) == everything:
            raise click.UsageError("name notices, or --all (see `turns notices dead`)")

        async def act(client: TurnsClient) -> list[str]:
            on = client.notices.send_again if action == "resend" else client.notices.drop
            return await on(notice_ids, by=whoami())

        chosen = with_client(act)
        write_said(as_json, {past: chosen}, f"{number_of(len(chosen), 'notice')} {said}")

    notices.add_command(click.command(action, help=about)(command))


_acting(
    "resend",
    "resent",
    "will be sent again",
    "Send notices that were given up again, for another day. They keep their ids.",
)
_acting("drop", "dropped", "dropped", "Take notices off the list of those that were given up.")


@notices.command()
@json_option
def test(as_json: bool) -> None:
    """Send one notice to every target, from here and now. Exit code 1 when one does not take it."""
    settings = load()
    if not targets(settings):
        raise click.UsageError("nobody is called: set HELIX_WEBHOOK_URLS or HELIX_NOTICE_COMMAND")
    notice = Notice(kind="notice.test", subject=secrets.token_hex(8), at=time.time(), data={"text": "It works."})
    entry = Entry(notice_id=notice.notice_id, body=notice.body(), put_at=notice.at)
    said: dict[str, str] = {}
    for target in targets(settings):
        try:
            deliver(settings, target, entry)
            said[shown(target)] = ""
        except NotSent as error:
            said[shown(target)] = str(error)
    words = "\n".join(f"{target}: {one_line(problem, 300) or 'taken'}" for target, problem in said.items())
    write_said(as_json, [{"target": target, "error": problem} for target, problem in said.items()], words)
    if any(said.values()):
        raise click.exceptions.Exit(NO)


@notices.command(short_help="Make a key for HELIX_WEBHOOK_SECRET.")
def secret() -> None:
    """Make a key for HELIX_WEBHOOK_SECRET, and for the receiver (OPENAI_WEBHOOK_SECRET of OpenAI's SDK)."""
    click.echo("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())
