"""Implement ``turns phase``: run and verify the phases of a phases.yaml in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from api_client.client import TurnsClient
from api_client.contract.errors import BadRequest, TurnNotFound
from api_client.contract.phase import Phase
from api_client.contract.phase_folders import phase_session
from api_client.contract.settings import load_settings
from api_client.contract.turn import Turn
from api_client.index.search import Search
from worker.cli import NO
from worker.cli.output import fit_line, json_option, write_json, write_list
from worker.cli.store_access import run_with_client
from worker.cli.turns.timeline import format_error
from worker.cli.turns.turn import follow_turn
from worker.verification.phases_file import load_phases, resolve_phases_file


@click.group()
def phase() -> None:
    """Run and list phases: tasks in a phases.yaml, each with verified output (docs/WORKFLOW-SYSTEM.md)."""


@phase.command(epilog="Example: turns phase run plans/phases.yaml --watch")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--phase", "only", help="Only the phase of this id. Default: all, in order.")
@click.option("--model", default="", help="One of HELIX_MODELS, for phases that name none. Default: the first.")
@click.option("--locale", type=click.Choice(["de", "en"]), help="Language of feedback and messages.")
@click.option("--deadline", type=float, help="Wall time of each phase from its first start, in seconds.")
@click.option("--watch", "watching", is_flag=True, help="Write each event until the last phase has ended.")
@json_option
def run(
    path: Path, only: str | None, model: str, locale: str | None, deadline: float | None, watching: bool, as_json: bool
) -> None:
    """Submit the phases of PATH, a phases.yaml or its folder, and print the ids of their turns.

    All are stored at once, so this command may end early. They run in order, and a failed phase stops the later ones.
    With --watch the exit code is 0 only if all passed.
    """
    directory = project_directory(path)
    phases = [each for each in load_phases(path) if only in {None, each.id}]
    if not phases:
        known = ", ".join(each.id for each in load_phases(path))
        raise BadRequest(f"{resolve_phases_file(path)} has no phase {only!r}; it has: {known}")
    more: dict[str, Any] = {"model": model, "locale": locale or "", "deadline_seconds": deadline or 0.0}
    more["operator"] = True  # whoever can write to the store may do anything

    async def submit_phases(client: TurnsClient) -> list[Turn]:
        turn_ids = await client.phases.submit_phases(phases, directory=directory, **more)
        _print_submitted(phases, turn_ids, as_json=as_json, to_stderr=watching)
        for each, turn_id in zip(phases, turn_ids, strict=True) if watching else ():
            if not as_json:
                click.echo(f"phase {each.id}: {fit_line(each.name)}" if each.name != each.id else f"phase {each.id}")
            await follow_turn(client, turn_id, as_json=as_json)
        return [await client.reader.read_turn(turn_id) for turn_id in turn_ids if watching]

    turns = run_with_client(submit_phases)
    failed = [turn for turn in turns if not (turn.outcome and turn.outcome.success)]
    if failed and not as_json:
        for text in format_error(failed[0].error):
            click.echo(f"turns: {text}", err=True)
    if failed:
        raise click.exceptions.Exit(NO)


def project_directory(path: Path) -> str:
    """Return the folder that contains a phases.yaml, relative to HELIX_ROOT. Raises ``BadRequest`` outside of it."""
    folder, root = resolve_phases_file(path).resolve().parent, load_settings().root.resolve()
    if not folder.is_relative_to(root):
        raise BadRequest(f"{folder} does not lie below HELIX_ROOT ({root}), where the workers look")
    return str(folder.relative_to(root))


def _print_submitted(phases: list[Phase], turn_ids: list[str], *, as_json: bool, to_stderr: bool) -> None:
    if as_json and not to_stderr:
        pairs = zip(phases, turn_ids, strict=True)
        write_json([{"phase": each.id, "turn_id": turn_id} for each, turn_id in pairs])
    elif not as_json:
        for each, turn_id in zip(phases, turn_ids, strict=True):
            click.echo(f"{turn_id}  {each.id}", err=to_stderr)


@phase.command("list", epilog="Example: turns phase list plans/phases.yaml")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def list_phases(path: Path, as_json: bool) -> None:
    """List the phases of PATH, with the last turn of each."""
    phases = load_phases(path)
    folder = resolve_phases_file(path).resolve().parent / "phases"
    noted = {each.id: _read_status(folder / each.id / "status.json") for each in phases}

    async def read_states(client: TurnsClient) -> dict[str, tuple[str, str]]:
        found = {}
        for name, status in noted.items():
            turn_id = (status or {}).get("turn_id", "")
            try:
                turn = await client.reader.read_turn(turn_id) if turn_id else None
            except TurnNotFound:
                turn = None  # the record's retention has ended
            state = (turn.outcome or turn.state).value if turn else (status or {}).get("status", "")
            found[name] = (state, turn_id)
        for turn in await _list_unfinished(client, path):
            found[str(turn.request.work_data.get("phase"))] = (turn.state.value, turn.turn_id)
        return found

    found = run_with_client(read_states)
    last = {name: {"state": state, "turn_id": turn_id} for name, (state, turn_id) in found.items()}
    rows = (
        (each.id, each.type, found[each.id][0] or "not run", found[each.id][1], fit_line(each.name, 60))
        for each in phases
    )
    data, head = [{**each.to_dict(), **last[each.id]} for each in phases], ("phase", "type", "state", "turn", "name")
    write_list(as_json, data, "", head, rows)


async def _list_unfinished(client: TurnsClient, path: Path) -> list[Turn]:
    try:
        session = phase_session(project_directory(path))
    except BadRequest:
        return []
    return await client.lists.read_turns(
        each.turn_id for each in await client.lists.list_unfinished(Search(session_id=session))
    )


def _read_status(path: Path) -> dict[str, str] | None:
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) and isinstance(status.get("turn_id"), str) else None
