"""Implement ``turns policy replay``: validate recorded answers with another policy, without an agent."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path

import click

from api_client.client import TurnsClient
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.decision import HANDED_ON
from api_client.contract.errors import BadRequest, SettingsError
from api_client.contract.policy import AppliedPolicy
from api_client.contract.settings import Settings, load_settings
from api_client.contract.turn import Outcome, Turn
from api_client.policies.policy_files import apply_policy_file
from api_client.policies.policy_replays import PolicyReplay, PolicyReplays
from api_client.turns.record.transition import to_policy_attempts
from api_client.turns.record.turn_policy import find_turn_policy
from worker.cli.figures.stats import format_percent
from worker.cli.output import count_noun, fit_line, json_option, write_json, write_table
from worker.cli.policy import choose_file_rules, load_policy_file
from worker.cli.store_access import build_since_option, describe_caller, run_with_client
from worker.cli.turns.listing import iterate_finished_chats
from worker.enforcement.answer_validation import refused_file_issues
from worker.enforcement.policies import PolicyFile, PolicySubject
from worker.external.local_services import provide_services
from worker.plugins.analysis.policy_replay.comparison import Comparison, RecordedAttempt, RecordedTurn
from worker.plugins.analysis.policy_replay.comparison_run import ComparisonRun, PolicyShare, ValidationProcessDied
from worker.turns.folders import AnswerFiles, collect_answer_files, locate_last_delivery


@click.command("replay", epilog="Example: turns policy replay --policy policy.yaml --since 7d")
@click.option("--policy", "file", required=True, metavar="FILE", help="The policy to try.")
@build_since_option("7d")
@click.option("--model", default="", help="Only turns of this model.")
@click.option(
    "--show", type=click.IntRange(min=0), default=20, show_default=True, help="How many differing answers to name."
)
@json_option
def replay_policy(file: str, since: float, model: str, show: int, as_json: bool) -> None:
    """Validate the recorded answers of finished turns with a policy file, and decide as workers do. No agent runs.

    No turn changes. The relay's page /policies keeps the result with the texts.

    Agents' files are validated if they are still on this machine; rules that read the project see its present state.
    Rules for routes do not apply to turns of another policy, whose record does not name the route.
    """
    policy, replay_id = load_policy_file(file), secrets.token_hex(6)
    settings = load_settings()
    provide_services(settings)
    # Report errors before child processes build the rules.
    choose_file_rules(policy, PolicySubject(), root=settings.root)

    async def replay_turns(client: TurnsClient) -> Comparison:
        comparison = Comparison(most=show)
        with ComparisonRun(policy, settings, comparison) as judging:
            async for turn, attempts in iterate_finished_chats(client, time.time() - since, model):
                given = _apply_policy(turn, policy)
                judging.add_turn(_rebuild_turn(settings, turn, attempts, given.policy.max_attempts), given)
            judging.finish()
        await PolicyReplays(client.store).store_replay(_build_replay(comparison))
        return comparison

    def _build_replay(comparison: Comparison) -> PolicyReplay:
        return PolicyReplay(
            replay_id=replay_id,
            at=time.time(),
            by=describe_caller(),
            file=Path(file).name,
            policy=policy.hash,
            since_seconds=since,
            model=model,
            found=comparison.to_dict(),
        )

    try:
        comparison = run_with_client(replay_turns)
    except ValidationProcessDied as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        write_json({"policy": policy.hash, "page": f"/policies/{replay_id}", **comparison.to_dict()})
    else:
        _print_comparison(comparison)
        click.echo(f"\nwith the texts: {settings.public_url.rstrip('/')}/policies/{replay_id} on the relay")


def _apply_policy(turn: Turn, file: PolicyFile) -> PolicyShare:
    request, applied = turn.request, AppliedPolicy.from_request(turn.request)
    if applied is None or applied.hash != file.hash:
        filled = request.filled if applied else ("validators", "policy", "max_attempts", "locale")
        named = {"validators", "policy", "max_attempts", "locale"} - set(filled)
        try:
            request = apply_policy_file(request, file, owner=request.key, route="", named=named)
        except BadRequest:  # the turn names a rule that this policy lacks
            request = apply_policy_file(request, file, owner=request.key, route="", named=named - {"validators"})
    policy = find_turn_policy(replace(turn, request=request, allowed=0))
    applied = AppliedPolicy.from_request(request)
    return PolicyShare(names=request.validators, shadow=applied.shadow if applied else (), policy=policy)


def _rebuild_turn(settings: Settings, turn: Turn, attempts: list[AttemptRecord], most: int) -> RecordedTurn:
    found = []
    for number, (record, attempt) in enumerate(zip(attempts, to_policy_attempts(attempts), strict=True), 1):
        files = _read_files(settings, turn, attempts[:number])
        by_human = turn.outcome is Outcome.PASSED_BY_HUMAN
        found.append(
            RecordedAttempt(
                text=record.text,
                answer=record.answer,
                complete=attempt.complete,
                fresh=attempt.fresh,
                decision=HANDED_ON if by_human and record.decision == "accept" else record.decision,
                feedback=record.feedback,
                files=files.files,
                issues=(*files.lost, *refused_file_issues(files.refused, turn.request.locale)),
            )
        )
    runs = max(len(attempts), 1)
    return RecordedTurn(
        turn_id=turn.turn_id,
        attempts=tuple(found),
        context={"session_id": turn.request.session_id, "prompt": turn.request.prompt},
        allowed=max(turn.allowed, most) if turn.allowed else 0,
        tokens=turn.tokens_used // runs,
        micro_dollars=turn.cost_used // runs,
    )


def _read_files(settings: Settings, turn: Turn, attempts: list[AttemptRecord]) -> AnswerFiles:
    try:
        here = locate_last_delivery(settings, turn, attempts[-1]).is_dir()
        return collect_answer_files(settings, turn, attempts) if here else AnswerFiles()
    except (SettingsError, OSError):
        return AnswerFiles()


def _print_comparison(found: Comparison) -> None:
    share = format_percent(found.rejected_now / found.answers) if found.answers else "-"
    click.echo(
        f"{count_noun(found.answers, 'answer')} judged: {found.rejected_now} accepted then and rejected now ({share}), "
        f"{found.accepted_now} rejected then and accepted now"
    )
    if found.rejected_now:
        click.echo(
            f"at least {count_noun(found.runs, 'more run')}, {found.tokens} tokens, ${found.micro_dollars / 1e6:.2f}"
        )
    for title, rules in (("rejects now", found.by_rule), ("would reject (shadow)", found.in_shadow)):
        if rules:
            click.echo()
            write_table([("rule", title), *((fit_line(name, 60), str(count)) for name, count in rules.most_common())])
    if found.changes:
        click.echo()
        rows = [(each.turn_id, str(each.attempt), ", ".join(each.rules) or "accepted") for each in found.changes]
        write_table([("turn", "attempt", "now"), *rows])
