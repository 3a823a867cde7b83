"""Implement ``turns turn export --rejected``: rejected answers with their issues and results, as JSON lines."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click

from api_client.client import TurnsClient
from api_client.contract.attempt_record import AttemptRecord
from api_client.contract.errors import TurnNotFound
from api_client.contract.issue import issues_to_dicts
from api_client.contract.settings import load_settings
from api_client.contract.settings.redaction import make_redactor, redact_value
from api_client.contract.turn import Turn
from api_client.contract.turn_labels import listed_labels
from api_client.private_file import open_private
from worker.cli.output import count_noun
from worker.cli.store_access import run_with_client
from worker.cli.turns.feedback import read_feedback
from worker.cli.turns.listing import iterate_finished_chats

FORMAT = "helix-turns.rejected/1"
_REJECTED = frozenset({"retry", "fallback", "fail"})


@dataclass(slots=True)
class ExportResult:
    """The numbers of exported turns and answers, and the gaps left by removed records.

    ``without_attempts`` has ids of turns whose attempts were removed by retention. Earlier turns than
    ``complete_since`` (seconds since the epoch) are missing.
    """

    rows: int = 0
    turns: int = 0
    without_attempts: list[str] = field(default_factory=list)
    complete_since: float = 0.0


def export_rejected(out: IO[str], *, since: float, model: str, redact: bool) -> ExportResult:
    """Write the rejected answers of turns that ended in the last ``since`` seconds to ``out``, as JSON lines.

    Credentials are always masked; ``redact`` replaces users' messages by their length.
    """
    settings = load_settings()
    mask, ratings = make_redactor(settings), read_feedback(settings.root)
    kept = settings.retention_seconds
    found = ExportResult(complete_since=time.time() - kept if since > kept else 0.0)

    async def write_rows(client: TurnsClient) -> None:
        async for turn, attempts in iterate_finished_chats(client, time.time() - since, model):
            written = 0
            rejected = any(attempt.decision in _REJECTED for attempt in attempts)
            whole = await _read_turn(client, turn.turn_id) if rejected else None  # lists contain no answers
            for row in build_rows(whole, attempts, redact=redact) if whole else ():
                rating = ratings.get(turn.turn_id)
                out.write(json.dumps(redact_value({**row, "feedback": rating}, mask), ensure_ascii=False) + "\n")
                written += 1
            found.rows += written
            found.turns += bool(written)
            lost = rejected and whole is None
            if lost or (not attempts and (turn.retries or turn.outcome is None or not turn.outcome.success)):
                found.without_attempts.append(turn.turn_id)

    run_with_client(write_rows)
    return found


async def _read_turn(client: TurnsClient, turn_id: str) -> Turn | None:
    try:
        return await client.reader.read_turn(turn_id)
    except TurnNotFound:  # removed by retention meanwhile
        return None


def build_rows(turn: Turn, attempts: list[AttemptRecord], *, redact: bool = False) -> Iterator[dict[str, Any]]:
    """Yield one JSON-ready row for each rejected answer of a turn. ``redact`` replaces texts by their lengths."""
    hide: Callable[[str], str] = (lambda text: f"<{len(text)} characters>") if redact else str
    for attempt in attempts:
        if attempt.decision not in _REJECTED:
            continue
        repaired = attempt.mended or attempt.changes
        yield {
            "format": FORMAT,
            "turn_id": turn.turn_id,
            "attempt": attempt.number,
            "model": turn.request.model,
            "locale": turn.request.locale,
            **listed_labels(turn.labels),
            "finished_at": datetime.fromtimestamp(turn.finished_at, UTC).isoformat(timespec="seconds"),
            "messages": [
                {**message, "content": hide(message["content"])}
                if message["role"] != "assistant" or redact
                else message
                for message in turn.request.messages
            ],
            "prompt": hide(attempt.prompt) if attempt.prompt == turn.request.prompt else attempt.prompt,
            "answer": attempt.answer or attempt.text,
            "issues": issues_to_dicts(attempt.issues),
            "decision": attempt.decision,
            "repair": {
                "text": attempt.mended,
                "changes": list(attempt.changes),
                "remaining": issues_to_dicts(attempt.remaining),
            }
            if repaired
            else None,
            "outcome": turn.outcome.value if turn.outcome else "",
            "final": turn.response or None,
        }


def summarise_export(found: ExportResult) -> Iterator[str]:
    """Yield lines of text that say how much was exported and what had already been removed."""
    yield f"{count_noun(found.rows, 'rejected answer')} of {count_noun(found.turns, 'turn')}"
    if found.without_attempts:
        named = ", ".join(found.without_attempts[:5]) + (", ..." if len(found.without_attempts) > 5 else "")
        yield f"removed by retention: the attempts of {count_noun(len(found.without_attempts), 'turn')} ({named})"
    if found.complete_since:
        when = datetime.fromtimestamp(found.complete_since, UTC).isoformat(timespec="minutes")
        yield f"removed by retention: turns that finished before {when} (HELIX_RETENTION_SECONDS)"


def export_dataset(output: str | None, *, since: float, model: str, redact: bool) -> None:
    """Write rejected answers to a file or to standard output, and a summary to standard error."""
    if output and output != "-":
        with open_private(Path(output)) as file:
            out = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
            found = export_rejected(out, since=since, model=model, redact=redact)
            out.detach()
    else:
        found = export_rejected(sys.stdout, since=since, model=model, redact=redact)
    for line in summarise_export(found):
        click.echo(line, err=True)
