"""Implement ``turns data audit``."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from api_client.api_keys import make_owner_namer
from api_client.contract.settings import load_settings
from worker.cli.output import fit_line, format_time, json_option, write_list
from worker.cli.store_access import build_since_option, run_with_client


@click.command(epilog="Example: turns data audit --since 1d")
@build_since_option("7d", "90s, 30m, 1h, 7d, 2w.")
@click.option("--turn", "turn_id", default="", help="Only about this turn.")
@json_option
def audit(since: float, turn_id: str, as_json: bool) -> None:
    """Show who cancelled, replayed, dropped or decided what, and when; newest last.

    Entries are written before the action; refused actions say so. For the result: `turns turn show TURN_ID`.
    """
    lines = run_with_client(lambda client: client.audit.read_lines(since=time.time() - since, turn_id=turn_id))
    named = make_owner_namer(load_settings().keys_path)
    head = ("when", "who", "what", "turn", "bulk", "asked for", "result")
    rows = (
        (
            format_time(line.at),
            fit_line(named(line.by), 40),
            *(line.action, line.turn_id, line.bulk, fit_line(line.detail, 60)),
            f"refused: {fit_line(line.refused, 80)}" if line.refused else "",
        )
        for line in lines
    )
    none = f"nobody did anything{f' to {fit_line(turn_id)}' if turn_id else ''} in this time"
    write_list(as_json, [asdict(line) for line in lines], none, head, rows)
