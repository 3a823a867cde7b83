"""``turns export --rejected``: rejected answers with what was wrong and what became of them, one JSON object a line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click

from api_client.api_keys import write_private
from api_client.client import TurnsClient
from api_client.contract.issues import TurnNotFound, issues_data
from api_client.contract.record import AttemptRecord
from api_client.contract.settings import STATE_DIR, Settings, load
from api_client.contract.settings.table import redacted, redactor
from api_client.contract.turn import Turn
from worker.cli.terminal import json_option, number_of, one_line, read_text, with_client, write_json
from worker.cli.turns.listing import finished_chats

# ``turns import-feedback``: the thumbs that people gave in Open WebUI, joined to the turns they are about.
#
# Open WebUI exports them as JSON (admin panel, Evaluations, Feedback): a list of objects with ``data`` (``rating``,
# ``model_id``, ``reason``, ``comment``, ...) and ``meta`` (``chat_id``, ``message_id``, ...); read in its version
# 0.12.4. A turn has the ids of its chat and message where Open WebUI sends our headers (docs/open-webui.md).

FEEDBACK_FORMAT = "helix-turns.feedback/1"
_FILE = "feedback.json"
#: Longest text that is kept of a thumb, in characters.
_MOST = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumb:
    """One rating of an answer: 1 or -1, when (seconds since the epoch), and what its author wrote."""

    message_id: str
    model: str
    rating: int
    at: float
    reason: str = ""
    comment: str = ""
    tags: tuple[str, ...] = ()
    score: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The thumb as an export shows it."""
        when = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds")
        data = {"reason": self.reason, "comment": self.comment, "tags": list(self.tags), "score": self.score}
        return {"rating": self.rating, "at": when, **{name: value for name, value in data.items() if value}}


@dataclass(slots=True)
class Joined:
    """The fate of the thumbs: by turn, and the others by the reason why they have none."""

    turns: dict[str, dict[str, Any]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    other_models: int = 0
    without_rating: int = 0


@click.command("import-feedback")
@click.argument("file")
@json_option
def import_feedback(file: str, as_json: bool) -> None:
    """Join the thumbs of Open WebUI's exported feedback FILE (JSON; `-` for standard input) to turns.

    `turns export --rejected` shows them with their turns. Repeating an import changes nothing; a later thumb of the
    same message wins. Thumbs whose turn retention has removed are named.
    """
    settings = load()
    thumbs, without = read_export(read_text(file), file)

    async def join_all(client: TurnsClient) -> tuple[Joined, set[str]]:
        ids: dict[str, str] = {}
        kept: set[str] = set()
        async for turn, _ in finished_chats(client, 0.0):
            kept.add(turn.turn_id)
            if message := turn.request.metadata.get("message_id"):
                ids.setdefault(message, turn.turn_id)
        return join(thumbs, ids, settings, time.time()), kept

    joined, kept = with_client(join_all)
    joined.without_rating = without
    known = {turn_id: thumb for turn_id, thumb in read_feedback(settings.root).items() if turn_id in kept}
    changed = sum(known.get(turn_id) != thumb for turn_id, thumb in joined.turns.items())
    _write(settings.root, known | joined.turns)
    if as_json:
        write_json(
            {
                "joined": joined.turns,
                "changed": changed,
                "removed_by_retention": joined.removed,
                "unknown": joined.unknown,
                "other_models": joined.other_models,
                "without_rating": joined.without_rating,
            }
        )
        return
    _report(joined, changed)


def read_export(text: str, name: str) -> tuple[list[Thumb], int]:
    """The thumbs of an export, and how many entries have no rating.

    Raises:
        UsageError: the text is something else; says the faults.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{name}: not JSON: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise click.UsageError(
            f"{name}: not Open WebUI's exported feedback: a list of objects is wanted (export as JSON)"
        )
    found = [_thumb(entry) for entry in entries]
    thumbs = sorted((thumb for thumb in found if thumb is not None), key=lambda thumb: thumb.at)
    return thumbs, len(found) - len(thumbs)


def join(thumbs: Iterable[Thumb], turn_of: dict[str, str], settings: Settings, now: float) -> Joined:
    """Which turn each thumb is about, by the message id that Open WebUI gave the turn.

    ``thumbs`` come oldest first: a later one of the same message wins. ``settings`` say which models are ours, and how
    long turns are kept. ``now``: seconds since the epoch.
    """
    joined = Joined()
    for thumb in thumbs:
        if turn_id := turn_of.get(thumb.message_id):
            joined.turns[turn_id] = thumb.to_dict()
        elif thumb.model and thumb.model not in settings.models:
            joined.other_models += 1
        elif thumb.at < now - settings.retention_seconds:
            joined.removed.append(thumb.message_id)
        else:
            joined.unknown.append(thumb.message_id)
    return joined


def read_feedback(root: Path) -> dict[str, dict[str, Any]]:
    """The imported thumbs by turn; none where none were imported."""
    try:
        data = json.loads((root / STATE_DIR / _FILE).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise click.UsageError(
            f"{root / STATE_DIR / _FILE} cannot be read: {error}; import the feedback again"
        ) from None
    turns = data.get("turns") if isinstance(data, dict) and data.get("format") == FEEDBACK_FORMAT else None
    return dict(turns) if isinstance(turns, dict) else {}


def _write(root: Path, turns: dict[str, dict[str, Any]]) -> None:
    (root / STATE_DIR).mkdir(parents=True, exist_ok=True)
    data = json.dumps({"format": FEEDBACK_FORMAT, "turns": turns}, ensure_ascii=False, sort_keys=True)
    write_private(root / STATE_DIR / _FILE, data.encode() + b"\n")


def _thumb(entry: dict[str, Any]) -> Thumb | None:
    data, meta = _mapping(entry.get("data")), _mapping(entry.get("meta"))
    try:
        rating = int(str(data.get("rating")))
        at = float(entry.get("updated_at") or entry.get("created_at") or 0)
    except ValueError:
        return None
    if rating not in (1, -1):
        return None
    score = _mapping(data.get("details")).get("rating")
    return Thumb(
        message_id=str(meta.get("message_id") or ""),
        model=str(data.get("model_id") or ""),
        rating=rating,
        at=at,
        reason=str(data.get("reason") or "")[:_MOST],
        comment=str(data.get("comment") or "")[:_MOST],
        tags=tuple(str(tag)[:100] for tag in data.get("tags") or meta.get("tags") or () if tag),
        score=float(score) if isinstance(score, int | float) else None,
    )


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _report(joined: Joined, changed: int) -> None:
    up = sum(thumb["rating"] > 0 for thumb in joined.turns.values())
    down = len(joined.turns) - up
    click.echo(f"{number_of(len(joined.turns), 'turn')} with a thumb: {up} up, {down} down; {changed} of them new")
    for count, words in (
        (joined.other_models, "of models that are not configured here"),
        (joined.without_rating, "without a thumb"),
    ):
        if count:
            click.echo(f"left out: {count} {words}")
    for ids, words in (
        (joined.removed, "removed by retention: the turns of"),
        (joined.unknown, "no turn has the message of"),
    ):
        if ids:
            named = ", ".join(one_line(each, 60) for each in ids[:5]) + (", ..." if len(ids) > 5 else "")
            click.echo(f"{words} {number_of(len(ids), 'thumb')} ({named})")


FORMAT = "helix-turns.rejected/1"
_REJECTED = frozenset({"retry", "fallback", "fail"})


@dataclass(slots=True)
class Exported:
    """The result of an export.

    Attributes:
        rows: rejected answers. turns: turns that have some.
        without_attempts: ids of turns that were asked again, and whose attempts retention has removed.
        complete_since: before this time (seconds since the epoch) retention has removed turns; 0 where all are there.
    """

    rows: int = 0
    turns: int = 0
    without_attempts: list[str] = field(default_factory=list)
    complete_since: float = 0.0


def export_rejected(out: IO[str], *, since: float, model: str, redact: bool) -> Exported:
    """Write a row for each rejected answer of turns that finished within ``since`` seconds.

    An empty ``model`` means all. ``redact``: what users asked is written as its length only. Credentials are masked in
    any case.
    """
    settings = load()
    mask, ratings = redactor(settings), read_feedback(settings.root)
    kept = settings.retention_seconds
    found = Exported(complete_since=time.time() - kept if since > kept else 0.0)

    async def write(client: TurnsClient) -> None:
        async for turn, attempts in finished_chats(client, time.time() - since, model):
            written = 0
            rejected = any(attempt.decision in _REJECTED for attempt in attempts)
            whole = await _whole(client, turn.turn_id) if rejected else None  # a list has no answers
            for row in rows(whole, attempts, redact=redact) if whole else ():
                rating = ratings.get(turn.turn_id)
                out.write(json.dumps(redacted({**row, "feedback": rating}, mask), ensure_ascii=False) + "\n")
                written += 1
            found.rows += written
            found.turns += bool(written)
            lost = rejected and whole is None
            if lost or (not attempts and (turn.retries or turn.outcome is None or not turn.outcome.success)):
                found.without_attempts.append(turn.turn_id)

    with_client(write)
    return found


async def _whole(client: TurnsClient, turn_id: str) -> Turn | None:
    try:
        return await client.reader.get(turn_id)
    except TurnNotFound:  # removed by retention meanwhile
        return None


def rows(turn: Turn, attempts: list[AttemptRecord], *, redact: bool = False) -> Iterator[dict[str, Any]]:
    """The rejected answers of a turn, in their order."""
    hide: Callable[[str], str] = _length if redact else str
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
            "flow": turn.flow,
            "finished_at": datetime.fromtimestamp(turn.finished_at, UTC).isoformat(timespec="seconds"),
            "messages": [
                {**message, "content": hide(message["content"])}
                if message["role"] != "assistant" or redact
                else message
                for message in turn.request.messages
            ],
            "prompt": hide(attempt.prompt) if attempt.prompt == turn.request.prompt else attempt.prompt,
            "answer": attempt.answer or attempt.text,
            "issues": issues_data(attempt.issues),
            "decision": attempt.decision,
            "repair": {
                "text": attempt.mended,
                "changes": list(attempt.changes),
                "remaining": issues_data(attempt.remaining),
            }
            if repaired
            else None,
            "outcome": turn.outcome.value if turn.outcome else "",
            "final": turn.response or None,
        }


def report(found: Exported) -> Iterator[str]:
    """Yield what was exported, and what retention has removed, in lines for people."""
    yield f"{number_of(found.rows, 'rejected answer')} of {number_of(found.turns, 'turn')}"
    if found.without_attempts:
        named = ", ".join(found.without_attempts[:5]) + (", ..." if len(found.without_attempts) > 5 else "")
        yield f"removed by retention: the attempts of {number_of(len(found.without_attempts), 'turn')} ({named})"
    if found.complete_since:
        when = datetime.fromtimestamp(found.complete_since, UTC).isoformat(timespec="minutes")
        yield f"removed by retention: turns that finished before {when} (HELIX_RETENTION_SECONDS)"


def export_dataset(output: str | None, *, since: float, model: str, redact: bool) -> None:
    """Write the rows to a file or to standard output, and the report to standard error."""
    if output and output != "-":
        with click.open_file(output, "w", encoding="utf-8", atomic=True) as out:
            found = export_rejected(out, since=since, model=model, redact=redact)
        Path(output).chmod(0o600)
    else:
        found = export_rejected(sys.stdout, since=since, model=model, redact=redact)
    for line in report(found):
        click.echo(line, err=True)


def _length(text: str) -> str:
    return f"<{len(text)} characters>"
