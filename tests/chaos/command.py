"""``python -m tests.chaos``: kill an installation at random under load, and judge from its history what came of it."""

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import click

from api_client.contract.errors import HelixError
from api_client.contract.settings import Settings
from tests.chaos.checker import judge
from tests.chaos.history import read
from tests.chaos.options import Options
from tests.chaos.report import GOOD, NOT_DONE, report
from tests.chaos.run import Interrupted, run
from tests.chaos.yardstick.plain import VARIANTS, run_plain
from worker.cli.output import json_option, write_json, write_table
from worker.logs import configure_logging

#: The guards that can be switched off, to see the checker notice; see docs/reliability.md.
BREAKABLE = ("fencing", "lease", "reaper", "order", "inbox", "counters")
_SABOTAGE = Path(__file__).parents[1] / "fault" / "sabotage"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; ends the process. 1 means a violated invariant and nothing else (``report``)."""
    try:
        code = chaos.main(args=arguments, prog_name="python -m tests.chaos", standalone_mode=False)
    except click.Abort:
        code = 128 + signal.SIGINT
    except click.ClickException as error:
        error.show()
        code = NOT_DONE
    except (HelixError, OSError, ValueError) as error:
        click.echo(f"error: {error}", err=True)
        code = NOT_DONE
    except Exception:
        traceback.print_exc()
        code = NOT_DONE
    sys.exit(code)


@click.group(invoke_without_command=True)
@click.option("--turns", default=200, show_default=True, type=click.IntRange(1, 100_000), help="Messages to send.")
@click.option(
    "--seconds", default=120.0, show_default=True, type=click.FloatRange(20, 86_400), help="Time of the load."
)
@click.option("--seed", default=1, show_default=True, type=int, help="The same seed makes the same plan.")
@click.option(
    "--history", type=click.Path(path_type=Path, file_okay=False), help="Keep the history in this new folder."
)
@click.option("--break", "broken", type=click.Choice(BREAKABLE), default=None, help="Switch a guard off.")
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
) -> int:
    """Kill, freeze and cut an installation at random while clients use it, then judge what came of it.

    Starts a broker, two workers and two relays in a temporary folder, and needs no other. Exit codes: 0 good; 1 an
    invariant was violated; 2 used wrongly, or the run could not be carried out; 3 nothing was violated, but the run
    proves too little. The history of a run that is not good is kept, and `judge HISTORY` judges it again.
    """
    if ctx.invoked_subcommand:
        return GOOD
    configure_logging(Settings(log_level="error"))
    kept = history or Path(tempfile.mkdtemp(prefix="chaos-history-"))
    kept.mkdir(parents=True, exist_ok=history is None)
    begun = time.monotonic()

    def tell(line: str) -> None:
        click.echo(f"{time.monotonic() - begun:7.1f} s  {line}", err=True)

    options = Options(turns=turns, seconds=seconds, seed=seed, broken=broken or "")
    try:
        if plain:
            return _yardstick(options, kept, tell, as_json)
        run(options, kept, tell, _sabotage(broken))
    except Interrupted:
        if history is None:
            shutil.rmtree(kept)
        tell("interrupted: everything that was started is ended, nothing was judged")
        raise
    except BaseException:
        tell(f"the run could not be carried out; the history so far is in {kept}")
        raise
    judgement = judge(read(kept))
    if judgement.good and history is None:
        shutil.rmtree(kept)
    else:
        tell(f"the history is in {kept}")
    return report(judgement, as_json)


def _yardstick(options: Options, directory: Path, tell: Callable[[str], None], as_json: bool) -> int:
    """Plain Celery with its defaults, then with the settings that save most."""
    found = []
    for variant in VARIANTS:
        (directory / variant).mkdir()
        found.append(run_plain(options, variant, directory / variant, tell))
    if as_json:
        write_json(found)
    else:
        write_table([(name, *(str(figures[name]) for figures in found)) for name in found[0] if name != "kills"])
    return GOOD


@chaos.command("judge")
@click.argument("history", type=click.Path(path_type=Path, exists=True, file_okay=False))
@json_option
def judge_history(history: Path, as_json: bool) -> int:
    """Judge a stored history again, without any server. Exit codes as above."""
    return report(judge(read(history)), as_json)


def _sabotage(broken: str | None) -> dict[str, str]:
    """The environment that switches a guard off in workers and relays."""
    if broken is None:
        return {}
    paths = [str(_SABOTAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"HELIX_AGENT_BREAK": broken, "PYTHONPATH": os.pathsep.join(paths)}
