"""Commands on flow versions: ``turns compare`` and ``turns flow``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

import click

from api_client.client import TurnsClient
from api_client.contract.turn import Outcome
from api_client.figures.versions import FEWEST, FIGURES, Difference, EndedTurn, Measured, Versions
from api_client.figures.versions import compare as compared
from worker.cli.terminal import json_option, one_line, span, whoami, with_client, write_json, write_list, write_table
from worker.cli.turns.listing import finished_turns

# ``turns compare``: two flow versions beside each other, and whether they really differ (ADR-034, A/B).

#: How a figure is called for people.
_CALLED = {
    "retry": "asked again",
    "fallback": "repaired by fallback",
    "failure": "no accepted answer",
    "seconds": "time of a turn",
    "usd": "cost of a turn",
}


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--since", callback=span, default="7d", metavar="SPAN", show_default=True, help="How far back.")
@click.option("--model", default="", help="Turns of this model alone.")
@json_option
def compare(old: str, new: str, since: float, model: str, as_json: bool) -> None:
    """Compare the finished turns of two flow versions, OLD and NEW.

    "real" says that versions without any difference would differ so much in one of twenty comparisons at most, all
    figures together. Phases and cancelled turns are left out; what retention has removed is not there.
    """
    if old == new:
        raise click.UsageError("name two different versions, such as v2 v3")

    async def read(client: TurnsClient) -> Versions:
        turns = [
            EndedTurn(
                session_id=turn.request.session_id,
                flow=turn.flow,
                outcome=turn.outcome or Outcome.ERROR,
                asked_again=turn.retries > 0,
                seconds=turn.finished_at - turn.created_at,
                usd=turn.cost_used / 1e6,
            )
            async for turn in finished_turns(client, time.time() - since, model)
            if turn.flow in {old, new}
        ]
        return compared(turns, old, new)

    found = with_client(read)
    if as_json:
        write_json(asdict(found))
    else:
        _write(found)


def _write(found: Versions) -> None:
    for version, sessions, turns in zip((found.old, found.new), found.sessions, found.turns, strict=True):
        click.echo(f"{version}: {turns} turns of {sessions} sessions")
    click.echo()
    write_table([("", found.old, found.new, "change", "real"), *map(_line, found.figures)])
    click.echo()
    if not found.enough:
        click.echo(f"Too few sessions to say more: {FEWEST} of each version are needed.")
    elif real := [_CALLED[figure.name] for figure in found.figures if figure.real]:
        click.echo(f"{found.new} really differs from {found.old} in: {', '.join(real)}.")
    else:
        click.echo(f"No difference between {found.old} and {found.new} is beyond chance.")


def _line(figure: Difference) -> tuple[str, ...]:
    said = "yes" if figure.real else "no"
    return (
        _CALLED[figure.name],
        *(_said(figure.name, each) for each in (figure.old, figure.new)),
        _said(figure.name, figure.change, sign="+"),
        f"{said} (p {figure.p:.3f}, of {len(FIGURES)})",
    )


def _said(name: str, measured: Measured, sign: str = "") -> str:
    """A figure with its 95 % confidence interval."""
    low, value, high = (_unit(name, each, sign) for each in (measured.low, measured.value, measured.high))
    return f"{value} [{low}, {high}]"


def _unit(name: str, value: float, sign: str) -> str:
    if name == "seconds":
        return f"{value:{sign}.2f} s"
    return f"{value:{sign}.4f} $" if name == "usd" else f"{value:{sign}.1%}"


# ``turns flow``: the versions of HELIX_FLOW_VERSION, rolling one back, taking it back (ADR-034).


@click.group()
def flow() -> None:
    """Versions of prompts and rules beside each other (docs/operations.md, Flow versions)."""


@flow.command()
@json_option
def show(as_json: bool) -> None:
    """Show each version: its share of sessions, its policy, and whether it was rolled back."""

    async def read(client: TurnsClient) -> list[dict[str, object]]:
        active, gone = await client.flows.active(), await client.flows.rolled_back()
        total = sum(active.values())
        found = []
        for version, weight in client.settings.flow_version.items():
            source = client.policies.of("", flow=version)
            block = client.settings.flow_settings.get(version, {})
            note = gone.get(version)
            found.append(
                {
                    "version": version,
                    "weight": weight,
                    "share": active.get(version, 0) / total,
                    "policy": source.hash if source else "",
                    "prompt_template": block.get("prompt_template", ""),
                    "max_failure_rate": block.get("max_failure_rate"),
                    "rolled_back": {"at": note.at, "by": note.by, "why": note.why} if note else None,
                }
            )
        return found

    found = with_client(read)
    head = ("version", "weight", "sessions", "policy", "prompt template", "bound", "")
    write_list(as_json, found, "", head, map(_version_line, found))


def _version_line(each: Mapping[str, object]) -> tuple[str, ...]:
    bound, gone = each["max_failure_rate"], each["rolled_back"]
    said = ""
    if isinstance(gone, dict):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(gone["at"]))
        said = f"rolled back at {at} by {one_line(gone['by'], 40)}"
        said += f": {one_line(gone['why'], 80)}" if gone["why"] else ""
    return (
        str(each["version"]),
        str(each["weight"]),
        f"{each['share']:.0%}",
        str(each["policy"]) or "-",
        one_line(each["prompt_template"], 60) or "-",
        f"{bound:.0%}" if isinstance(bound, float) else "-",
        said,
    )


@flow.command()
@click.argument("version")
@click.option("--why", default="", help="Shown beside the version.")
@json_option
def rollback(version: str, why: str, as_json: bool) -> None:
    """Give VERSION no more turns, on all relays within a second; nothing is restarted.

    Its sessions go on with the other versions. Turns that have VERSION already keep it to their end.
    """

    async def act(client: TurnsClient) -> Mapping[str, int]:
        await client.audit.note("flow.rollback", by=whoami(), detail=version)
        return await client.flows.roll_back(version, by=whoami(), why=why)

    _done(with_client(act), as_json, f"{version} gets no more turns")


@flow.command()
@click.argument("version")
@json_option
def resume(version: str, as_json: bool) -> None:
    """Give VERSION its share of turns again. What failed before counts no more for its bound."""

    async def act(client: TurnsClient) -> Mapping[str, int]:
        await client.audit.note("flow.resume", by=whoami(), detail=version)
        return await client.flows.resume(version, by=whoami())

    _done(with_client(act), as_json, f"{version} gets turns again")


def _done(active: Mapping[str, int], as_json: bool, said: str) -> None:
    if as_json:
        write_json({"active": dict(active)})
    else:
        click.echo(f"{said}; sessions: {', '.join(f'{name}={weight}' for name, weight in active.items())}")
