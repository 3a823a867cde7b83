"""Show the versions of HELIX_FLOW_VERSION, roll back and resume one (ADR-034)."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click

from api_client.client import TurnsClient
from worker.cli.output import fit_line, json_option, write_list, write_result
from worker.cli.store_access import describe_caller, run_with_client


@click.command(epilog="Example: turns policy versions")
@json_option
def versions(as_json: bool) -> None:
    """Show each version of the flow: its share of sessions, its policy, and whether it was rolled back."""

    async def read_versions(client: TurnsClient) -> list[dict[str, object]]:
        active, gone = await client.flows.read_active(), await client.flows.read_rolled_back()
        total = sum(active.values())
        found = []
        for version, weight in client.settings.flow_version.items():
            source = client.policies.find_policy("", flow=version)
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

    found = run_with_client(read_versions)
    head = ("version", "weight", "sessions", "policy", "prompt template", "bound", "")
    write_list(as_json, found, "", head, map(_version_row, found))


def _version_row(each: Mapping[str, object]) -> tuple[str, ...]:
    bound, gone = each["max_failure_rate"], each["rolled_back"]
    said = ""
    if isinstance(gone, dict):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(gone["at"]))
        said = f"rolled back at {at} by {fit_line(gone['by'], 40)}"
        said += f": {fit_line(gone['why'], 80)}" if gone["why"] else ""
    return (
        str(each["version"]),
        str(each["weight"]),
        f"{each['share']:.0%}",
        str(each["policy"]) or "-",
        fit_line(each["prompt_template"], 60) or "-",
        f"{bound:.0%}" if isinstance(bound, float) else "-",
        said,
    )


@click.command(epilog='Example: turns policy rollback v3 --why "too strict"')
@click.argument("version")
@click.option("--why", default="", help="Reason, shown beside the version.")
@json_option
def rollback(version: str, why: str, as_json: bool) -> None:
    """Stop giving turns to VERSION, on all relays within a second and without a restart.

    Its sessions continue with other versions. Running turns keep VERSION until they end.
    """

    async def roll_back(client: TurnsClient) -> Mapping[str, int]:
        async with client.orders.place_order("flow.rollback", by=describe_caller(), detail=version):
            return await client.flows.roll_back_version(version, by=describe_caller(), why=why)

    _print_shares(run_with_client(roll_back), as_json, f"{version} gets no new turns")


@click.command(epilog="Example: turns policy resume v3")
@click.argument("version")
@json_option
def resume(version: str, as_json: bool) -> None:
    """Give VERSION its share of turns again. Earlier failures no longer count towards its limit."""

    async def resume_version(client: TurnsClient) -> Mapping[str, int]:
        async with client.orders.place_order("flow.resume", by=describe_caller(), detail=version):
            return await client.flows.resume_version(version, by=describe_caller())

    _print_shares(run_with_client(resume_version), as_json, f"{version} gets turns again")


def _print_shares(active: Mapping[str, int], as_json: bool, said: str) -> None:
    shares = ", ".join(f"{name}={weight}" for name, weight in active.items())
    write_result(as_json, {"active": dict(active)}, f"{said}; sessions: {shares}")
