"""What a judgement says, as tables or JSON, and as an exit code."""

import click

from tests.chaos.checker import INVARIANTS, MUST_BE_ZERO, Judgement
from worker.cli.output import fit_line, write_json, write_table

#: Exit codes: nothing violated; an invariant violated; not carried out; nothing violated, and too little met to say so.
GOOD, VIOLATED, NOT_DONE, TOO_LITTLE = 0, 1, 2, 3
_SHOWN_PROBLEMS = 20


def report(judgement: Judgement, as_json: bool) -> int:
    """Write the judgement to standard output; returns its exit code."""
    if as_json:
        write_json(judgement.to_dict())
    else:
        _tables(judgement)
    if judgement.problems:
        return VIOLATED
    return TOO_LITTLE if judgement.too_little else GOOD


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
    click.echo("\nrecovery of turns whose delivery a fault lost, seconds")
    for faults, figures in judgement.recovery.items():
        click.echo(f"  {faults}: " + ", ".join(f"{name} {value:g}" for name, value in figures.items()))
    machine = ", ".join(f"{name} {value:g}" for name, value in judgement.machine.items())
    click.echo(f"machine: {machine}")
    for problem in judgement.problems[:_SHOWN_PROBLEMS]:
        click.echo(fit_line(f"[{problem.invariant}] {problem.figure}: {problem.text}"))
    zeros = ", ".join(f"{name} {judgement.figures[name]}" for name in MUST_BE_ZERO)
    click.echo(f"\n{zeros}")
    for reason in judgement.too_little:
        click.echo(f"the run proves too little: {reason}")
    click.echo(f"{len(judgement.problems)} violations" if judgement.problems else "no violation observed")
