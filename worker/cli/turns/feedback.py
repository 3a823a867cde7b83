"""Implement ``turns data import-feedback``: assign thumbs from Open WebUI to turns (docs/open-webui.md).

Format of the export as of Open WebUI 0.12.4 (admin panel, Evaluations, Feedback).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from api_client.client import TurnsClient
from api_client.contract.settings import STATE_DIR, Settings, load_settings
from api_client.private_file import write_private
from worker.cli.output import count_noun, fit_line, json_option, write_json
from worker.cli.store_access import run_with_client
from worker.cli.text_input import read_text
from worker.cli.turns.listing import iterate_finished_chats

FEEDBACK_FORMAT = "helix-turns.feedback/1"
_FILE = "feedback.json"
#: Longest reason or comment that is kept, in characters.
_MOST = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumb:
    """A user's rating of an answer in Open WebUI, with the user's remarks. ``at`` is a Unix time."""

    message_id: str
    model: str
    rating: int
    at: float
    reason: str = ""
    comment: str = ""
    tags: tuple[str, ...] = ()
    score: float | None = None

    def to_dict(self) -> dict[str, Any]:
        when = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds")
        data = {"reason": self.reason, "comment": self.comment, "tags": list(self.tags), "score": self.score}
        return {"rating": self.rating, "at": when, **{name: value for name, value in data.items() if value}}


@dataclass(slots=True)
class JoinedFeedback:
    """The ratings assigned to turns, and the ratings that match no turn."""

    turns: dict[str, dict[str, Any]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    other_models: int = 0
    without_rating: int = 0


@click.command("import-feedback", epilog="Example: turns data import-feedback feedback.json")
@click.argument("file")
@json_option
def import_feedback(file: str, as_json: bool) -> None:
    """Assign the thumbs in Open WebUI's exported feedback FILE (JSON; `-` for standard input) to turns.

    `turns turn export --rejected` shows them. A repeated import changes nothing; of several thumbs for a message the
    last counts. Thumbs of turns that retention has removed are listed.
    """
    settings = load_settings()
    thumbs, without = parse_export(read_text(file), file)

    async def join_all(client: TurnsClient) -> tuple[JoinedFeedback, set[str]]:
        ids: dict[str, str] = {}
        kept: set[str] = set()
        async for turn, _ in iterate_finished_chats(client, 0.0):
            kept.add(turn.turn_id)
            if message := turn.request.metadata.get("message_id"):
                ids.setdefault(message, turn.turn_id)
        return assign_thumbs(thumbs, ids, settings, time.time()), kept

    joined, kept = run_with_client(join_all)
    joined.without_rating = without
    known = {turn_id: thumb for turn_id, thumb in read_feedback(settings.root).items() if turn_id in kept}
    changed = sum(known.get(turn_id) != thumb for turn_id, thumb in joined.turns.items())
    _write_feedback(settings.root, known | joined.turns)
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
    _print_summary(joined, changed)


def parse_export(text: str, name: str) -> tuple[list[Thumb], int]:
    """Parse an export of Open WebUI. Return its ratings, and the number of entries without a rating.

    Raises ``UsageError`` if the text is not an export of Open WebUI.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{name}: not JSON: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise click.UsageError(
            f"{name}: not Open WebUI's exported feedback: a list of objects is wanted (export as JSON)"
        )
    found = [_parse_thumb(entry) for entry in entries]
    thumbs = sorted((thumb for thumb in found if thumb is not None), key=lambda thumb: thumb.at)
    return thumbs, len(found) - len(thumbs)


def assign_thumbs(thumbs: Iterable[Thumb], turn_of: dict[str, str], settings: Settings, now: float) -> JoinedFeedback:
    """Assign ratings to turns by the message ids of Open WebUI. Only the last rating of a message counts."""
    joined = JoinedFeedback()
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
    """Return the imported ratings by turn id, or an empty dict if nothing was imported."""
    try:
        data = json.loads((root / STATE_DIR / _FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise click.UsageError(
            f"{root / STATE_DIR / _FILE} cannot be read: {error}; import the feedback again"
        ) from None
    turns = data.get("turns") if isinstance(data, dict) and data.get("format") == FEEDBACK_FORMAT else None
    return dict(turns) if isinstance(turns, dict) else {}


def _write_feedback(root: Path, turns: dict[str, dict[str, Any]]) -> None:
    (root / STATE_DIR).mkdir(parents=True, exist_ok=True)
    data = json.dumps({"format": FEEDBACK_FORMAT, "turns": turns}, ensure_ascii=False, sort_keys=True)
    write_private(root / STATE_DIR / _FILE, data.encode() + b"\n")


def _parse_thumb(entry: dict[str, Any]) -> Thumb | None:
    data, meta = _as_mapping(entry.get("data")), _as_mapping(entry.get("meta"))
    try:
        rating = int(str(data.get("rating")))
        at = float(entry.get("updated_at") or entry.get("created_at") or 0)
    except ValueError:
        return None
    if rating not in (1, -1):
        return None
    score = _as_mapping(data.get("details")).get("rating")
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


def _as_mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _print_summary(joined: JoinedFeedback, changed: int) -> None:
    up = sum(thumb["rating"] > 0 for thumb in joined.turns.values())
    down = len(joined.turns) - up
    click.echo(f"{count_noun(len(joined.turns), 'turn')} with a thumb: {up} up, {down} down; {changed} of them new")
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
            named = ", ".join(fit_line(each, 60) for each in ids[:5]) + (", ..." if len(ids) > 5 else "")
            click.echo(f"{words} {count_noun(len(ids), 'thumb')} ({named})")
