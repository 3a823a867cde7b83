"""The command ``turns worker certify``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from worker.cli.output import write_json

if TYPE_CHECKING:
    from worker.plugins.certification.trial import Trial


#: Settings that must exist although the kit redirects every call to its own service.
_NEEDED = {
    "HELIX_CLAUDE_API_URL": "http://certify.invalid",
    "HELIX_CLAUDE_API_KEY": "sk-certify",
    "HELIX_OPENAI_URL": "http://certify.invalid/v1",
    "HELIX_OPENAI_API_KEY": "sk-certify",
}


@click.command("certify", epilog="Example: turns worker certify openai_http:stub")
@click.argument("name")
@click.option("--only", multiple=True, metavar="TEXT", help="Only situations with this in their names; repeatable.")
@click.option("--jobs", type=click.IntRange(1, 16), default=3, show_default=True, help="Situations to run at a time.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the table goes to stderr.")
def certify_runner(name: str, only: Sequence[str], jobs: int, as_json: bool) -> None:
    """Test a runner's real program in situations that end well or badly, and show how reliable its verdicts are.

    NAME is a model of HELIX_MODELS, or a runner with its option as it would be written there, such as
    openai_http:stub. No real service is asked: the model proxy leads to a stub, whatever the settings say. Exit code 1:
    something was taken for complete falsely, a whole answer was thrown away, or the agent bypassed the model proxy.
    """
    from api_client.contract.settings import Settings, load_settings
    from worker.agents.runner_lookup import build_runner
    from worker.logs import configure_logging
    from worker.plugins.certification.situations import SITUATIONS
    from worker.plugins.certification.trial import run_situations
    from worker.runners.sandbox import guard_client

    configure_logging(Settings(log_level="error"))  # the table shows errors
    os.environ.update({key: value for key, value in _NEEDED.items() if not os.environ.get(key)})
    models = load_settings().models
    runner, option = build_runner(models.get(name, name))
    wanted = [each for each in SITUATIONS if not only or any(text in each.name for text in only)]
    if not wanted:
        raise click.UsageError(f"no situation has {', '.join(only)} in its name")
    try:
        rows = []
        for row in run_situations(runner, option, name, wanted, jobs):
            rows.append(row)
            for line in [*_HEAD, _format_row(row)] if len(rows) == 1 else [_format_row(row)]:
                click.echo(line, err=as_json)  # with --json, the lines only show progress
    finally:
        guard_client.shared_processes().stop_guard()
    counts = _count_verdicts(rows)
    if as_json:
        write_json({"runner": name, "counts": counts, "situations": [row.to_dict() for row in rows]})
    else:
        click.echo()
        for line in (
            *_format_summary(counts),
            *(f"{row.situation.name}: {row.problem}" for row in rows if row.problem),
        ):
            click.echo(line)
    sys.exit(1 if any(row.problem for row in rows) else 0)


_HEAD = (
    "| Situation | Truth | The agent says | Without the call log | Verdict | Reason |",
    "| --- | --- | --- | --- | --- | --- |",
)


def _format_row(row: Trial) -> str:
    without = "complete" if row.complete_without_log else "not complete"
    reason = " ".join(row.reason.split())[:90]
    agents = f"{row.agent_says}{' (done)' if row.reported_success else ''}"
    verdict = row.verdict_word if row.applies else "not applicable"
    cells = [row.situation.name, row.situation.truth, agents, without, verdict, reason]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _count_verdicts(rows: Sequence[Trial]) -> dict[str, dict[str, int]]:
    found, rows = {}, [row for row in rows if row.applies]
    for whose, claims in (
        ("agents", [row.reported_success for row in rows]),
        ("without", [row.complete_without_log for row in rows]),
        ("ours", [row.judged_complete for row in rows]),
    ):
        said = list(zip(rows, map(bool, claims), strict=True))
        whole = [complete for row, complete in said if row.has_true_end]
        found[whose] = {
            "situations": len(rows),
            "false_complete": sum(row.is_falsely_complete(complete) for row, complete in said),
            "true_ends": len(whole),
            "kept": sum(whole),
        }
    return found


def _format_summary(counts: dict[str, dict[str, int]]) -> Iterator[str]:
    names = {"agents": "the agent's own word", "without": "our gate without the call log", "ours": "our verdict"}
    for whose, found in counts.items():
        yield (
            f"{names[whose]}: {found['false_complete']} of {found['situations']} taken for complete falsely, "
            f"{found['kept']} of {found['true_ends']} true ends kept"
        )
