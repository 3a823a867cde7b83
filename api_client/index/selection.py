"""Selects all turns that match a search, for bulk actions and cleanup."""

from __future__ import annotations

import sys
from dataclasses import replace

from api_client.index.lists import TurnLists
from api_client.index.search import FoundTurn, Search

_BATCH = 200


async def select_turns(lists: TurnLists, search: Search, *, only: str = "") -> list[FoundTurn]:
    """Return all turns that match a search, oldest first. ``only`` may be ``unfinished``, ``finished`` or ``dead``."""
    everything = replace(search, sort="newest")
    found: dict[str, FoundTurn] = {}
    if only in {"", "unfinished"}:
        found |= {each.turn_id: each for each in await lists.list_unfinished(everything)}
    if only in {"", "finished"}:
        finished = await lists.list_newest_finished(everything, since=search.since, at_most=sys.maxsize)
        found |= {each.turn_id: each for each in finished}
    if only != "unfinished":  # a dead letter is kept longer than the list of finished turns
        found |= {each.turn_id: each for each in await lists.list_dead_letters(everything)}
    chosen = [each for each in found.values() if search.contains_time((each.finished_at or each.created_at) / 1000)]
    if search.text:
        says = set[str]()
        for start in range(0, len(chosen), _BATCH):
            read = await lists.read_turns(each.turn_id for each in chosen[start : start + _BATCH])
            says |= {turn.turn_id for turn in read if search.matches_text(turn)}
        chosen = [each for each in chosen if each.turn_id in says]
    return sorted(chosen, key=lambda each: (each.created_at, each.turn_id))
