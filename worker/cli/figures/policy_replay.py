"""``turns replay-policy``: judge recorded answers by another policy, without an agent."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import click

from api_client.client import TurnsClient
from api_client.contract.attempt import AttemptRecord
from api_client.contract.settings import load
from api_client.contract.turn import Turn
from api_client.policies.replays import PolicyReplay
from worker.cli.figures.judging import Judging, JudgingEnded, Whose
from worker.cli.figures.rates import percent, span
from worker.cli.output import json_option, number_of, one_line, write_json, write_table
from worker.cli.policy import chosen_by, read_file
from worker.cli.turns.actions import whoami
from worker.cli.turns.finished import finished_chats
from worker.cli.turns.turn import with_client
from worker.enforcement.policies import Comparison, Judged, Subject
from worker.external import provide

#: Decisions that followed from judging an answer.
_JUDGED = frozenset({"accept", "retry", "fallback", "fail"})


@click.command("replay-policy")
@click.option("--policy", "file", required=True, metavar="FILE", help="The policy to try.")
@click.option("--since", callback=span, default="7d", metavar="SPAN", show_default=True, help="How far back.")
@click.option("--model", default="", help="Turns of this model alone.")
@click.option("--show", default=20, show_default=True, help="Answers to name that are judged differently.")
@json_option
def replay_policy(file: str, since: float, model: str, show: int, as_json: bool) -> None:
    """Judge the recorded answers of finished turns by the rules of a policy file. No agent runs, no turn changes.

    The relay's page /policies keeps the result, with the texts.

    The answers' text is judged: files that an agent wrote are not in the record, and rules that look at the project
    see it as it is today. Rules for routes are left out, because the record does not name the route.
    """
    policy, replay_id = read_file(file), secrets.token_hex(6)
    settings = load()
    provide(settings)
    chosen_by(policy, Subject(), root=settings.root)  # before children build its rules

    async def read(client: TurnsClient) -> Comparison:
        comparison = Comparison(most=show)
        with Judging(policy, settings, comparison) as judging:
            async for turn, attempts in finished_chats(client, time.time() - since, model):
                whose = Whose(turn.request.model, turn.request.owner, turn.request.locale)
                for judged in _answers(turn, attempts):
                    judging.add(judged, whose)
            judging.rest()
        await client.policy_replays.keep(_result(comparison))
        return comparison

    def _result(comparison: Comparison) -> PolicyReplay:
        return PolicyReplay(
            replay_id=replay_id,
            at=time.time(),
            by=whoami(),
            file=Path(file).name,
            policy=policy.hash,
            since_seconds=since,
            model=model,
            found=comparison.to_dict(),
        )

    try:
        comparison = with_client(read)
    except JudgingEnded as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        write_json({"policy": policy.hash, "page": f"/policies/{replay_id}", **comparison.to_dict()})
    else:
        _write(comparison)
        click.echo(f"\nwith the texts: {settings.public_url.rstrip('/')}/policies/{replay_id} on the relay")


def _answers(turn: Turn, attempts: list[AttemptRecord]) -> Iterator[Judged]:
    runs = max(len(attempts), 1)
    for attempt in attempts:
        if attempt.decision in _JUDGED and attempt.completion.get("verdict") == "complete":
            yield Judged(
                turn_id=turn.turn_id,
                attempt=attempt.number,
                answer=attempt.answer or attempt.text,
                accepted=attempt.decision == "accept",
                tokens=turn.tokens_used // runs,
                micro_dollars=turn.cost_used // runs,
            )


def _write(found: Comparison) -> None:
    share = percent(found.rejected_now / found.answers) if found.answers else "-"
    click.echo(
        f"{number_of(found.answers, 'answer')} judged: {found.rejected_now} accepted then and rejected now ({share}), "
        f"{found.accepted_now} rejected then and accepted now"
    )
    if found.rejected_now:
        click.echo(
            f"at least {number_of(found.runs, 'more run')}, {found.tokens} tokens, ${found.micro_dollars / 1e6:.2f}"
        )
    for title, rules in (("rejects now", found.by_rule), ("would reject (shadow)", found.in_shadow)):
        if rules:
            click.echo()
            write_table([("rule", title), *((one_line(name, 60), str(count)) for name, count in rules.most_common())])
    if found.changes:
        click.echo()
        rows = [(each.turn_id, str(each.attempt), ", ".join(each.rules) or "accepted") for each in found.changes]
        write_table([("turn", "attempt", "now"), *rows])
