"""``turns chaos``: kill an installation at random under load, and judge from its history what came of it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

import worker
from api_client.contract.settings import Settings
from worker.chaos.checker import INVARIANTS, MUST_BE_ZERO, Judgement, judge
from worker.chaos.history import read
from worker.chaos.options import Options
from worker.cli.output import json_option, one_line, write_json, write_table
from worker.logs import configure_logging

#: The guards that can be switched off, to see the checker notice; see docs/reliability.md.
BREAKABLE = ("fencing", "lease", "reaper", "order", "inbox", "counters")
_SHOWN_PROBLEMS = 20


@click.group(invoke_without_command=True)
@click.option("--turns", default=200, show_default=True, type=click.IntRange(1, 100_000), help="Messages to send.")
@click.option(
    "--seconds", default=120.0, show_default=True, type=click.FloatRange(20, 86_400), help="Time of the load."
)
@click.option("--seed", default=1, show_default=True, type=int, help="The same seed makes the same plan.")
@click.option(
    "--history", type=click.Path(path_type=Path, file_okay=False), help="Keep the history in this new folder."
)
@click.option("--break", "broken", type=click.Choice(BREAKABLE), default=None, hidden=True, help="Switch a guard off.")
@click.option("--plain", is_flag=True, help="Do the same to plain Celery instead, for comparison.")
@json_option
@click.pass_context
def chaos(
    ctx: click.Context,
    turns: int,
    seconds: float,
    seed: int,
    history: Path | None,
    broken: str | None,
    plain: bool,
    as_json: bool,
) -> None:
    """Kill, freeze and cut an installation at random while clients use it, then judge what came of it.

    Starts a broker, two workers and two relays of its own in a temporary folder, and needs no other. Exits 0 only if no
    invariant was violated; the history of a run that violated one is kept, and `turns chaos judge` judges it again.
    """
    if ctx.invoked_subcommand:
        return
    from worker.chaos.run import Interrupted, run

    configure_logging(Settings(log_level="error"))
    kept = history or Path(tempfile.mkdtemp(prefix="chaos-history-"))
    kept.mkdir(parents=True, exist_ok=history is None)
    begun = time.monotonic()

    def tell(line: str) -> None:
        click.echo(f"{time.monotonic() - begun:7.1f} s  {line}", err=True)

    options = Options(turns=turns, seconds=seconds, seed=seed, broken=broken or "")
    try:
        if plain:
            _yardstick(options, kept, tell, as_json)
            return
        run(options, kept, tell, _sabotage(broken))
    except Interrupted:
        if history is None:
            shutil.rmtree(kept)
        tell("interrupted: everything that was started is ended, nothing was judged")
        raise
    judgement = judge(read(kept))
    if judgement.good and history is None:
        shutil.rmtree(kept)
    else:
        tell(f"the history is in {kept}")
    _report(judgement, as_json)


def _yardstick(options: Options, directory: Path, tell: Callable[[str], None], as_json: bool) -> None:
    """Plain Celery with its defaults, then with the settings that save most."""
    from worker.chaos.plain import VARIANTS, run_plain

    found = []
    for variant in VARIANTS:
        (directory / variant).mkdir()
        found.append(run_plain(options, variant, directory / variant, tell))
    if as_json:
        write_json(found)
        return
    write_table([(name, *(str(figures[name]) for figures in found)) for name in found[0] if name != "kills"])


@chaos.command("judge")
@click.argument("history", type=click.Path(path_type=Path, exists=True, file_okay=False))
@json_option
def judge_history(history: Path, as_json: bool) -> None:
    """Judge a stored history again, without any server."""
    _report(judge(read(history)), as_json)


def _sabotage(broken: str | None) -> dict[str, str]:
    """The environment that switches a guard off in workers and relays.

    Raises:
        UsageError: only the tests can do that, and this is no source checkout.
    """
    if broken is None:
        return {}
    patch = Path(worker.__file__).parents[1] / "tests" / "fault" / "sabotage"
    if not patch.is_dir():
        raise click.UsageError("--break needs a source checkout: what it does is in its tests")
    paths = [str(patch), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"HELIX_AGENT_BREAK": broken, "PYTHONPATH": os.pathsep.join(paths)}


def _report(judgement: Judgement, as_json: bool) -> None:
    """Tell the judgement; ends with exit code 1 if anything was violated."""
    if as_json:
        write_json(judgement.to_dict())
    else:
        _tables(judgement)
    if not judgement.good:
        sys.exit(1)


def _tables(judgement: Judgement) -> None:
    click.echo()
    write_table([(name, str(count)) for name, count in judgement.figures.items()])
    click.echo()
    write_table([("outcome", "turns"), *((name, str(count)) for name, count in sorted(judgement.outcomes.items()))])
    click.echo()
    hits = {**judgement.kills, **judgement.disturbances}
    write_table([("fault", "hits"), *((name, str(count)) for name, count in sorted(hits.items()))])
    click.echo()
    write_table([("met", "times"), *((name, str(count)) for name, count in judgement.rare.items())])
    click.echo()
    rows = [(str(number), INVARIANTS[number][0], said) for number, said in judgement.verdicts.items()]
    write_table([("", "invariant", "verdict"), *rows])
    recovery = ", ".join(f"{name} {value:g}" for name, value in judgement.recovery.items())
    machine = ", ".join(f"{name} {value:g}" for name, value in judgement.machine.items())
    click.echo(f"\nrecovery after a worker's SIGKILL, seconds: {recovery}\nmachine: {machine}")
    for problem in judgement.problems[:_SHOWN_PROBLEMS]:
        click.echo(one_line(f"[{problem.invariant}] {problem.figure}: {problem.text}"))
    zeros = ", ".join(f"{name} {judgement.figures[name]}" for name in MUST_BE_ZERO)
    click.echo(f"\n{zeros}")
    for reason in judgement.too_little:
        click.echo(f"the run proves too little: {reason}")
    click.echo(f"{len(judgement.problems)} violations" if judgement.problems else "no violation observed")
