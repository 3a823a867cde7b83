"""The options that say which turns are meant: the same for `turns list`, `cancel`, `replay` and `drop`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import click

from api_client.contract.values.owners import owner_named
from api_client.index.search import STATUSES, Search
from worker.cli.asking import span
from worker.cli.turns.turn_id import offered_models

Command = Callable[..., Any]


def filter_options(statuses: Iterable[str] = STATUSES) -> Callable[[Command], Command]:
    """Options of a command whose function takes them as ``**filters``, for ``search_of``.

    ``statuses`` are the states and outcomes that may be asked for; none: there is no such option.
    """
    known = list(statuses)
    options = [
        click.option("--model", default="", help="Only of this model.", shell_complete=offered_models),
        click.option("--flow", default="", help="Only of this flow version."),
        click.option("--session", "session_id", default="", help="Only of this session."),
        click.option("--owner", default="", help="Only of this owner, by name or by hash."),
        click.option("--rule", default="", help="Only with an answer that broke this rule, or with this code."),
        click.option("--text", default="", help="Only with this text in the message, in any case of letters."),
        click.option("--since", callback=span, metavar="SPAN", help="Only of the last 90s, 30m, 1h, 7d, 2w."),
        click.option(
            "--until", callback=span, metavar="SPAN", help="Only those that ended (or began) before this long ago."
        ),
        click.option("--lost", is_flag=True, help="Only turns that a worker died or froze with."),
    ]
    if known:
        names, help_ = ("--status", "--state", "--outcome"), "Only in this state, or of this outcome; may be repeated."
        options.insert(0, click.option(*names, "statuses", type=click.Choice(known), multiple=True, help=help_))

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def search_of(*, since: float | None, until: float | None, **filters: Any) -> Search:
    """The search that these options ask for."""
    now = time.time()
    filters["owner"] = owner_named(filters["owner"])
    return Search(since=now - since if since else 0.0, until=now - until if until else 0.0, **filters)
