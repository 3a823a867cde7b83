"""The limits of one turn: settings, requests, policies and other kinds of work all have them."""

from __future__ import annotations

#: Runs of its agent, ADR-038's max_retries plus one.
MAX_ATTEMPTS = 20
#: Wall time over all attempts, in seconds: a week.
MAX_DEADLINE_SECONDS = 604_800
MAX_TOKENS = 10**9
#: In US dollars.
MAX_COST_USD = 10**6
